# SPDX-License-Identifier: Apache-2.0
"""A pruned network computes what the whole one does without those heads and units."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.unit.models.tiny import TINY
from vit_jax import models
from vit_jax.cost.flops import forward_flops
from vit_jax.models import pruning
from vit_jax.models.layers.block import Block, BlockConfig
from vit_jax.models.layers.mlp import MlpKind
from vit_jax.models.layers.norm import TokenNorm
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.rope import Rope
from vit_jax.models.pruning import Shares

VIT = dataclasses.replace(TINY["vit"], num_heads=4, zero_head=False)
DEIT = dataclasses.replace(TINY["deit"], num_heads=4, layer_scale=0.1)
OPTIONS = {
    "vit": VIT,
    "map": dataclasses.replace(VIT, pool=Pool.MAP, class_token=False, qkv_bias=False),
    "deit": DEIT,
    "swiglu": dataclasses.replace(
        VIT, mlp=MlpKind.SWIGLU, rope=Rope.MIXED, norm=TokenNorm.RMS, key_bias=False
    ),
    "qk_norm": dataclasses.replace(VIT, qk_norm=True, scan_unroll=0),
    "registers": dataclasses.replace(VIT, num_registers=2, head_dim=6),
    "hybrid": dataclasses.replace(TINY["hybrid"], num_heads=4, image_size=(32, 32)),
}


def variables_of(cfg: Any) -> Any:
    """Return initial values with noise added: zeros would hide a mistake."""
    shapes = models.abstract(cfg)
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: np.float32(rng.normal(size=x.shape) * 0.3), shapes)


def images(cfg: Any, count: int = 3) -> jax.Array:
    rng = np.random.default_rng(1)
    return jnp.asarray(rng.normal(size=(count, *models.input_shape(cfg))), jnp.float32)


@pytest.mark.parametrize("name", OPTIONS)
def test_it_computes_what_the_whole_one_does_with_those_zeroed(name: str) -> None:
    cfg = OPTIONS[name]
    small, variables = pruning.pruned(cfg, Shares(0.25, 0.5)), variables_of(cfg)
    params, state = variables.pop("params"), variables
    gates = pruning.open_gates(params, cfg)
    rng = np.random.default_rng(2)
    kept = pruning.keep({k: rng.random(v.shape) for k, v in gates.items()}, cfg, small)
    closed = {}
    for key, gate in gates.items():
        closed[key] = np.zeros(gate.shape, np.float32)
        np.put_along_axis(closed[key], kept[key], 1, axis=-1)
    zeroed = {"params": pruning.gated(params, closed), **state}
    cut = {"params": pruning.cut(params, kept, cfg), **state}
    image = images(cfg)
    module, smaller = models.create(cfg), models.create(small)

    def all_three(cut: Any, *others: Any) -> Any:
        return smaller.apply(cut, image), *(module.apply(each, image) for each in others)

    found, expected, whole = jax.jit(all_three)(cut, zeroed, {"params": params, **state})
    np.testing.assert_allclose(found.tokens, expected.tokens, atol=5e-5)
    np.testing.assert_allclose(found.logits, expected.logits, atol=5e-5)
    assert np.abs(whole.logits - expected.logits).max() > 0.05, "nothing was zeroed"


def test_a_head_width_that_is_the_usual_one_changes_no_bit() -> None:
    said = dataclasses.replace(VIT, head_dim=4)
    variables, image = variables_of(VIT), images(VIT)
    assert models.abstract(said) == models.abstract(VIT)
    outputs = [models.create(cfg).apply(variables, image).logits for cfg in (VIT, said)]
    np.testing.assert_array_equal(*outputs)


def test_flops_fall_as_counted_by_hand() -> None:
    cfg = dataclasses.replace(VIT, image_size=(8, 12))
    small = pruning.pruned(cfg, Shares(0.25, 0.5))

    def by_hand(heads: int, units: int) -> int:
        patches, dim, width = 6, 16, heads * 4
        tokens = patches + 1
        linear = tokens * (dim * 3 * width + width * dim + 2 * dim * units)
        attention = 2 * heads * tokens * tokens * 4
        return 2 * (patches * 4 * 4 * 3 * dim + 2 * (linear + attention) + dim * 3)

    for model, sizes in ((cfg, (4, 32)), (small, (3, 16))):
        assert forward_flops(models.create(model), (8, 12)) == by_hand(*sizes)


def test_scores_are_activation_times_gradient() -> None:
    rng = np.random.default_rng(0)
    block = Block(BlockConfig.of(VIT), train=False)
    params = {"blocks": variables_of(dataclasses.replace(VIT, depth=1))["params"]["blocks"]}
    tokens = jnp.asarray(rng.normal(size=(3, 5, 16)), jnp.float32)

    def loss(params: Any, batch: Any) -> Any:
        layer = jax.tree.map(lambda leaf: leaf[0], params["blocks"])
        x, _ = block.apply({"params": layer}, batch["tokens"], jnp.zeros(()))
        return (x**3).sum(axis=(1, 2))

    def losses(added: Any) -> Any:
        """Add to what the two linear layers read, an array for each."""

        def call(next_fun: Any, args: Any, kwargs: Any, context: Any) -> Any:
            name = context.module.name
            if context.method_name == "__call__" and name in added:
                kept[name] = args[0].reshape(added[name].shape)
                args = ((kept[name] + added[name]).reshape(args[0].shape), *args[1:])
            return next_fun(*args, **kwargs)

        kept: Any = {}
        with nn.intercept_methods(call):
            total = loss(params, {"tokens": tokens}).sum()
        return total, kept

    zeros = {"proj": jnp.zeros((3, 5, 16)), "fc2": jnp.zeros((3, 5, 32))}
    slopes, activations = jax.jit(jax.grad(losses, has_aux=True))(zeros)
    batch = {"tokens": tokens, "mask": jnp.asarray([1.0, 1.0, 0.0])}  # the third is padding
    gates = pruning.open_gates(params, VIT)
    found = jax.jit(lambda p: pruning.taylor(loss, p, gates, batch))(params)
    for name, parts in (("attn/proj", 4), ("mlp/fc2", 32)):
        short = name.rpartition("/")[2]
        product = np.asarray(slopes[short] * activations[short]).reshape(3, 5, parts, -1)
        expected = np.abs(product.sum(axis=(1, 3))[:2]).sum(axis=0)
        scale = expected.max()
        np.testing.assert_allclose(
            found[f"blocks/{name}/kernel"][0] / scale, expected / scale, atol=5e-5
        )
