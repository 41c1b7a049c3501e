# SPDX-License-Identifier: Apache-2.0
"""Plain ViT blocks that attend within windows, rows or columns of the patches.

Windows that do not overlap, with some global blocks in between, are ViTDet's (arXiv:2203.16527
section 3); rows and columns in turn are the axial blocks of arXiv:2010.11929 appendix D.6 and
arXiv:1912.12180. Neither says what a class token does there. Here the tokens before the patches are
Vision Longformer's global ones (arXiv:2103.15358 section 3.2): they see all tokens, and all see
them. The blocks have the plain stack's parameters, so any checkpoint of a ViT loads.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from vit_jax.errors import UserError
from vit_jax.models.base import CAPTURED, Remat, record
from vit_jax.models.layers.attention import AttentionImpl, attention_weights
from vit_jax.models.layers.block import Block, PreNormBlock, SelfAttention, remat

Pair = tuple[int, int]
# Added to logits of padding and of other windows; finite, so that a row of them alone is no NaN.
_MASKED = -1e30


class WindowLayout(NamedTuple):
    """Which tokens of one block see each other.

    Attributes:
        grid: (rows, columns) of the patches.
        window: (rows, columns) of a window, at most the grid's.
        num_prefix: tokens before the patches.
    """

    grid: Pair
    window: Pair
    num_prefix: int

    @property
    def padding(self) -> Pair:
        """Rows below and columns to the right of the grid that fill the last windows."""
        down, right = (-side % own for side, own in zip(self.grid, self.window, strict=True))
        return down, right

    def split(self, x: Float[Array, "B h N d"]) -> Float[Array, "B M n d"]:
        """Cut patches into windows; each window of a head is a head of its own, heads lead."""
        (rows, columns), (p, q), (down, right) = self.grid, self.window, self.padding
        x = x.reshape(*x.shape[:2], rows, columns, x.shape[-1])
        x = jnp.pad(x, ((0, 0), (0, 0), (0, down), (0, right), (0, 0)))
        return rearrange(x, "b h (y p) (x q) d -> b (h y x) (p q) d", p=p, q=q)

    def join(self, x: Float[Array, "B M n d"], heads: int) -> Float[Array, "B h N d"]:
        """Undo `split`."""
        (rows, columns), (p, q), (down, _) = self.grid, self.window, self.padding
        pattern = "b (h y x) (p q) d -> b h (y p) (x q) d"
        x = rearrange(x, pattern, p=p, q=q, h=heads, y=(rows + down) // p)
        return x[:, :, :rows, :columns].reshape(*x.shape[:2], rows * columns, x.shape[-1])

    def spread(self, x: Float[Array, "B h P d"]) -> Float[Array, "B M P d"]:
        """Copy the tokens before the patches to every window."""
        (p, q), (down, right) = self.window, self.padding
        count = (self.grid[0] + down) // p * ((self.grid[1] + right) // q)
        return jnp.repeat(x, count, axis=1)

    def padding_bias(self, heads: int) -> Float[np.ndarray, "1 M 1 n"] | None:
        """Return what hides the padding from a window and its prefix; None without padding."""
        if not any(self.padding):
            return None
        ends = [(0, by) for by in self.padding]
        is_patch = np.pad(np.ones(self.grid, bool), ends)
        is_patch = rearrange(
            is_patch, "(y p) (x q) -> (y x) (p q)", p=self.window[0], q=self.window[1]
        )
        is_token = np.pad(is_patch, ((0, 0), (self.num_prefix, 0)), constant_values=True)
        bias = np.where(is_token, 0.0, _MASKED).astype(np.float32)
        return np.tile(bias, (heads, 1))[None, :, None]

    def sees(self) -> Bool[np.ndarray, "N N"]:
        """Return which tokens, prefix and patches, each token sees."""
        places = [np.arange(side) // own for side, own in zip(self.grid, self.window, strict=True)]
        window = (places[0][:, None] * self.grid[1] + places[1][None]).reshape(-1)
        same = window[:, None] == window[None]
        before = ((self.num_prefix, 0), (self.num_prefix, 0))
        return np.pad(same, before, constant_values=True)

    def bias(self) -> Float[Array, "1 1 N N"]:
        """Return what gives the attention among all tokens the weights of that within windows."""
        return jnp.where(self.sees(), 0.0, _MASKED).astype(jnp.float32)[None, None]


def pattern(cfg: Any, grid: Pair) -> tuple[Pair | None, ...]:
    """Return the windows of the blocks of one period, None for a global block; () for all global.

    The last block of a period is the global one, as in ViTDet's subsets of blocks.
    """
    if cfg.axial:
        return (1, grid[1]), (grid[0], 1)
    if not cfg.window:
        return ()
    window = min(cfg.window, grid[0]), min(cfg.window, grid[1])
    if not cfg.global_blocks:
        return (window,)
    return *(window,) * (cfg.depth // cfg.global_blocks - 1), None


def check_local(cfg: Any, grid: Pair) -> None:
    """Raise UserError for blocks that do not fill the depth, or a kernel that knows no bias."""
    if cfg.global_blocks and not cfg.window:
        what = f"model.global_blocks={cfg.global_blocks}"
        raise UserError(f"{what} stand between blocks of windows; set model.window, or it to 0")
    if cfg.axial and cfg.window:
        raise UserError(
            "model.axial has rows and columns for windows; set model.window=0", field="model.axial"
        )
    if cfg.axial and cfg.depth % 2:
        raise UserError(
            f"model.axial needs an even model.depth, not {cfg.depth}: rows, columns",
            field="model.axial",
        )
    if cfg.global_blocks and cfg.depth % cfg.global_blocks:
        near = [n for n in range(1, cfg.depth + 1) if cfg.depth % n == 0]
        what = f"model.global_blocks={cfg.global_blocks} must divide model.depth={cfg.depth}"
        raise UserError(f"{what}: {', '.join(map(str, near))}")
    local = [window for window in pattern(cfg, grid) if window]
    if local and cfg.token_merging:
        raise UserError(
            "model.token_merging leaves no grid for windows; set it to 0",
            field="model.token_merging",
        )
    padded = any(any(WindowLayout(grid, window, 0).padding) for window in local)
    if padded and cfg.attention in (AttentionImpl.CUDNN, AttentionImpl.PALLAS):
        raise UserError(
            f"model.attention={cfg.attention} cannot hide the padding of model.window="
            f"{cfg.window}, which does not divide {grid[0]}x{grid[1]} patches; choose auto"
        )


class LocalAttention(SelfAttention):
    """Self-attention of `SelfAttention`'s parameters, within windows."""

    layout: WindowLayout

    @nn.compact
    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        layout, heads, start = self.layout, self.cfg.num_heads, self.layout.num_prefix
        q, k, v = self._heads(x)
        record(self, "weights", lambda: attention_weights(q, k, layout.bias()))
        own, keys, values = (layout.split(each[:, :, start:]) for each in (q, k, v))
        if start:
            keys = jnp.concatenate([layout.spread(k[:, :, :start]), keys], axis=2)
            values = jnp.concatenate([layout.spread(v[:, :, :start]), values], axis=2)
        bias = layout.padding_bias(heads)
        out = self._mix(own, keys, values, None if bias is None else jnp.asarray(bias))
        out = layout.join(out, heads)
        if start:
            out = jnp.concatenate([self._mix(q[:, :, :start], k, v), out], axis=2)
        return self._project(out, x.shape[-1])


class LocalBlock(PreNormBlock):
    """The ViT's block, attending within windows."""

    layout: WindowLayout

    def _attention(self, y: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        return LocalAttention(self.cfg, self.train, self.layout, name="attn")(y)


def local_stack(
    model: nn.Module,
    x: Float[Array, "B N D"],
    rates: Float[Array, "L"],
    cfg: Any,
    grid: Pair,
    num_prefix: int,
    fields: Mapping[str, Any],
) -> Float[Array, "B N D"]:
    """Apply the stacked parameters "blocks" of a bound model, block by block of each period.

    A loop runs over the periods as `stack`, which makes the parameters, runs over blocks.

    Args:
        model: has the parameters and the dropout key.
        x: tokens.
        rates: of stochastic depth, for each block.
        cfg: the model's config, with `pattern`.
        grid: (rows, columns) of the patches.
        num_prefix: tokens before them.
        fields: of every block.
    """
    windows, depth = pattern(cfg, grid), cfg.depth
    unroll = min(cfg.scan_unroll or (depth if cfg.remat is Remat.NONE else 1), depth)
    period, unrolled = len(windows), unroll == depth

    def create(window: Pair | None) -> nn.Module:
        if window is None:
            return remat(Block, cfg.remat, prevent_cse=unrolled)(**fields)
        layout = WindowLayout(grid, window, num_prefix)
        return remat(LocalBlock, cfg.remat, prevent_cse=unrolled)(layout=layout, **fields)

    blocks = [create(window) for window in windows]
    captures = model.is_mutable_collection(CAPTURED)
    key = model.make_rng("dropout") if fields["train"] and model.has_rng("dropout") else None

    def run(x: jax.Array, each: tuple[Any, ...]) -> tuple[jax.Array, list[Any]]:
        params, rates, numbers = each
        seen: list[Any] = []
        for i, block in enumerate(blocks):
            rngs = {} if key is None else {"dropout": jax.random.fold_in(key, numbers[i])}
            layer = {"params": jax.tree.map(lambda leaf, i=i: leaf[i], params)}
            if captures:
                done = block.apply(layer, x, rates[i], rngs=rngs, mutable=[CAPTURED])
                (x, _), state = cast(Any, done)
                seen.append({**state[CAPTURED], "__call__": ((x, None),)})
            else:
                x, _ = cast(Any, block.apply(layer, x, rates[i], rngs=rngs))
        return x, seen

    layers = model.variables["params"]["blocks"], rates, jnp.arange(depth)
    layers = jax.tree.map(lambda leaf: leaf.reshape(-1, period, *leaf.shape[1:]), layers)
    x, seen = jax.lax.scan(run, x, layers, unroll=max(1, unroll // period))
    if captures:

        def join(*leaves: jax.Array) -> jax.Array:
            """From one [periods, ...] for each block of a period to [L, ...]."""
            return jnp.stack(leaves, axis=1).reshape(depth, *leaves[0].shape[1:])

        model.put_variable(CAPTURED, "blocks", jax.tree.map(join, *seen))
    return x
