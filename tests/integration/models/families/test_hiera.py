# SPDX-License-Identifier: Apache-2.0
"""Hiera: timm's outputs of plain and of windowed positions, the gradient of the image, dropping."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.integration.models.families.test_mixer import forward, random_params
from tests.unit.models.families.test_hiera import small
from vit_jax import models, weights
from vit_jax.models.intermediates import output_and_layers
from vit_jax.models.layers.drop import DropPathRule

GOLDEN = Path(__file__).parents[3] / "golden"
WINDOWED = {"global_grid": (3, 5), "expand": False, "layer_scale": 0.1}


@pytest.mark.parametrize("name, fields", [("hiera", {}), ("hiera_abswin", WINDOWED)])
def test_equals_timm(name: str, fields: dict) -> None:
    golden = np.load(GOLDEN / f"{name}.npz")
    sizes = {"image_size": (32, 64), "dim": 4, "depths": (1, 2, 1, 1), "num_classes": 5}
    cfg = models.variant("hiera_t", **sizes, **fields)
    variables = weights.load(f"timm:{GOLDEN / f'{name}.safetensors'}", cfg)

    @jax.jit
    def run(image: jax.Array) -> tuple:
        def loss(image: jax.Array) -> tuple:
            output, layers = output_and_layers(cfg, variables, image)
            return (output.logits * golden["target"]).sum(), (output, layers)

        return jax.grad(loss, has_aux=True)(image)

    with jax.default_matmul_precision("highest"):
        gradient, (out, layers) = run(jnp.asarray(golden["input"]))
    pairs = {f"stage{i}": layer.patches for i, layer in enumerate(layers)}
    for key, found in {**pairs, "logits": out.logits, "gradient": gradient}.items():
        scale = max(1.0, float(np.abs(golden[key]).max()))
        np.testing.assert_allclose(
            found / scale, golden[key] / scale, atol=5e-5, rtol=0, err_msg=key
        )
    np.testing.assert_array_equal(out.tokens, layers[-1].tokens)


def test_both_branches_drop() -> None:
    rule = {"drop_path_rate": 0.999, "drop_path_rule": DropPathRule.CONSTANT}
    cfg = small(depths=(1, 1), layer_scale=0.5, **rule)
    params = random_params(cfg)
    dropped = forward(cfg, params, train=True)
    for stage in ("stage0", "stage1"):
        for scale in ("ls1", "ls2"):
            gamma = params[stage]["block0"][scale]
            gamma["gamma"] = np.zeros_like(gamma["gamma"])
    np.testing.assert_allclose(dropped.tokens, forward(cfg, params).tokens, atol=1e-5)
