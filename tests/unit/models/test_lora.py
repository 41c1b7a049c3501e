# SPDX-License-Identifier: Apache-2.0
"""Which parameters a low-rank run trains, where they start, and what merging makes of them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import refused_by
from vit_jax import trees
from vit_jax.errors import UserError
from vit_jax.models import lora
from vit_jax.models.lora import LoraConfig

SHAPES = {
    "blocks/attn/qkv/kernel": (3, 8, 24),
    "blocks/attn/qkv/bias": (3, 24),
    "blocks/mlp/fc1/kernel": (3, 8, 16),
    "patch_embed/kernel": (2, 2, 3, 8),
    "head/kernel": (8, 5),
    "head/bias": (5,),
}
DENSE = {"blocks/attn/qkv", "blocks/mlp/fc1", "head"}
PARAMS = trees.nest({n: jax.ShapeDtypeStruct(s, jnp.float32) for n, s in SHAPES.items()})


def adapt(**fields: Any) -> lora.Adapter:
    return lora.adapt(LoraConfig(**fields), PARAMS, DENSE)


def shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {name: leaf.shape for name, leaf in trees.named_leaves(tree)}


def test_trained_and_base_share_the_parameters_out() -> None:
    adapter = adapt(pattern="qkv/kernel", rank=2, alpha=6.0, train="^head|qkv/bias")
    assert adapter.scale == 3.0
    kept = ("blocks/attn/qkv/bias", "head/kernel", "head/bias")
    factors = {"blocks/attn/qkv/lora_a": (3, 8, 2), "blocks/attn/qkv/lora_b": (3, 2, 24)}
    assert shapes(adapter.trained) == {**{name: SHAPES[name] for name in kept}, **factors}
    assert shapes(adapter.base) == {n: s for n, s in SHAPES.items() if n not in kept}


def test_b_starts_at_zero_a_at_random_and_the_head_as_the_model_has_it() -> None:
    adapter = adapt(pattern="blocks/")
    own = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 7.0), PARAMS)
    found = dict(trees.named_leaves(adapter.init(own, jax.random.key(0))))
    assert (found["head/kernel"] == 7).all()
    a = np.asarray(found["blocks/mlp/fc1/lora_a"])
    assert not found["blocks/mlp/fc1/lora_b"].any()
    assert np.abs(a).max() < 8**-0.5
    assert a.std() == pytest.approx((3 * 8) ** -0.5, rel=0.2)
    assert not np.array_equal(a, found["blocks/attn/qkv/lora_a"])
    assert not np.array_equal(a[0], a[1])  # every layer has its own


def test_join_scales_b_alone() -> None:
    adapter = adapt(pattern="qkv", rank=2, alpha=1.0)
    trained = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), adapter.trained)
    base = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), adapter.base)
    joined = dict(trees.named_leaves(adapter.join(trained, base)))
    assert joined.keys() == SHAPES.keys() | {f"blocks/attn/qkv/lora_{x}" for x in "ab"}
    assert {name: float(value.max()) for name, value in joined.items() if value.max() != 1} == {
        "blocks/attn/qkv/lora_b": 0.5
    }


def test_merging_rounds_once_and_nothing_leaves_every_bit() -> None:
    rng = np.random.default_rng(0)
    kernel, a, b = (
        rng.standard_normal(s).astype(np.float32) for s in ((3, 8, 6), (3, 8, 2), (3, 2, 6))
    )
    exact = kernel.astype(np.float64) + 0.3 * (a.astype(np.float64) @ b.astype(np.float64))
    np.testing.assert_array_equal(lora.merged(kernel, a, b, 0.3), exact.astype(np.float32))
    kernel[0, 0, 0] = -0.0
    assert lora.merged(kernel, a, np.zeros_like(b), 0.3).tobytes() == kernel.tobytes()


@pytest.mark.parametrize(
    "fields, parts",
    [
        ({"pattern": "qvk"}, ["lora.pattern", "qvk", "blocks/0/attn/qkv/kernel"]),
        ({"pattern": "blocks/1/mlp"}, ["some layers of blocks/mlp/fc1/kernel"]),
        ({"pattern": "patch_embed"}, ["patch_embed/kernel, which is no dense layer's"]),
        ({"pattern": "kernel", "train": ""}, ["patch_embed/kernel, which is no dense"]),
        ({"pattern": "head"}, ["head/kernel, as lora.train='^head' does"]),
        ({"pattern": "qkv", "train": "haed"}, ["parameter in lora.train", "head/"]),
    ],
)
def test_a_pattern_that_fits_nothing_is_refused_in_a_line(fields: Any, parts: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        adapt(**fields)
    message = str(refused.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message
    with refused_by("settings.fields.regex", "lora.pattern"):
        adapt(pattern="(")


def test_settings_without_a_pattern_are_refused() -> None:
    LoraConfig().check()
    with refused_by("settings.fields.check_effects", "lora.rank"):
        LoraConfig(rank=4).check()
    with refused_by("settings.fields.regex", "lora.train"):
        LoraConfig(pattern="qkv", train="(").check()
