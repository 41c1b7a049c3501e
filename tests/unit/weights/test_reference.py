# SPDX-License-Identifier: Apache-2.0
"""A reference to weights is a kind and a path."""

from pathlib import Path

from tests.refusals import refused_by
from vit_jax.weights.config import split


def test_kind_and_path() -> None:
    assert split("timm:a:b.safetensors") == ("timm", "a:b.safetensors")
    assert split("ckpt:~/run@12") == ("ckpt", f"{Path.home()}/run@12")
    with refused_by("weights.config.split"):
        split("hub:")
    with refused_by("weights.config.split"):
        split("tmm:x")
