# SPDX-License-Identifier: Apache-2.0
"""Swin Transformer (arXiv:2103.14030), and the sizes that AutoFormerV2 searched (arXiv:2111.14725).

Attention stays within windows, shifted in every other block; between stages each 2 x 2 tokens
become one of twice the width.
"""

import dataclasses

import jax.numpy as jnp
from einops import rearrange
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.devices.sharding import BATCH_AXES, constrain
from vit_jax.errors import UserError
from vit_jax.models import base, facts
from vit_jax.models.base import ModelConfig, Output
from vit_jax.models.layers.block import remat
from vit_jax.models.layers.dense import Dense, classifier
from vit_jax.models.layers.drop import Dropout, DropPathRule, drop_path, drop_path_rates
from vit_jax.models.layers.init import RULES, Init
from vit_jax.models.layers.mlp import Gelu, Mlp
from vit_jax.models.layers.norm import layer_norm
from vit_jax.models.layers.patch import PatchEmbed
from vit_jax.models.layers.window import WindowAttention, fit_window
from vit_jax.settings.fields import value


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class SwinConfig(ModelConfig):
    """A Swin Transformer; the defaults are Swin-T. Fields not listed are as in `ViTConfig`.

    Attributes:
        dim: width of the first stage; each later stage doubles it.
        depths, num_heads: blocks and heads of each stage.
        window: side of the square windows in tokens, (W,); (rows, columns) of the windows of all
            stages; or with more than two stages, one side for each.
        mlp_ratio: hidden width of the MLP over the stage's, rounded down.
        dropout_rate: after the patch embedding, the attention and both MLP layers.
    """

    patch: tuple[int, ...] = (4, 4)
    dim: int = value(96, least=1)
    depths: tuple[int, ...] = value((2, 2, 6, 2), least=1)
    num_heads: tuple[int, ...] = value((3, 6, 12, 24), least=1)
    window: tuple[int, ...] = value((7,), least=1)
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    gelu: Gelu = Gelu.ERF
    norm_eps: float = 1e-5
    dropout_rate: float = value(0.0, least=0, below=1)
    attention_dropout_rate: float = value(0.0, least=0, below=1)
    drop_path_rate: float = value(0.0, least=0, below=1)
    drop_path_rule: DropPathRule = DropPathRule.LINEAR
    init: Init = Init.TIMM


def validate(cfg: SwinConfig) -> None:
    """Raise UserError for fields that do not go together."""
    base.patch_grid(cfg)
    base.check_stages(cfg.depths, cfg.dim, cfg.num_heads)
    stages = len(cfg.depths)
    if len(cfg.window) not in (1, 2, stages):
        must = f"hold one number, two (rows, columns), or one for each of the {stages} stages"
        raise UserError(f"model.window={cfg.window} must {must}")
    if int(cfg.dim * cfg.mlp_ratio) < 1:
        raise UserError(f"model.mlp_ratio={cfg.mlp_ratio} leaves the MLP no width")


def _stage_windows(cfg: SwinConfig) -> list[facts.Grid]:
    """Return the (rows, columns) of each stage's windows, before they are fitted to its grid."""
    if len(cfg.window) <= 2:
        return [base.pair(cfg.window, "window")] * len(cfg.depths)
    return [(side, side) for side in cfg.window]


class SwinBlock(nn.Module):
    """x += attention(norm(x)); x += mlp(norm(x)) over a grid of tokens, with stochastic depth."""

    cfg: SwinConfig
    num_heads: int
    window: tuple[int, int]
    shifted: bool
    drop_path_rate: float
    train: bool

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B H W C"]:
        cfg, dtype = self.cfg, base.compute_dtype(self.cfg)
        window, shift = fit_window((x.shape[1], x.shape[2]), self.window, shifted=self.shifted)
        flat = x.reshape(-1, x.shape[-1])  # as in PreNormBlock
        y = layer_norm(cfg.norm_eps, dtype, "norm1")(flat)
        sizes = {"window": window, "shift": shift, "num_heads": self.num_heads}
        rules = {"init_rules": cfg.init, "dtype": dtype, "qkv_bias": cfg.qkv_bias}
        dropout = {"dropout_rate": cfg.attention_dropout_rate, "train": self.train}
        attention = WindowAttention(**sizes, **rules, **dropout, name="attn")
        y = attention(y.reshape(x.shape))
        y = Dropout(cfg.dropout_rate, deterministic=not self.train)(y)
        flat = flat + self._drop_path(y).reshape(flat.shape)
        y = layer_norm(cfg.norm_eps, dtype, "norm2")(flat)
        hidden = int(x.shape[-1] * cfg.mlp_ratio)
        y = Mlp(hidden, cfg.gelu, cfg.init, dtype, cfg.dropout_rate, self.train, name="mlp")(y)
        flat = flat + self._drop_path(y.reshape(x.shape)).reshape(flat.shape)
        return constrain(flat.reshape(x.shape), BATCH_AXES)

    def _drop_path(self, y: Float[Array, "B H W C"]) -> Float[Array, "B H W C"]:
        if not self.train or not self.drop_path_rate:
            return y
        return drop_path(y, self.drop_path_rate, self.make_rng("dropout"))


class PatchMerging(nn.Module):
    """Make one token of twice the width from each 2 x 2; pad an odd side with zeros."""

    cfg: SwinConfig

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B P Q E"]:
        cfg, dtype, (height, width, dim) = self.cfg, base.compute_dtype(self.cfg), x.shape[1:]
        x = jnp.pad(x, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)))
        # The authors' order of the four is down first: (0, 0), (1, 0), (0, 1), (1, 1).
        x = rearrange(x, "b (p down) (q right) c -> b p q (right down c)", down=2, right=2)
        x = layer_norm(cfg.norm_eps, dtype, "norm")(x)
        linear = RULES[cfg.init].linear
        return Dense(2 * dim, dtype, linear, use_bias=False, name="reduction")(x)


class SwinStage(nn.Module):
    """Blocks over one grid, every other one shifted; stages after the first begin with a merge."""

    cfg: SwinConfig
    index: int
    drop_path_rates: tuple[float, ...]
    train: bool

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B P Q E"]:
        cfg = self.cfg
        if self.index:
            x = PatchMerging(cfg, name="merge")(x)
        block = remat(SwinBlock, cfg.remat)
        sizes = (cfg.num_heads[self.index], _stage_windows(cfg)[self.index])
        for i, rate in enumerate(self.drop_path_rates):
            x = block(cfg, *sizes, i % 2 == 1, rate, self.train, name=f"block{i}")(x)
        return x


class Swin(nn.Module):
    """Swin Transformer over [B, H, W, C] images, already normalised."""

    cfg: SwinConfig

    @nn.compact
    def __call__(self, image: Float[Array, "B H W C"], *, train: bool = False) -> Output:
        cfg, dtype = self.cfg, base.compute_dtype(self.cfg)
        size, patch = base.pair(cfg.image_size, "image_size"), base.pair(cfg.patch, "patch")
        base.check_input(image, size, cfg.channels)
        x = PatchEmbed(patch, cfg.dim, cfg.init, dtype, name="patch_embed")(image)
        x = layer_norm(cfg.norm_eps, dtype, "patch_norm")(x)
        x = Dropout(cfg.dropout_rate, deterministic=not train)(x)
        x = constrain(x.reshape(x.shape[0], *base.grid(size, patch), cfg.dim), BATCH_AXES)
        rates = drop_path_rates(cfg.drop_path_rate, sum(cfg.depths), cfg.drop_path_rule).tolist()
        for i, depth in enumerate(cfg.depths):
            own, rates = tuple(rates[:depth]), rates[depth:]
            x = SwinStage(cfg, i, own, train, name=f"stage{i}")(x)
        x = layer_norm(cfg.norm_eps, dtype, "norm")(x)
        tokens = x.reshape(x.shape[0], -1, x.shape[-1])
        features = tokens.mean(axis=1, dtype=jnp.float32)
        logits = classifier(cfg, RULES[cfg.init].linear)(features)
        return Output(logits=logits, features=features, tokens=tokens)


def _grids(cfg: SwinConfig, image_size: facts.Grid) -> list[facts.Grid]:
    rows, columns = base.patch_grid(cfg, image_size)
    return [(-(-rows // 2**i), -(-columns // 2**i)) for i in range(len(cfg.depths))]


def _windows(cfg: SwinConfig) -> list[facts.Grid]:
    """Return the (rows, columns) of each stage's windows, fitted to its grid of tokens."""
    grids = _grids(cfg, base.pair(cfg.image_size, "image_size"))
    pairs = zip(grids, _stage_windows(cfg), strict=True)
    return [fit_window(grid, window, shifted=False)[0] for grid, window in pairs]


def _timm(cfg: SwinConfig) -> facts.Timm:
    window = cfg.window if len(cfg.window) > 2 else base.pair(cfg.window, "window")
    args = facts.patch_args(cfg)
    args |= facts.timm_args(cfg, "depths", "num_heads", "mlp_ratio", "qkv_bias", embed_dim="dim")
    args["window_size"] = list(window)
    fixed = {"gelu": Gelu.ERF, "norm_eps": 1e-5}
    return facts.Timm("swin_tiny_patch4_window7_224", args, fixed)


FAMILY = facts.Family(
    config=SwinConfig,
    module=Swin,
    variants=facts.variants(SwinConfig),
    validate=validate,
    grids=_grids,
    windows=_windows,
    images=lambda cfg: facts.Images(crop=0.9),
    timm=_timm,
    timm_names=lambda cfg: facts.names("Swin", "timm"),
    official_names=facts.names("Swin", "official"),
)
