# SPDX-License-Identifier: Apache-2.0
"""Corrupted passes: known answers, one decoding, one compilation, any batch size and devices."""

import pytest

from vit_jax.errors import UserError
from vit_jax.evals import corruptions


def test_what_is_not_published_is_refused():
    with pytest.raises(UserError, match="unknown corruption 'pixelat'; did you mean 'pixelate'"):
        corruptions.variants(["pixelat"], [1])
    for severity in (0, 6):
        with pytest.raises(UserError, match=rf"severity {severity} must be in 1\.\.5"):
            corruptions.variants(["contrast"], [1, severity])
