# SPDX-License-Identifier: Apache-2.0
"""Hiera (arXiv:2306.00989), and its windowed absolute positions (arXiv:2311.05613).

Stages of plain blocks: the first ones attend within mask units, squares of the grid that the last
stage sees as one token each, the others among all tokens. Between stages the queries of each
2 x 2 tokens become their maximum, and the width doubles.
"""

import dataclasses
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.devices.sharding import BATCH_AXES, constrain, constrain_parameter
from vit_jax.errors import UserError
from vit_jax.models import base, facts
from vit_jax.models.base import ModelConfig, Output, record
from vit_jax.models.conv.conv import conv2d
from vit_jax.models.layers.attention import attend, attention_weights
from vit_jax.models.layers.block import remat
from vit_jax.models.layers.dense import Dense, HeadsDense, classifier, spread
from vit_jax.models.layers.drop import DropPathRule, drop_path, drop_path_rates
from vit_jax.models.layers.init import POS_EMBED, RULES, Init, Initializer
from vit_jax.models.layers.mlp import Gelu, Mlp
from vit_jax.models.layers.norm import LayerScale, layer_norm
from vit_jax.models.layers.posemb import resample
from vit_jax.settings.fields import value

_HEAD_SCALE = 1e-3  # of the head's initial values, as the authors'


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class HieraConfig(ModelConfig):
    """A Hiera; the defaults are Hiera-B. Fields not listed are as in `ViTConfig`.

    Attributes:
        stem_kernel, stem_stride: sides of the first convolution's kernel, odd, and of its stride,
            in pixels; it pads half of the kernel.
        dim: width of the first stage; each later stage doubles it.
        depths, num_heads: blocks and heads of each stage.
        local_stages: how many stages attend within mask units, squares of 2^(stages - 1) tokens.
            The first block of a stage attends as the stage before it.
        mlp_ratio: hidden width of the MLP over the stage's, rounded down.
        global_grid: (rows, columns) of a table of positions that is resized to the grid, bicubic
            and antialiased, and added to one that all mask units share; () for one table of the
            grid.
        expand: the residual of a stage's first block is the maximum of a linear layer's output,
            not the maximum and the mean side by side.
    """

    stem_kernel: int = value(7, least=1, unit="pixels")
    stem_stride: int = value(4, least=1, unit="pixels")
    dim: int = value(96, least=1)
    depths: tuple[int, ...] = value((2, 3, 16, 3), least=1)
    num_heads: tuple[int, ...] = value((1, 2, 4, 8), least=1)
    local_stages: int = value(2, least=0)
    mlp_ratio: float = 4.0
    global_grid: tuple[int, ...] = value((), least=1)
    expand: bool = True
    layer_scale: float = 0.0
    gelu: Gelu = Gelu.ERF
    norm_eps: float = 1e-6
    drop_path_rate: float = value(0.0, least=0, below=1)
    drop_path_rule: DropPathRule = DropPathRule.LINEAR
    init: Init = Init.TIMM


def _unit(cfg: HieraConfig) -> int:
    """Return the side of a mask unit in tokens of the first stage."""
    return 2 ** (len(cfg.depths) - 1)


def validate(cfg: HieraConfig) -> None:
    """Raise UserError for fields that do not go together."""
    base.check_stages(cfg.depths, cfg.dim, cfg.num_heads)
    stages = len(cfg.depths)
    if cfg.stem_kernel % 2 == 0 or cfg.stem_stride > cfg.stem_kernel:
        raise UserError(
            f"model.stem_kernel={cfg.stem_kernel} must be odd and no smaller than "
            f"model.stem_stride={cfg.stem_stride}",
            field="model.stem_kernel",
        )
    if cfg.local_stages > stages:
        raise UserError(f"model.local_stages={cfg.local_stages} is more than {stages} stages")
    if int(cfg.dim * cfg.mlp_ratio) < 1:
        raise UserError(f"model.mlp_ratio={cfg.mlp_ratio} leaves the MLP no width")
    if cfg.global_grid:
        base.pair(cfg.global_grid, "global_grid")
    _grids(cfg, base.pair(cfg.image_size, "image_size"))


def _grids(cfg: HieraConfig, image_size: facts.Grid) -> list[facts.Grid]:
    """Return the (rows, columns) of each stage's tokens.

    Raises UserError: the image is no whole number of mask units.
    """
    side = cfg.stem_stride * _unit(cfg)
    if image_size[0] % side or image_size[1] % side:
        near = tuple(max(1, round(s / side)) * side for s in image_size)
        raise UserError(
            f"model.image_size={image_size} is no multiple of a mask unit's {side} pixels; the "
            f"nearest image_size that is one is {near}",
            field="model.image_size",
        )
    rows, columns = (s // cfg.stem_stride for s in image_size)
    return [(rows // 2**i, columns // 2**i) for i in range(len(cfg.depths))]


def _order(grid: facts.Grid, halvings: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape in which a grid's sides are split, and the order of the units' tokens.

    Axes 0 and last are the batch and the channels. In the order the units come first, row by row;
    then, for each pool to come, the 2 x 2 tokens that it joins, those of the next pool slowest.
    """
    side = 2**halvings
    bits = (2,) * halvings
    shape = (grid[0] // side, *bits, grid[1] // side, *bits)
    down, right = 1, 2 + halvings  # of units; the bits of a place follow, the finest last
    pools = ((down + halvings - i, right + halvings - i) for i in range(halvings))
    order = (0, down, right, *itertools.chain(*pools), 3 + 2 * halvings)
    return shape, order


def to_units(x: Float[Array, "B H W C"], halvings: int) -> Float[Array, "B M T C"]:
    """Return the M mask units of a map, row by row, each of T = 4^halvings tokens.

    Tokens are in such an order that the maximum of each 2 x 2 is one of four strided slices, which
    is a reshape, as often as `halvings` says.
    """
    batch, rows, columns, width = x.shape
    shape, order = _order((rows, columns), halvings)
    x = x.reshape(batch, *shape, width).transpose(order)
    return x.reshape(batch, -1, 4**halvings, width)


def to_map(x: Float[Array, "B M T C"], grid: facts.Grid) -> Float[Array, "B H W C"]:
    """Undo `to_units`. XLA cancels it with the next stage's."""
    batch, _, tokens, width = x.shape
    halvings = int(math.log2(tokens)) // 2
    shape, order = _order(grid, halvings)
    split = (batch, *shape, width)
    x = x.reshape([split[axis] for axis in order])
    back = sorted(range(len(order)), key=order.__getitem__)
    return x.transpose(back).reshape(batch, *grid, width)


def _pooled(x: Float[Array, "*lead T C"]) -> Float[Array, "*lead U C"]:
    """Return the maximum of each four tokens that the next pool joins."""
    return largest(_fours(x))


def _fours(x: Float[Array, "*lead T C"]) -> Float[Array, "*lead 4 U C"]:
    return x.reshape(*x.shape[:-2], 4, x.shape[-2] // 4, x.shape[-1])


@jax.custom_vjp
def largest(x: Float[Array, "*lead 4 U C"]) -> Float[Array, "*lead U C"]:
    """Return the maximum of four arrays; the first of equal numbers gets the gradient.

    Autodiff's gradient of a maximum asks which numbers equal it, and divides by how many do. XLA
    may compute the numbers a second time, rounded otherwise: then none do, and 0 / 0 is NaN. Here
    the backward pass keeps the answers of three comparisons.
    """
    return _largest(x)[0]


def _largest(x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    a, b, c, d = (x[..., i, :, :] for i in range(4))
    left, right = a >= b, c >= d
    ab, cd = jnp.where(left, a, b), jnp.where(right, c, d)
    first = ab >= cd
    return jnp.where(first, ab, cd), (left, right, first)


def _largest_backward(kept: tuple[jax.Array, ...], dy: jax.Array) -> tuple[jax.Array]:
    left, right, first = kept
    hits = (first & left, first & ~left, ~first & right, ~first & ~right)
    return (jnp.stack([jnp.where(hit, dy, jnp.zeros_like(dy)) for hit in hits], axis=-3),)


largest.defvjp(_largest, _largest_backward)


def _over(rule: Initializer, divisor: float) -> Initializer:
    """Return the initial values of a rule divided by a number."""
    return lambda *args, **kwargs: rule(*args, **kwargs) / divisor


class UnitAttention(nn.Module):
    """Self-attention within each mask unit or among all tokens, of pooled queries if so asked.

    Columns of the qkv kernel are ordered as in `SelfAttention`.
    """

    features: int
    num_heads: int
    is_local: bool
    pools: bool
    proj_init: Initializer
    init_rules: Init
    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "B M T C"]) -> Float[Array, "B M U D"]:
        batch, units, tokens, width = x.shape
        heads, dim = self.num_heads, self.features // self.num_heads
        # The units of an image are examples of their own, or their tokens one sequence.
        lead, length = (batch * units, tokens) if self.is_local else (batch, units * tokens)
        qkv = RULES[self.init_rules].qkv(3)
        layer = HeadsDense(3 * self.features, self.dtype, qkv, num_heads=heads, name="qkv")
        q, k, v = layer(x.reshape(lead, length, width))
        left = tokens // 4 if self.pools else tokens
        if self.pools:
            q = _pooled(q.reshape(lead, heads, -1, tokens, dim)).reshape(lead, heads, -1, dim)
        record(self, "weights", lambda: self._by_unit(attention_weights(q, k), units))
        out = attend(q, k, v).swapaxes(1, 2).reshape(batch, units, left, self.features)
        return Dense(self.features, self.dtype, self.proj_init, name="proj")(out)

    def _by_unit(self, weights: Float[Array, "L h N K"], units: int) -> jax.Array:
        if not self.is_local:
            return weights
        return weights.reshape(-1, units, *weights.shape[1:])


class HieraBlock(nn.Module):
    """x += attention(norm(x)); x += mlp(norm(x)), with LayerScale and stochastic depth.

    `expands`: the block halves both sides of the grid and doubles the width.
    """

    cfg: HieraConfig
    num_heads: int
    is_local: bool
    expands: bool
    number: int  # of the block in the network, from 1: initial values shrink with it
    drop_path_rate: float
    train: bool

    @nn.compact
    def __call__(self, x: Float[Array, "B M T C"]) -> Float[Array, "B M U D"]:
        cfg, dtype = self.cfg, base.compute_dtype(self.cfg)
        linear = RULES[cfg.init].linear
        last = _over(linear, math.sqrt(2 * self.number))  # timm's fix_init_weight
        width = x.shape[-1] * (2 if self.expands else 1)
        y = layer_norm(cfg.norm_eps, dtype, "norm1")(x.reshape(-1, x.shape[-1]))
        y = y.reshape(x.shape)
        if self.expands and cfg.expand:
            x = _pooled(Dense(width, dtype, linear, name="expand")(y))
        elif self.expands:
            x = jnp.concatenate([_pooled(x), _fours(x).mean(axis=-3)], axis=-1)
        sizes = (width, self.num_heads, self.is_local, self.expands)
        y = UnitAttention(*sizes, last, cfg.init, dtype, name="attn")(y)
        flat = x.reshape(-1, width)  # as in PreNormBlock
        flat = flat + self._branch(y, "ls1").reshape(flat.shape)
        y = layer_norm(cfg.norm_eps, dtype, "norm2")(flat)
        hidden = int(width * cfg.mlp_ratio)
        y = Mlp(hidden, cfg.gelu, cfg.init, dtype, last_init=last, name="mlp")(y)
        flat = flat + self._branch(y.reshape(x.shape), "ls2").reshape(flat.shape)
        return constrain(flat.reshape(x.shape), BATCH_AXES)

    def _branch(self, y: Float[Array, "B M T D"], name: str) -> Float[Array, "B N D"]:
        y = y.reshape(y.shape[0], -1, y.shape[-1])
        if self.cfg.layer_scale:
            y = LayerScale(self.cfg.layer_scale, name=name)(y)
        if not self.train or not self.drop_path_rate:
            return y
        return drop_path(y, self.drop_path_rate, self.make_rng("dropout"))


class HieraStage(nn.Module):
    """Blocks of one width; the first of a stage after the first halves both sides of the grid."""

    cfg: HieraConfig
    index: int
    drop_path_rates: tuple[float, ...]
    train: bool

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B P Q D"]:
        cfg, rows, columns = self.cfg, x.shape[1], x.shape[2]
        # A stage after the first begins with the tokens of the one before.
        left = len(cfg.depths) - 1 - max(self.index - 1, 0)
        x = to_units(x, left)
        block = remat(HieraBlock, cfg.remat)
        before = sum(cfg.depths[: self.index])
        for i, rate in enumerate(self.drop_path_rates):
            expands = i == 0 and self.index > 0
            is_local = (self.index - 1 if expands else self.index) < cfg.local_stages
            fields = (cfg.num_heads[self.index], is_local, expands, before + i + 1, rate)
            x = block(cfg, *fields, self.train, name=f"block{i}")(x)
        halved = 2 if self.index else 1
        return to_map(x, (rows // halved, columns // halved))


class ConvPatchEmbed(nn.Module):
    """A convolution whose patches overlap; kernel [k, k, C, D] and bias [D], float32."""

    features: int
    kernel_size: int
    stride: int
    init_rules: Init
    dtype: Any

    @nn.compact
    def __call__(self, image: Float[Array, "B H W C"]) -> Float[Array, "B P Q D"]:
        rules, k = RULES[self.init_rules], self.kernel_size
        shape = (k, k, image.shape[-1], self.features)
        kernel = jnp.asarray(self.param("kernel", rules.patch_kernel, shape, jnp.float32))
        kernel = constrain_parameter(kernel, f"{self.name}/kernel")
        bias_init = rules.patch_bias(math.prod(shape[:-1]))
        bias = jnp.asarray(self.param("bias", bias_init, (self.features,), jnp.float32))
        x = conv2d(image.astype(self.dtype), kernel, stride=self.stride)
        return x + spread(bias, x.shape, self.dtype)


class Hiera(nn.Module):
    """Hiera over [B, H, W, C] images, already normalised."""

    cfg: HieraConfig

    @nn.compact
    def __call__(self, image: Float[Array, "B H W C"], *, train: bool = False) -> Output:
        cfg, dtype = self.cfg, base.compute_dtype(self.cfg)
        base.check_input(image, base.pair(cfg.image_size, "image_size"), cfg.channels)
        stem = (cfg.dim, cfg.stem_kernel, cfg.stem_stride, cfg.init, dtype)
        x = ConvPatchEmbed(*stem, name="patch_embed")(image)
        table = self._positions((x.shape[1], x.shape[2]))
        x = constrain(x + spread(table, x.shape, dtype), BATCH_AXES)
        rates = drop_path_rates(cfg.drop_path_rate, sum(cfg.depths), cfg.drop_path_rule).tolist()
        for i, depth in enumerate(cfg.depths):
            own, rates = tuple(rates[:depth]), rates[depth:]
            x = HieraStage(cfg, i, own, train, name=f"stage{i}")(x)
        tokens = x.reshape(x.shape[0], -1, x.shape[-1])
        mean = tokens.mean(axis=1, dtype=jnp.float32)
        norm = layer_norm(cfg.norm_eps, jnp.float32, "fc_norm")
        features = norm(mean)
        record(self, "map", lambda: features[:, None, None] + self._apart(x, mean, norm))
        head = _over(RULES[cfg.init].linear, 1 / _HEAD_SCALE)
        return Output(logits=classifier(cfg, head)(features), features=features, tokens=tokens)

    def _apart(self, x: jax.Array, mean: jax.Array, norm: nn.Module) -> Float[Array, "B P Q D"]:
        """Return what each place adds to the features, which are the mean over the places."""
        scale = norm.variables["params"]["scale"]
        rstd = jax.lax.rsqrt(mean.var(axis=-1, keepdims=True) + self.cfg.norm_eps)
        factor = (rstd * scale[None])[:, None, None]
        return (x.astype(jnp.float32) - mean[:, None, None]) * factor

    def _positions(self, grid: facts.Grid) -> Float[Array, "1 H W D"]:
        cfg, unit = self.cfg, _unit(self.cfg)
        if not cfg.global_grid:
            shape = (1, grid[0] * grid[1], cfg.dim)
            table = self.param("pos_embed", POS_EMBED, shape, jnp.float32)
            return jnp.asarray(table).reshape(1, *grid, cfg.dim)
        own = base.pair(cfg.global_grid, "global_grid")
        shape = (1, *own, cfg.dim)
        whole = self.param("pos_embed_global", POS_EMBED, shape, jnp.float32)
        whole = resample(jnp.asarray(whole).reshape(1, -1, cfg.dim), 0, own, grid)
        shape = (1, unit, unit, cfg.dim)
        window = self.param("pos_embed_window", POS_EMBED, shape, jnp.float32)
        tiled = jnp.tile(jnp.asarray(window), (1, grid[0] // unit, grid[1] // unit, 1))
        return jnp.asarray(whole).reshape(1, *grid, cfg.dim) + tiled


def _timm(cfg: HieraConfig) -> facts.Timm:
    stages = len(cfg.depths)
    args: dict[str, Any] = {
        "img_size": list(base.pair(cfg.image_size, "image_size")),
        "num_heads": cfg.num_heads[0],
        "q_pool": stages - 1,
        "mask_unit_attn": [i < cfg.local_stages for i in range(stages)],
        "init_values": cfg.layer_scale or None,
        "abs_win_pos_embed": bool(cfg.global_grid),
    }
    if _unit(cfg) != 8:
        args["mask_unit_size"] = [_unit(cfg)] * 2
    if (cfg.stem_kernel, cfg.stem_stride) != (7, 4):
        sides = {
            "kernel": cfg.stem_kernel,
            "stride": cfg.stem_stride,
            "padding": cfg.stem_kernel // 2,
        }
        args |= {f"patch_{name}": [side] * 2 for name, side in sides.items()}
    if cfg.global_grid:
        args["global_pos_size"] = list(base.pair(cfg.global_grid, "global_grid"))
    names = {"embed_dim": "dim", "stages": "depths", "use_expand_proj": "expand"}
    args |= facts.timm_args(cfg, "mlp_ratio", **names)
    return facts.Timm("hiera_base_224", args, {"gelu": Gelu.ERF, "norm_eps": 1e-6})


def _timm_lacks(cfg: HieraConfig) -> str:
    doubled = tuple(cfg.num_heads[0] * 2**i for i in range(len(cfg.depths)))
    if cfg.num_heads == doubled:
        return ""
    return f"model.num_heads={cfg.num_heads}: its heads double with the width, as {doubled}"


def _timm_names(cfg: HieraConfig) -> tuple[facts.Rename, ...]:
    # timm numbers the blocks of all stages in one list.
    def number(found: Any) -> str:
        return f"blocks/{sum(cfg.depths[: int(found[1])]) + int(found[2])}/"

    return ((r"^stage(\d+)/block(\d+)/", number), *facts.names("Hiera", "timm"))


FAMILY = facts.Family(
    config=HieraConfig,
    module=Hiera,
    variants=facts.variants(HieraConfig),
    validate=validate,
    grids=_grids,
    images=lambda cfg: facts.Images(crop=0.9, large_crop=0.95),
    timm=_timm,
    timm_names=_timm_names,
    timm_lacks=_timm_lacks,
    official_names=facts.names("Hiera", "official"),
)
