# SPDX-License-Identifier: Apache-2.0
"""PyTorch's layouts of parameters: shapes, values, and the way back."""

import numpy as np
import pytest

from vit_jax.weights.layout import pointwise, renamed, torch_layout


@pytest.mark.parametrize(
    "name, shape, heads",
    [
        ("fc1/kernel", (3, 4), 1),
        ("conv/kernel", (2, 3, 4, 5), 1),
        ("attn/qkv/kernel", (4, 12), 2),
        ("attn/qkv/bias", (12,), 2),
        ("attn/kv/kernel", (4, 8), 2),
        ("norm/scale", (4,), 2),
    ],
)
def test_the_way_there_and_back_keeps_every_number(
    name: str, shape: tuple[int, ...], heads: int
) -> None:
    ours = np.arange(np.prod(shape)).reshape(shape)
    layout = torch_layout(name, shape, heads)
    theirs = layout.encode(ours)
    assert theirs.shape == layout.shape
    np.testing.assert_array_equal(layout.decode(theirs), ours)


def test_a_linear_layer_is_transposed_and_a_convolution_has_its_channels_first() -> None:
    linear, conv = np.arange(6).reshape(2, 3), np.arange(120).reshape(2, 3, 4, 5)
    np.testing.assert_array_equal(torch_layout("a/kernel", (2, 3), 1).encode(linear), linear.T)
    there = torch_layout("a/kernel", (2, 3, 4, 5), 1).encode(conv)
    assert there[4, 3, 1, 2] == conv[1, 2, 3, 4]
    there = pointwise((2, 3)).encode(linear)
    assert there.shape == (3, 2, 1, 1)
    assert there[2, 1, 0, 0] == linear[1, 2]


def test_a_fused_projection_has_its_heads_outermost_here_and_q_k_v_there() -> None:
    heads, count, dim = 2, 3, 2  # columns (head, {q, k, v}, d)
    ours = np.arange(heads * count * dim)
    there = torch_layout("attn/qkv/bias", ours.shape, heads).encode(ours)
    for head, one, d in np.ndindex(heads, count, dim):
        assert there[(one * heads + head) * dim + d] == ours[(head * count + one) * dim + d]


def test_renames_follow_each_other() -> None:
    assert renamed("a/b/c", [("^a/", "x/"), ("x/b", "y")]) == "y/c"
