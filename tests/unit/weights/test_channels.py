# SPDX-License-Identifier: Apache-2.0
"""Kernels for other channels than a file's, by timm's rule."""

from pathlib import Path

import numpy as np
import pytest

from vit_jax.weights.apply import adapted, fits

# Of timm.models._manipulate.adapt_input_conv, OIHW.
GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "next3" / "channels.npz")


def test_kernels_are_adapted_as_timm_does(
    subtests: pytest.Subtests, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = GOLDEN["in_weight"].transpose(2, 3, 1, 0)
    for count in (1, 2, 4, 5, 12):
        with subtests.test(channels=count):
            found = adapted(kernel, count, "a.safetensors").transpose(3, 2, 0, 1)
            np.testing.assert_allclose(found, GOLDEN[f"out_{count}"], rtol=1e-6)
            assert fits(3, count)
            assert f"a.safetensors sees 3 channels, this model {count}" in caplog.text
    assert not fits(12, 3)  # of other bands nobody knows which are red, green and blue
