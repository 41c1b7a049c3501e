# SPDX-License-Identifier: Apache-2.0
"""Attention within shifted windows of a grid of tokens (Swin, arXiv:2103.14030 section 3.2)."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from einops import rearrange
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.base import record
from vit_jax.models.layers.attention import AttentionImpl, attend, attention_weights
from vit_jax.models.layers.dense import Dense
from vit_jax.models.layers.init import POS_EMBED, RULES, Init

Pair = tuple[int, int]
# Added to the logits of tokens that only the shift made neighbours; finite, as the authors' code.
MASKED = -100.0


def fit_window(grid: Pair, window: Pair, *, shifted: bool) -> tuple[Pair, Pair]:
    """Return the window and the shift for a grid (rows, columns), in tokens.

    A grid axis no longer than the window is one window without a shift. (The authors shorten both
    axes to the shorter one, which differs for non-square grids only.)
    """
    rows, columns = (min(side, size) for side, size in zip(grid, window, strict=True))
    down = rows // 2 if shifted and grid[0] > rows else 0
    right = columns // 2 if shifted and grid[1] > columns else 0
    return (rows, columns), (down, right)


def relative_bias(table: Float[Array, "T h"], window: Pair) -> Float[Array, "h N N"]:
    """Expand the table of relative positions to the (query, key) pairs of a window.

    The table holds all offsets query - key, column offsets fastest; tokens are in row-major order.
    It is sliced, not indexed: GPUs add the gradient of a lookup in varying order.
    """
    rows, columns = window
    table = table.reshape(2 * rows - 1, 2 * columns - 1, -1)
    # For query i the offsets of keys 0, 1, ... are i, i - 1, ...: a reversed slice.
    table = jnp.stack([table[i : i + rows][::-1] for i in range(rows)])
    table = jnp.stack([table[:, :, i : i + columns][:, :, ::-1] for i in range(columns)], axis=1)
    return table.reshape(rows * columns, rows * columns, -1).transpose(2, 0, 1)


def shift_mask(grid: Pair, window: Pair, shift: Pair) -> Float[np.ndarray, "W N N"]:
    """Return the bias of the logits of each window of a rolled grid: 0 or MASKED.

    The last `shift` rows and columns came from the other side and attend to each other only. `grid`
    is a multiple of `window`; windows and tokens are in row-major order.
    """
    wrapped = [np.arange(side) >= side - by for side, by in zip(grid, shift, strict=True)]
    region = 2 * wrapped[0][:, None] + wrapped[1][None]
    region = rearrange(region, "(y p) (x q) -> (y x) (p q)", p=window[0], q=window[1])
    same = region[:, :, None] == region[:, None]
    return np.where(same, 0.0, MASKED).astype(np.float32)


class WindowAttention(nn.Module):
    """Self-attention of the tokens of a window, with a learned bias for each relative position.

    The input is normalised, so that the last windows are padded with zeros of attention's input.
    Padding is a key like any other (timm's order: roll, then pad, so that padding lies outside the
    rolled grid). The columns of the qkv kernel are ordered as in `SelfAttention`.
    """

    window: Pair
    shift: Pair
    num_heads: int
    init_rules: Init
    dtype: Any
    qkv_bias: bool
    dropout_rate: float
    train: bool

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B H W C"]:
        height, width, dim = x.shape[1:]
        (p, q), rules = self.window, RULES[self.init_rules]
        if any(self.shift):
            x = jnp.roll(x, (-self.shift[0], -self.shift[1]), axis=(1, 2))
        x = jnp.pad(x, ((0, 0), (0, -height % p), (0, -width % q), (0, 0)))
        grid = x.shape[1], x.shape[2]
        qkv = Dense(3 * dim, self.dtype, rules.qkv(3), use_bias=self.qkv_bias, name="qkv")(x)
        # One transpose cuts windows and splits heads. Each window is a head of its own, so that a
        # bias is its own too; heads lead, since they are what is split over devices.
        split = "b (y p) (x q) (h three d) -> three b (h y x) (p q) d"
        query, key, value = rearrange(qkv, split, p=p, q=q, h=self.num_heads, three=3)
        bias = self._bias(grid)
        record(self, "weights", lambda: self._by_window(attention_weights(query, key, bias)))
        dropping = self.train and self.dropout_rate > 0
        out = attend(
            query,
            key,
            value,
            bias=bias,
            impl=AttentionImpl.XLA,  # with a bias cuDNN trains on even lengths only, not on 49
            dropout_rate=self.dropout_rate,
            dropout_key=self.make_rng("dropout") if dropping else None,
        )
        merge = "b (h y x) (p q) d -> b (y p) (x q) (h d)"
        x = rearrange(out, merge, h=self.num_heads, y=grid[0] // p, p=p, q=q)
        x = x[:, :height, :width]
        if any(self.shift):
            x = jnp.roll(x, self.shift, axis=(1, 2))
        return Dense(dim, self.dtype, rules.linear, name="proj")(x)

    def _by_window(self, weights: Float[Array, "B M N N"]) -> Float[Array, "B W h N N"]:
        return rearrange(weights, "b (h w) i j -> b w h i j", h=self.num_heads)

    def _bias(self, grid: Pair) -> Float[Array, "1 M N N"]:
        """Return the bias of the logits of each head's windows, in float32."""
        offsets = (2 * self.window[0] - 1) * (2 * self.window[1] - 1)
        table = self.param("rel_pos_bias", POS_EMBED, (offsets, self.num_heads), jnp.float32)
        bias = relative_bias(jnp.asarray(table), self.window)[:, None]
        bias = bias + shift_mask(grid, self.window, self.shift)[None]
        return bias.reshape(1, -1, *bias.shape[2:])
