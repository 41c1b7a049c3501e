# SPDX-License-Identifier: Apache-2.0
"""EoMT against transformers': what it says with masked and free attention, and its gradient."""

import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.inference import dense
from vit_jax.inference.trained import Trained
from vit_jax.models.dense import eomt

GOLDEN = Path(__file__).parents[3] / "golden" / "next3"
# Shares of the largest number of each array: three times the error of float32 itself.
TOLERANCE = {"eomt": 3e-5, "eomt_dinov3": 2e-5}


def folder(kind: str, place: Path) -> Path:
    shutil.copy(GOLDEN / f"{kind}.safetensors", place / "model.safetensors")
    shutil.copy(GOLDEN / f"{kind}.config.json", place / "config.json")
    return place


@pytest.mark.parametrize("kind", list(TOLERANCE))
def test_eomt_is_transformers(kind: str, tmp_path: Path) -> None:
    found: Trained = dense.load(f"hub:{folder(kind, tmp_path)}")
    stored = dict(np.load(GOLDEN / f"{kind}.npz"))
    network, shares = eomt.create(found.model, found.head), jnp.ones(found.head.blocks)

    @jax.jit
    def run(image: jax.Array) -> Any:
        rngs = {"dropout": jax.random.key(0)}

        def said(image: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
            masked = network.apply(found.variables, image, shares=shares, rngs=rngs)
            outs: dict[str, Any] = {"free": network.apply(found.variables, image), "masked": masked}
            arrays = {}
            for how, out in outs.items():
                last = out.predictions[-1]
                arrays |= {f"masks_{how}": last.masks, f"classes_{how}": last.classes}
                arrays[f"tokens_{how}"] = out.tokens
            return sum((x * stored[f"ct_{n}"]).sum() for n, x in arrays.items()), arrays

        with jax.default_matmul_precision("highest"):
            (_, arrays), gradient = jax.value_and_grad(said, has_aux=True)(image)
        return arrays, gradient

    arrays, gradient = run(jnp.asarray(stored["in_pixel_values"].transpose(0, 2, 3, 1)))
    wanted = {name: stored[f"out_{name}"] for name in arrays}
    wanted["gradient"] = stored["grad_pixel_values"].transpose(0, 2, 3, 1)
    for name, value in {**arrays, "gradient": gradient}.items():
        most = TOLERANCE[kind] * np.abs(wanted[name]).max()
        np.testing.assert_allclose(value, wanted[name], rtol=0, atol=most, err_msg=name)
    # The masks do something.
    assert np.abs(arrays["tokens_free"] - arrays["tokens_masked"]).max() > 0.1
