# SPDX-License-Identifier: Apache-2.0
"""A published file goes in, computes what its authors' code computes, and comes out the same."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file

from vit_jax import models, weights
from vit_jax.__main__ import main

GOLDEN = Path(__file__).parents[1] / "golden"
SIZES = {
    "image_size": (32,),
    "patch": (8,),
    "dim": 48,
    "depth": 3,
    "num_heads": 3,
    "mlp_dim": 192,
    "num_classes": 10,
    "gelu": "erf",
}


def test_timms_file_in_and_out(tmp_path: Path) -> None:
    golden, cfg = np.load(GOLDEN / "vit_cls.npz"), models.variant("vit_b16", **SIZES)
    source, file = GOLDEN / "vit_cls.safetensors", tmp_path / "out.safetensors"
    with jax.default_matmul_precision("highest"):
        variables = weights.load(f"timm:{source}", cfg)
        out = jax.jit(models.create(cfg).apply)(variables, jnp.asarray(golden["input"]))
    np.testing.assert_allclose(out.logits, golden["logits"], atol=5e-5, rtol=0)
    sizes = [f"--model.{name}={str(size).strip('(),')}" for name, size in SIZES.items()]
    words = [f"--from=timm:{source}", "--model=vit_b16", *sizes, f"--to=timm:{file}"]
    assert main(["vit_jax", "convert", *words]) == 0
    before, after = load_file(source), load_file(file)
    assert before.keys() == after.keys()
    for key, value in before.items():
        np.testing.assert_array_equal(after[key], value, err_msg=key)
