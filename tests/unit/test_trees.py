# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import optax
import pytest

from vit_jax import trees

TREE = {
    "blocks": {"attn": {"qkv": {"kernel": jnp.zeros((3, 4, 12)), "bias": jnp.zeros((3, 12))}}},
    "head": {"kernel": jnp.ones((4, 2)), "bias": jnp.ones(2)},
    "pos": [jnp.zeros(1), jnp.zeros(2)],
}


def test_names_follow_the_order_of_leaves() -> None:
    named = trees.named_leaves(TREE)
    assert [name for name, _ in named] == [
        "blocks/attn/qkv/bias",
        "blocks/attn/qkv/kernel",
        "head/bias",
        "head/kernel",
        "pos/0",
        "pos/1",
    ]
    for (_, leaf), other in zip(named, jax.tree.leaves(TREE), strict=True):
        assert leaf is other


def test_optimizer_state_ends_in_the_parameters_name() -> None:
    names = [name for name, _ in trees.named_leaves(optax.adamw(1e-3).init(TREE))]
    assert "0/mu/blocks/attn/qkv/kernel" in names


@pytest.mark.parametrize(
    "name, stacked",
    [
        ("blocks/norm1/scale", True),
        ("mu/class_blocks/mlp/fc1/kernel", True),
        ("stage0_block1/mlp/fc1/kernel", False),
        ("my_blocks_norm/scale", False),
    ],
)
def test_stacked(name: str, stacked: bool) -> None:
    assert trees.is_stacked(name) is stacked


def test_layer_names() -> None:
    kernel = TREE["blocks"]["attn"]["qkv"]["kernel"]
    names = trees.layer_names("mu/blocks/attn/qkv/kernel", kernel)
    assert names == [f"mu/blocks/{i}/attn/qkv/kernel" for i in range(3)]
    assert trees.layer_names("head/bias", TREE["head"]["bias"]) == ["head/bias"]


def test_sizes_count_typed_keys_by_their_data() -> None:
    tree = {"a": jnp.zeros((2, 3), jnp.bfloat16), "key": jax.random.key(0)}
    assert trees.num_params({"a": tree["a"]}) == 6
    assert trees.num_bytes(tree) == 12 + 8
