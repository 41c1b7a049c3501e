# SPDX-License-Identifier: Apache-2.0
"""ConvNeXt (arXiv:2201.03545) and ConvNeXt V2 (arXiv:2301.00808): convolutions in a ViT's manner.

A block is a depthwise 7x7 convolution, a norm and an MLP over the channels of each place; between
stages each 2 x 2 places become one. DINOv3 (arXiv:2508.10104) and EUPE publish encoders of it.
"""

import dataclasses
import enum
import math
from typing import Any

import jax
import jax.numpy as jnp
from einops import rearrange
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.devices.sharding import BATCH_AXES, constrain, constrain_parameter
from vit_jax.errors import UserError
from vit_jax.models import base, facts
from vit_jax.models.base import ModelConfig, Output, record
from vit_jax.models.conv.conv import conv2d
from vit_jax.models.layers.block import stack
from vit_jax.models.layers.dense import Dense, classifier, matmul, spread
from vit_jax.models.layers.drop import Dropout, DropPathRule, drop_path, drop_path_rates
from vit_jax.models.layers.init import RULES, Init
from vit_jax.models.layers.mlp import Gelu, gelu
from vit_jax.models.layers.norm import LayerScale, RMSNorm, layer_norm
from vit_jax.settings.fields import value

_KERNEL = 7  # of the depthwise convolutions
_STRIDE = 4  # of the stem
_RATIO = 4  # of the MLP's width over the stage's
_NORMAL = RULES[Init.TIMM].linear  # of every kernel, as the authors have it; biases start at zero
_GRN_EPS = 1e-6


class ConvStem(enum.StrEnum):
    """How an image becomes a map of a quarter of its sides."""

    PATCH = "patch"  # a 4x4 convolution of stride 4
    OVERLAP = "overlap"  # two 3x3 convolutions of stride 2
    OVERLAP_TIERED = "overlap_tiered"  # the first of them half as wide
    OVERLAP_ACT = "overlap_act"  # a GELU between them


class ChannelNorm(enum.StrEnum):
    """How every norm of a ConvNeXt treats the channels of a place."""

    LAYER = "layer"  # mean 0, variance 1; scale and bias
    RMS = "rms"  # mean square 1; scale
    SIMPLE = "simple"  # variance 1, the mean is kept; scale (timm's SimpleNorm)


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class ConvNeXtConfig(ModelConfig):
    """A ConvNeXt; the defaults are ConvNeXt-T. Fields not listed are as in `ViTConfig`.

    Attributes:
        depths, widths: blocks and channels of each stage.
        stem: how the image becomes the first stage's map.
        norm: of the channels, everywhere.
        grn: global response normalisation in the MLPs (V2).
        layer_scale: its initial value; 0 for none (V2).
        norm_first: the last norm comes before the mean over the places, not after it.
        head_norm_eps: of the last norm.
        pre_logits_dim: width of a linear layer and a GELU before the head; 0 for none.
        conv_mlp: timm holds the MLPs as 1x1 convolutions, which compute the same.
        dropout_rate: before the head.
    """

    depths: tuple[int, ...] = value((3, 3, 9, 3), least=1)
    widths: tuple[int, ...] = value((96, 192, 384, 768), least=1)
    stem: ConvStem = ConvStem.PATCH
    norm: ChannelNorm = ChannelNorm.LAYER
    gelu: Gelu = Gelu.ERF
    grn: bool = False
    layer_scale: float = value(1e-6, least=0, note="0 is none")
    norm_first: bool = False
    norm_eps: float = 1e-6
    head_norm_eps: float = value(1e-6, least=0)
    pre_logits_dim: int = value(0, least=0)
    conv_mlp: bool = False
    dropout_rate: float = value(0.0, least=0, below=1)
    drop_path_rate: float = value(0.0, least=0, below=1)


def validate(cfg: ConvNeXtConfig) -> None:
    """Raise UserError for fields that do not go together."""
    size = base.pair(cfg.image_size, "image_size")
    if not cfg.depths or len(cfg.depths) != len(cfg.widths):
        raise UserError(
            f"model.depths={cfg.depths} and model.widths={cfg.widths} need a number for each stage"
        )
    if not min(_grids(cfg, size)[-1]):
        least = _STRIDE * 2 ** (len(cfg.depths) - 1)
        raise UserError(
            f"model.image_size={size}: {len(cfg.depths)} stages leave nothing of it; give at least "
            f"{least} pixels a side"
        )
    if cfg.norm_first and cfg.pre_logits_dim:
        raise UserError("model.norm_first has no model.pre_logits_dim; set that to 0")


class BiasedConv(nn.Module):
    """Convolution with bias; a strided one of even sides leaves out what its patches do not cover.

    kernel [k, k, in / groups, out] and bias [out] in float32, computed in `dtype`.
    """

    features: int
    kernel_size: int
    dtype: Any
    stride: int = 1
    depthwise: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "B H W I"]) -> Float[Array, "B P Q O"]:
        k, groups = self.kernel_size, x.shape[-1] if self.depthwise else 1
        shape = (k, k, x.shape[-1] // groups, self.features)
        kernel = jnp.asarray(self.param("kernel", _NORMAL, shape, jnp.float32))
        kernel = constrain_parameter(kernel, f"{self.name}/kernel")
        bias = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)
        x = x.astype(self.dtype)
        if k == self.stride:  # patches: one matmul, as in PatchEmbed
            rows, columns = (side // k for side in x.shape[1:3])
            x = rearrange(
                x[:, : rows * k, : columns * k], "b (y p) (x q) c -> (b y x) (p q c)", p=k, q=k
            )
            y = matmul(x, kernel.reshape(-1, self.features))
            y = y.reshape(-1, rows, columns, self.features)
        else:
            y = conv2d(x, kernel, stride=self.stride, groups=groups)
        return y + spread(jnp.asarray(bias), y.shape, self.dtype)


class SimpleNorm(nn.Module):
    """Divide by the deviation of the last axis, unbiased; a scale [D], float32."""

    epsilon: float
    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "*lead D"]) -> Float[Array, "*lead D"]:
        scale = jnp.asarray(self.param("scale", nn.initializers.ones, (x.shape[-1],), jnp.float32))
        wide = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
        factor = _inverse_deviation(wide, ChannelNorm.SIMPLE, self.epsilon)
        return (wide * factor * scale[None]).astype(self.dtype).reshape(x.shape)


def _inverse_deviation(
    x: Float[Array, "T D"], kind: ChannelNorm, epsilon: float
) -> Float[Array, "T 1"]:
    """Return what a norm multiplies each vector by."""
    if kind is ChannelNorm.RMS:
        return jax.lax.rsqrt(jnp.square(x).mean(axis=1, keepdims=True) + epsilon)
    unbiased = int(kind is ChannelNorm.SIMPLE)
    return jax.lax.rsqrt(x.var(axis=1, keepdims=True, ddof=unbiased) + epsilon)


def _norm(cfg: ConvNeXtConfig, name: str, epsilon: float, dtype: Any) -> nn.Module:
    if cfg.norm is ChannelNorm.LAYER:
        return layer_norm(epsilon, dtype, name)
    kind = RMSNorm if cfg.norm is ChannelNorm.RMS else SimpleNorm
    return kind(epsilon, dtype, name=name)


class GlobalResponseNorm(nn.Module):
    """x += bias + scale * x * n, n a channel's norm over all places over the channels' mean of it.

    arXiv:2301.00808 section 3.1; scale and bias [C], float32, start at zero.
    """

    @nn.compact
    def __call__(self, x: Float[Array, "B N C"]) -> Float[Array, "B N C"]:
        zeros, shape = nn.initializers.zeros, (x.shape[-1],)
        scale = jnp.asarray(self.param("scale", zeros, shape, jnp.float32))
        bias = jnp.asarray(self.param("bias", zeros, shape, jnp.float32))
        squares = jnp.square(x.astype(jnp.float32)).sum(axis=1, keepdims=True)
        # A GELU may leave zeros alone in a channel, where the root has no slope.
        some = squares > 0
        norm = jnp.where(some, jnp.sqrt(jnp.where(some, squares, 1)), 0)
        share = norm / (norm.mean(axis=-1, keepdims=True) + _GRN_EPS)
        factor = (1 + scale[None, None] * share).astype(x.dtype)
        return x * factor + spread(bias, x.shape, x.dtype)


class ConvMlp(nn.Module):
    """Linear, GELU, global response normalisation if any, linear, over the channels of a place."""

    cfg: ConvNeXtConfig

    @nn.compact
    def __call__(self, x: Float[Array, "B N C"]) -> Float[Array, "B N C"]:
        cfg, dim, dtype = self.cfg, x.shape[-1], base.compute_dtype(self.cfg)
        y = Dense(_RATIO * dim, dtype, _NORMAL, name="fc1")(x.reshape(-1, dim))
        y = gelu(y, cfg.gelu)
        if cfg.grn:
            y = GlobalResponseNorm(name="grn")(y.reshape(*x.shape[:-1], -1))
            y = y.reshape(-1, y.shape[-1])
        return Dense(dim, dtype, _NORMAL, name="fc2")(y).reshape(x.shape)


class ConvNeXtBlock(nn.Module):
    """x += scale * mlp(norm(conv(x))); called by the stack with (map, rate of stochastic depth)."""

    cfg: ConvNeXtConfig
    train: bool

    @nn.compact
    def __call__(
        self, x: Float[Array, "B H W C"], rate: Float[Array, ""]
    ) -> tuple[Float[Array, "B H W C"], None]:
        cfg, dtype, dim = self.cfg, base.compute_dtype(self.cfg), x.shape[-1]
        y = BiasedConv(dim, _KERNEL, dtype, depthwise=True, name="conv_dw")(x)
        y = y.reshape(y.shape[0], -1, dim)
        y = _norm(cfg, "norm", cfg.norm_eps, dtype)(y)
        y = ConvMlp(cfg, name="mlp")(y)
        if cfg.layer_scale:
            y = LayerScale(cfg.layer_scale, name="ls")(y)
        if cfg.drop_path_rate > 0 and self.train:
            y = drop_path(y, rate, self.make_rng("dropout"))
        return constrain(x + y.reshape(x.shape), BATCH_AXES), None


class ConvDownsample(nn.Module):
    """A norm, and a 2x2 convolution of stride 2, which leaves out an odd side's last row."""

    cfg: ConvNeXtConfig
    features: int

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B P Q E"]:
        dtype = base.compute_dtype(self.cfg)
        x = _norm(self.cfg, "norm", self.cfg.norm_eps, dtype)(x)
        return BiasedConv(self.features, 2, dtype, stride=2, name="conv")(x)


class ConvNeXtStage(nn.Module):
    """Blocks of one width; stages after the first begin with a `ConvDownsample`."""

    cfg: ConvNeXtConfig
    index: int
    drop_path_rates: tuple[float, ...]
    train: bool

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B P Q E"]:
        cfg, depth = self.cfg, self.cfg.depths[self.index]
        if self.index:
            x = ConvDownsample(cfg, cfg.widths[self.index], name="downsample")(x)
        fields = {"cfg": cfg, "train": self.train}
        blocks = stack(ConvNeXtBlock, cfg, name="blocks", depth=depth, **fields)
        return blocks(x, jnp.asarray(self.drop_path_rates, jnp.float32))[0]


class ConvStemLayers(nn.Module):
    """One or two strided convolutions and a norm."""

    cfg: ConvNeXtConfig

    @nn.compact
    def __call__(self, image: Float[Array, "B H W C"]) -> Float[Array, "B P Q E"]:
        cfg, dtype, width = self.cfg, base.compute_dtype(self.cfg), self.cfg.widths[0]
        if cfg.stem is ConvStem.PATCH:
            x = BiasedConv(width, _STRIDE, dtype, stride=_STRIDE, name="conv1")(image)
        else:
            is_tiered = cfg.stem is ConvStem.OVERLAP_TIERED
            x = BiasedConv(_half(width) if is_tiered else width, 3, dtype, stride=2, name="conv1")(
                image
            )
            x = gelu(x, cfg.gelu) if cfg.stem is ConvStem.OVERLAP_ACT else x
            x = BiasedConv(width, 3, dtype, stride=2, name="conv2")(x)
        return _norm(cfg, "norm", cfg.norm_eps, dtype)(x)


def _half(width: int) -> int:
    """Return the multiple of 8 that is nearest to half of a width, not below 90 % of it (timm)."""
    half = width // 2
    near = max(8, (half + 4) // 8 * 8)
    return near + 8 if near < 0.9 * half else near


class ConvNeXt(nn.Module):
    """ConvNeXt over [B, H, W, C] images of any size, already normalised.

    Features are the normalised mean of the last map; tokens are its places, normalised by the same
    norm each, as DINOv3's encoders return them.
    """

    cfg: ConvNeXtConfig

    @nn.compact
    def __call__(self, image: Float[Array, "B H W C"], *, train: bool = False) -> Output:
        cfg, dtype = self.cfg, base.compute_dtype(self.cfg)
        base.check_input(image, base.pair(cfg.image_size, "image_size"), cfg.channels)
        x = constrain(ConvStemLayers(cfg, name="stem")(image), BATCH_AXES)
        depth = sum(cfg.depths)
        rates = drop_path_rates(cfg.drop_path_rate, depth, DropPathRule.LINEAR).tolist()
        for i, depth in enumerate(cfg.depths):
            own, rates = tuple(rates[:depth]), rates[depth:]
            x = ConvNeXtStage(cfg, i, own, train, name=f"stage{i}")(x)
        norm = _norm(cfg, "norm", cfg.head_norm_eps, jnp.float32)
        normed, pooled = norm(x), x.mean(axis=(1, 2), dtype=jnp.float32)
        features = normed.mean(axis=(1, 2)) if cfg.norm_first else norm(pooled)

        def added() -> jax.Array:
            return normed if cfg.norm_first else self._linear_norm(x, pooled)

        if cfg.pre_logits_dim:
            dense = Dense(cfg.pre_logits_dim, jnp.float32, _NORMAL, name="pre_logits")
            inner = dense(features)
            features = gelu(inner, Gelu.ERF)
            # What a place adds goes through the GELU's slope from zero to the mean's value.
            slope = 0.5 * (1 + jax.lax.erf(inner * math.sqrt(0.5)))
            record(self, "map", lambda: dense(added()) * slope[:, None, None])
        else:
            record(self, "map", added)
        y = Dropout(cfg.dropout_rate, deterministic=not train)(features)
        tokens = normed.astype(dtype).reshape(x.shape[0], -1, x.shape[-1])
        return Output(logits=classifier(cfg, _NORMAL)(y), features=features, tokens=tokens)

    def _linear_norm(
        self, x: Float[Array, "B P Q E"], pooled: Float[Array, "B E"]
    ) -> Float[Array, "B P Q E"]:
        """Return what each place adds to the norm of the mean: their mean is that norm."""
        cfg, own = self.cfg, self.get_variable("params", "norm")
        wide = x.astype(jnp.float32)
        factor = _inverse_deviation(pooled, cfg.norm, cfg.head_norm_eps)[:, None, None]
        if cfg.norm is ChannelNorm.LAYER:
            wide = wide - wide.mean(axis=-1, keepdims=True)
        wide = wide * factor * own["scale"][None, None, None]
        return wide + own["bias"][None, None, None] if "bias" in own else wide


def _grids(cfg: ConvNeXtConfig, image_size: facts.Grid) -> list[facts.Grid]:
    overlap = cfg.stem is not ConvStem.PATCH  # pads an odd side, where patches leave it out
    rows, columns = (-(-side // _STRIDE) if overlap else side // _STRIDE for side in image_size)
    return [(rows // 2**i, columns // 2**i) for i in range(len(cfg.depths))]


_STEM_LAYERS = {  # by stem: timm's places of the second convolution and the norm
    ConvStem.PATCH: (1, 1),
    ConvStem.OVERLAP: (1, 2),
    ConvStem.OVERLAP_TIERED: (1, 2),
    ConvStem.OVERLAP_ACT: (2, 3),
}


def _timm_names(cfg: ConvNeXtConfig) -> tuple[facts.Rename, ...]:
    second, norm = _STEM_LAYERS[cfg.stem]
    last = "norm_pre/" if cfg.norm_first else "head/norm/"
    own = ((r"^stem/conv2/", f"stem/{second}/"), (r"^stem/norm/", f"stem/{norm}/"))
    return (*own, *facts.names("ConvNeXt", "timm"), (r"^norm/", last))


_NORMS = {ChannelNorm.LAYER: "layernorm", ChannelNorm.RMS: "rmsnorm"}
_NORMS |= {ChannelNorm.SIMPLE: "simplenorm"}
_ACTS = {Gelu.ERF: "gelu", Gelu.TANH: "gelu_tanh", Gelu.QUICK: "quick_gelu"}


def _timm(cfg: ConvNeXtConfig) -> facts.Timm:
    same = ("depths", "norm_eps", "conv_mlp")
    renamed = {"dims": "widths", "use_grn": "grn", "head_norm_first": "norm_first"}
    args = facts.timm_args(cfg, *same, **renamed)
    args |= {"stem_type": cfg.stem.value, "norm_layer": _NORMS[cfg.norm]}
    args["act_layer"] = _ACTS[cfg.gelu]
    # timm drops arguments that are None, and leaves the architecture's own value.
    args |= {"head_hidden_size": cfg.pre_logits_dim} if cfg.pre_logits_dim else {}
    args |= {"ls_init_value": cfg.layer_scale} if cfg.layer_scale else {}
    architecture = "convnext_tiny" if cfg.layer_scale else "convnextv2_tiny"
    return facts.Timm(architecture, args, {"head_norm_eps": cfg.norm_eps}, "stem/conv1")


def _timm_lacks(cfg: ConvNeXtConfig) -> str:
    count = len(cfg.depths)
    return "" if count == 4 else f"{count} stages (model.depths): its ConvNeXt has 4"


FAMILY = facts.Family(
    config=ConvNeXtConfig,
    module=ConvNeXt,
    variants=facts.variants(ConvNeXtConfig),
    stem="stem/conv1",
    validate=validate,
    grids=_grids,
    timm=_timm,
    timm_names=_timm_names,
    timm_lacks=_timm_lacks,
    timm_convolutions=lambda cfg: r"/mlp/fc[12]/kernel$" if cfg.conv_mlp else "",
    official_names=facts.names("ConvNeXt", "official"),
)
