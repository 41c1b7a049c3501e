# SPDX-License-Identifier: Apache-2.0
"""MLP-Mixer: published sizes, timm's golden, options, initial values, bad configs."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.unit.models.families.test_mixer import GOLDEN, golden_config, small
from vit_jax import models, weights
from vit_jax.models import MixerConfig
from vit_jax.models.layers.drop import DropPathRule
from vit_jax.models.layers.init import Init
from vit_jax.models.layers.mlp import Gelu


@pytest.mark.parametrize("scan_unroll", [0, 1])
def test_equals_timm(scan_unroll: int) -> None:
    golden, cfg = np.load(GOLDEN / "mixer.npz"), golden_config(scan_unroll=scan_unroll)
    variables = weights.from_timm(load_file(GOLDEN / "mixer.safetensors"), cfg)
    apply = models.create(cfg).apply
    with jax.default_matmul_precision("highest"):
        out = jax.jit(apply)(variables, jnp.asarray(golden["input"]))
    np.testing.assert_allclose(out.logits, golden["logits"], atol=5e-5, rtol=0)
    np.testing.assert_allclose(out.features, golden["pre_logits"], atol=5e-5, rtol=0)
    np.testing.assert_allclose(out.tokens, golden["features"], atol=5e-5, rtol=0)


def random_params(cfg: MixerConfig) -> Any:
    """Fill the parameters without compiling their initialisation."""
    rng = np.random.default_rng(0)
    shapes = models.abstract(cfg)["params"]
    return jax.tree.map(lambda x: rng.normal(0, 0.5, x.shape).astype(np.float32), shapes)


def forward(cfg: MixerConfig, params: Any, *, train: bool = False) -> models.Output:
    image = np.random.default_rng(1).normal(size=(3, *models.input_shape(cfg)))
    rngs = {"dropout": jax.random.key(2)}
    apply = jax.jit(lambda p, x: models.create(cfg).apply({"params": p}, x, train=train, rngs=rngs))
    return apply(params, image.astype(np.float32))


def test_options_give_the_promised_shapes() -> None:
    cfg = small(dtype=models.DType.BFLOAT16, remat=models.Remat.DOTS)
    params = random_params(cfg)
    out = forward(cfg, params)
    assert out.logits.shape == (3, 5)
    assert out.features.shape == (3, 16)
    assert out.logits.dtype == out.features.dtype == jnp.float32
    assert out.tokens.shape == (3, 2 * 3, 16)
    assert out.tokens.dtype == jnp.bfloat16
    assert np.isfinite(out.logits).all()
    assert params["blocks"]["mlp_tokens"]["fc1"]["kernel"].shape == (2, 6, 7)
    assert {x.dtype for x in jax.tree.leaves(models.abstract(cfg))} == {jnp.dtype("float32")}


def test_drop_path_acts_in_training_only() -> None:
    params = random_params(small(depth=1))
    reference = forward(small(depth=1), params)
    for rule in DropPathRule:
        cfg = small(depth=1, drop_path_rate=0.5, drop_path_rule=rule)
        trained = forward(cfg, params, train=True)
        # Linear starts at 0: a single block drops nothing.
        same = np.allclose(trained.logits, reference.logits, atol=1e-5)
        assert same == (rule is DropPathRule.LINEAR)
    np.testing.assert_array_equal(forward(cfg, params).logits, reference.logits)


def test_both_branches_drop() -> None:
    cfg = small(depth=1, drop_path_rate=0.999, drop_path_rule=DropPathRule.CONSTANT)
    params = random_params(cfg)
    dropped = forward(cfg, params, train=True)
    for branch in ("mlp_tokens", "mlp_channels"):
        last = params["blocks"][branch]["fc2"]
        params["blocks"][branch]["fc2"] = jax.tree.map(np.zeros_like, last)
    np.testing.assert_allclose(dropped.tokens, forward(cfg, params).tokens, atol=1e-5)


def test_the_default_gelu_is_googles() -> None:
    params = random_params(small(depth=1))
    default = forward(small(depth=1), params).logits
    np.testing.assert_array_equal(default, forward(small(depth=1, gelu=Gelu.TANH), params).logits)
    exact = forward(small(depth=1, gelu=Gelu.ERF), params).logits
    assert 1e-5 < np.abs(default - exact).max() < 1e-1


@pytest.mark.parametrize(
    "init, kernel_std, bias_std",
    [(Init.JAX, math.sqrt(2 / (64 + 256)), 1e-6), (Init.TIMM, 0.02, 0.0)],
)
def test_initial_values(init: Init, kernel_std: float, bias_std: float) -> None:
    cfg = small(init=init, dim=64, channel_mlp_dim=256, zero_head=True, head_bias=-6.9)
    init = jax.jit(lambda key: models.init(models.create(cfg), cfg, key)[0])
    params = init(jax.random.key(0))
    mlp = params["blocks"]["mlp_channels"]["fc1"]
    assert np.std(mlp["kernel"]) == pytest.approx(kernel_std, rel=0.03)
    assert np.std(mlp["bias"]) == pytest.approx(bias_std, rel=0.1)
    assert not np.allclose(mlp["kernel"][0], mlp["kernel"][1])
    assert not params["head"]["kernel"].any()
    np.testing.assert_array_equal(params["head"]["bias"], np.full(5, -6.9, np.float32))
