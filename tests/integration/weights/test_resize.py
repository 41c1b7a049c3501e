# SPDX-License-Identifier: Apache-2.0
"""Each resize rule gives what the code gives that it is named for."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.unit.weights.test_resize import GOLDEN, TOLERANCE, VIT
from vit_jax import models, weights
from vit_jax.weights.resize import ResizeRule


@pytest.mark.parametrize(
    "name, rule",
    [("vit_resize_bicubic", ResizeRule.AUTO), ("vit_resize_bicubic_noaa", ResizeRule.OFFICIAL)],
)
def test_logits_at_another_size(name: str, rule: ResizeRule) -> None:
    golden = np.load(GOLDEN / f"{name}.npz")
    size = tuple(json.loads(str(golden["spec"]))["eval"]["img_size"])
    cfg = dataclasses.replace(VIT, image_size=size, num_classes=10)
    variables = weights.load(f"timm:{GOLDEN / name}.safetensors", cfg, resize=rule)
    table = variables["params"]["pos_embed"]
    np.testing.assert_allclose(table, golden["pos_embed_resized"], atol=TOLERANCE, rtol=0)
    with jax.default_matmul_precision("highest"):
        out = jax.jit(models.create(cfg).apply)(variables, jnp.asarray(golden["input"]))
    np.testing.assert_allclose(out.logits, golden["logits"], atol=5e-5, rtol=0)
