# SPDX-License-Identifier: Apache-2.0
"""A reference to weights is a kind and a path."""

from pathlib import Path

import pytest

from vit_jax.errors import UserError
from vit_jax.weights.config import split


def test_kind_and_path() -> None:
    assert split("timm:a:b.safetensors") == ("timm", "a:b.safetensors")
    assert split("ckpt:~/run@12") == ("ckpt", f"{Path.home()}/run@12")
    with pytest.raises(UserError, match="'hub:' names no repository: give hub:USER/NAME"):
        split("hub:")
    with pytest.raises(UserError, match="did you mean 'timm:FILE'"):
        split("tmm:x")
