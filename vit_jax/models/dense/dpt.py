# SPDX-License-Identifier: Apache-2.0
"""The DPT head: depth from the tokens of four layers of a ViT (arXiv:2103.13413 section 3).

The tokens of each layer become a map, the maps are brought to four resolutions ("reassemble") and
joined from the coarsest to the finest ("fusion"). Its form is that of transformers 5.23's `dpt` on
a DINOv2 backbone and of its `depth_anything` (arXiv:2401.10891, arXiv:2406.09414), which reads no
class token, enlarges each map to the size of the next, and the last to the image's.
"""

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Float32

from vit_jax import errors, models
from vit_jax.devices.sharding import BATCH_AXES, constrain, constrain_parameter
from vit_jax.errors import UserError
from vit_jax.models.base import ModelConfig, compute_dtype
from vit_jax.models.conv.conv import conv2d
from vit_jax.models.intermediates import Layer, num_layers, output_and_layers
from vit_jax.models.layers.dense import Dense, matmul, spread
from vit_jax.models.layers.mlp import Gelu, gelu
from vit_jax.models.layers.norm import BatchNorm
from vit_jax.models.resample import bilinear, corners, resize_map
from vit_jax.settings.fields import value

LEVELS = 4  # maps, each of a layer
NAME = "depth_head"  # of a head of depth beside the encoder
# transformers' initializer_range of both models: every kernel starts as N(0, 0.02).
_NORMAL = nn.initializers.normal(0.02)
_EPS = 1e-5  # of BatchNorm, PyTorch's


class Readout(enum.StrEnum):
    """What becomes of the class token."""

    PROJECT = "project"  # joined to every patch, and a linear layer and GELU after that
    ADD = "add"  # added to every patch
    IGNORE = "ignore"


class DepthOutput(enum.StrEnum):
    """What makes a depth of the last convolution's output, times `scale`."""

    RELU = "relu"
    SIGMOID = "sigmoid"


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class DptConfig:
    """A DPT head; the defaults are those of DPT on a DINOv2 of width 768.

    Attributes:
        taps: the four layers that it reads, from 0, the shallowest first.
        norm: it reads them after the encoder's last norm.
        readout: what becomes of the class token.
        widths: channels of each layer's map.
        factors: by which each map is enlarged; each is a whole number or one divided by one.
        dim: channels of fusion.
        hidden_dim: channels before the last convolution.
        to_next: fusion enlarges a map to the size of the next, and the head to that of the image,
            as Depth Anything; without it each doubles the size.
        residual_bias: the convolutions of fusion's residual units have a bias.
        residual_norm: those units have BatchNorm.
        project: the head begins with a 3x3 convolution and ReLU, as DINOv2's.
        output: what makes a depth of the last number.
        scale: times that; the greatest depth with a sigmoid.
    """

    taps: tuple[int, ...] = value((2, 5, 8, 11), lengths=(LEVELS,), least=0)
    norm: bool = False
    readout: Readout = Readout.PROJECT
    widths: tuple[int, ...] = value((96, 192, 384, 768), lengths=(LEVELS,), least=1)
    factors: tuple[float, ...] = value((4.0, 2.0, 1.0, 0.5), lengths=(LEVELS,), above=0)
    dim: int = value(256, least=2)
    hidden_dim: int = value(32, least=1)
    to_next: bool = False
    residual_bias: bool = True
    residual_norm: bool = False
    project: bool = False
    output: DepthOutput = DepthOutput.RELU
    scale: float = value(1.0, above=0, unit="of the depths")


def check(cfg: DptConfig, model: ModelConfig, below: str = "objective.dpt.") -> None:
    """Raise UserError for a head that an encoder has no layers or tokens for.

    `below` is what the names of the head's fields begin with.
    """
    depth, name = num_layers(model), models.family(model).name
    if not hasattr(model, "dim") or not hasattr(model, "patch"):
        raise UserError(f"{name} has no tokens of one width; a DPT head is for a ViT")
    if list(cfg.taps) != sorted(set(cfg.taps)) or max(cfg.taps) >= depth:
        what = f"{below}taps={cfg.taps} must be four layers of 0 to {depth - 1}, in their order"
        raise UserError(what, field=f"{below}taps")
    if cfg.readout is not Readout.IGNORE and not getattr(model, "class_token", False):
        why = f"{below}readout={cfg.readout} reads a class token, and this {name} has none"
        raise UserError(f"{why}; set {below}readout=ignore", field=f"{below}readout")
    for factor in cfg.factors:
        if _stride(factor) * factor != 1 and factor != int(factor):
            what = f"{below}factors={cfg.factors}: {factor} is neither a whole number nor one of"
            raise UserError(f"{what} its inverses, such as 0.5", field=f"{below}factors")


def _stride(factor: float) -> int:
    return max(round(1 / factor), 1)


class Dpt(nn.Module):
    """The head; its parameters stand under the names below, its statistics in `batch_stats`."""

    cfg: DptConfig
    patch: tuple[int, int]  # of the encoder
    dtype: Any
    train: bool = False

    @nn.compact
    def __call__(self, layers: Sequence[Layer]) -> Float32[Array, "B H W"]:
        """Return a depth for each pixel of the map, of the layers that `DptConfig.taps` names.

        The map has twice the sides of the last that was fused, or with `to_next` those of the
        image.
        """
        cfg, dtype = self.cfg, self.dtype
        maps = [self._reassembled(layer, i) for i, layer in enumerate(layers)]
        fused = self.fused(maps)
        x = fused[-1]
        if cfg.project:
            x = nn.relu(MapConv(cfg.dim, 3, dtype, name="projection")(x))
        x = MapConv(cfg.dim // 2, 3, dtype, name="conv1")(x)
        grid = layers[0].patches.shape[1:3]
        size = (grid[0] * self.patch[0], grid[1] * self.patch[1])
        size = size if cfg.to_next else (2 * x.shape[1], 2 * x.shape[2])
        x = constrain(resize_map(x, size, corners), BATCH_AXES)
        x = nn.relu(MapConv(cfg.hidden_dim, 3, dtype, name="conv2")(x))
        # Differs from transformers: there the last bias starts at 0, and where all outputs start
        # below it, as they do in one of two, ReLU passes no gradient and nothing is learned.
        start = 0.0 if cfg.output is DepthOutput.SIGMOID else 1.0
        last = {"bias_init": nn.initializers.constant(start), "name": "conv3"}
        x = MapConv(1, 1, jnp.float32, **last)(x)[..., 0]
        bound = nn.relu if cfg.output is DepthOutput.RELU else nn.sigmoid
        return bound(x) * cfg.scale

    def fused(self, maps: Sequence[jax.Array]) -> list[Float[Array, "B P Q E"]]:
        """Return what each step of fusion makes, from the coarsest map on."""
        found: list[jax.Array] = []
        for i, skip in enumerate(maps[::-1]):
            x = skip
            fuse = Fusion(self.cfg, self.dtype, self.train, name=f"fuse{i}")
            after = maps[LEVELS - 2 - i] if i < LEVELS - 1 and self.cfg.to_next else None
            size = None if after is None else (after.shape[1], after.shape[2])
            x = fuse(found[-1], skip, size) if found else fuse(x, None, size)
            found.append(constrain(x, BATCH_AXES))
            self.sow("intermediates", "fused", found[-1])
        return found

    def _reassembled(self, layer: Layer, i: int) -> Float[Array, "B P Q E"]:
        """Make a map of a layer's tokens, of the channels of fusion."""
        cfg, dtype = self.cfg, self.dtype
        x = layer.patches.astype(dtype)
        if cfg.readout is not Readout.IGNORE:
            token = layer.prefix[:, :1, None].astype(dtype)
            if cfg.readout is Readout.ADD:
                x = x + token
            else:
                both = jnp.concatenate([x, jnp.broadcast_to(token, x.shape)], axis=-1)
                x = gelu(Dense(x.shape[-1], dtype, _NORMAL, name=f"readout{i}")(both), Gelu.ERF)
        width, factor = cfg.widths[i], cfg.factors[i]
        x = MapConv(width, 1, dtype, name=f"project{i}")(x)
        if factor > 1:
            x = Enlarge(width, int(factor), dtype, name=f"resize{i}")(x)
        elif factor < 1:
            x = MapConv(width, 3, dtype, stride=_stride(factor), name=f"resize{i}")(x)
        return MapConv(cfg.dim, 3, dtype, use_bias=False, name=f"smooth{i}")(x)


class Fusion(nn.Module):
    """Join a map to the one from deeper layers, refine and enlarge it."""

    cfg: DptConfig
    dtype: Any
    train: bool

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B P Q E"],
        skip: Float[Array, "B R S E"] | None,
        size: tuple[int, int] | None,
    ) -> Float[Array, "B H W E"]:
        """Enlarge to (H, W) `size`, or twofold; the first step has no `skip`."""
        first = ResidualUnit(self.cfg, self.dtype, self.train, name="res1")
        if skip is not None:
            x = x + first(resize_map(skip, (x.shape[1], x.shape[2]), bilinear))
        elif self.is_initializing():
            first(x)  # published files have it, though nothing reads it
        x = ResidualUnit(self.cfg, self.dtype, self.train, name="res2")(x)
        x = resize_map(x, size or (2 * x.shape[1], 2 * x.shape[2]), corners)
        return MapConv(self.cfg.dim, 1, self.dtype, name="project")(x)


class ResidualUnit(nn.Module):
    """Two 3x3 convolutions, each after ReLU, added to their input."""

    cfg: DptConfig
    dtype: Any
    train: bool

    @nn.compact
    def __call__(self, x: Float[Array, "B P Q E"]) -> Float[Array, "B P Q E"]:
        y = x
        for i in (1, 2):
            fields = {"use_bias": self.cfg.residual_bias, "name": f"conv{i}"}
            y = MapConv(self.cfg.dim, 3, self.dtype, **fields)(nn.relu(y))
            if self.cfg.residual_norm:
                y = BatchNorm(_EPS, self.dtype, self.train, name=f"norm{i}")(y)
        return x + y


class MapConv(nn.Module):
    """Convolve a map, with k // 2 zeros around it; kernel [k, k, in, out] and bias in float32."""

    features: int
    side: int
    dtype: Any
    stride: int = 1
    use_bias: bool = True
    bias_init: nn.initializers.Initializer = nn.initializers.zeros

    @nn.compact
    def __call__(self, x: Float[Array, "B H W I"]) -> Float[Array, "B P Q O"]:
        shape = (self.side, self.side, x.shape[-1], self.features)
        kernel = jnp.asarray(self.param("kernel", _NORMAL, shape, jnp.float32))
        kernel = constrain_parameter(kernel, f"{self.name}/kernel")
        y = conv2d(x.astype(self.dtype), kernel, stride=self.stride)
        if not self.use_bias:
            return y
        bias = self.param("bias", self.bias_init, (self.features,), jnp.float32)
        return y + spread(jnp.asarray(bias), y.shape, self.dtype)


class Enlarge(nn.Module):
    """Make k x k pixels of each: a transposed convolution whose stride is its side."""

    features: int
    factor: int
    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "B H W I"]) -> Float[Array, "B P Q O"]:
        k, (batch, rows, columns, inputs) = self.factor, x.shape
        shape = (k, k, inputs, self.features)
        kernel = jnp.asarray(self.param("kernel", _NORMAL, shape, jnp.float32))
        kernel = constrain_parameter(kernel, f"{self.name}/kernel")
        bias = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)
        flat = kernel.transpose(2, 0, 1, 3).reshape(inputs, -1)
        y = matmul(x.reshape(-1, inputs).astype(self.dtype), flat)
        y = y.reshape(batch, rows, columns, k, k, self.features).transpose(0, 1, 3, 2, 4, 5)
        y = y.reshape(batch, rows * k, columns * k, self.features)
        return y + spread(jnp.asarray(bias), y.shape, self.dtype)


def create(cfg: DptConfig, model: ModelConfig, *, train: bool = False) -> Dpt:
    """Create the head's module over an encoder."""
    patch = models.pair(getattr(model, "patch", ()), "patch")
    return Dpt(cfg, patch, compute_dtype(model), train)


def tapped(
    cfg: DptConfig,
    model: ModelConfig,
    variables: Mapping[str, Any],
    image: Float[Array, "B H W C"],
    **how: Any,
) -> list[Layer]:
    """Return what the head reads of normalised images; `how` as `output_and_layers` takes it."""
    return output_and_layers(model, variables, image, cfg.taps, norm=cfg.norm, **how)[1]


def init(cfg: DptConfig, model: ModelConfig, key: jax.Array) -> tuple[Any, dict[str, Any]]:
    """Initialise the head's own (params, state); pure. The state is {} without BatchNorm."""
    rows, columns = models.patch_grid(model, models.input_shape(model)[:2])
    dim, prefix = getattr(model, "dim", 0), models.num_prefix(model)
    layer = Layer(jnp.zeros((1, rows, columns, dim)), jnp.zeros((1, prefix, dim)))
    found = dict(create(cfg, model).init(key, [layer] * LEVELS))
    found.pop("intermediates", None)
    return found.pop("params"), found


class DptVariant(NamedTuple):
    """A published model: its encoder and its head."""

    model: ModelConfig
    head: DptConfig


_SIZES = {  # encoder, widths, channels of Depth Anything's fusion, the layers of DPT
    "s": ("vit_s14_dinov2", (48, 96, 192, 384), 64, (2, 5, 8, 11)),
    "b": ("vit_b14_dinov2", (96, 192, 384, 768), 128, (2, 5, 8, 11)),
    "l": ("vit_l14_dinov2", (256, 512, 1024, 1024), 256, (4, 11, 17, 23)),
    "g": ("vit_g14_dinov2", (192, 384, 768, 1536), 256, (9, 19, 29, 39)),
}
_METRIC = {"indoor": 20.0, "outdoor": 80.0}  # the greatest depth in metres


def names() -> list[str]:
    """List the named models."""
    three = "sbl"
    metric = [f"depth_anything_v2_{where}_{size}" for where in _METRIC for size in three]
    plain = [f"depth_anything{version}_{size}" for version in ("", "_v2") for size in three]
    return [*plain, *metric, *(f"dpt_dinov2_{size}" for size in _SIZES)]


def variant(name: str, **overrides: Any) -> DptVariant:
    """Return a named model: `variant("depth_anything_v2_indoor_s")`.

    `dpt_dinov2_*` is DINOv2's of NYU and KITTI, whose weights differ. A name without "indoor" or
    "outdoor" is of relative depths, as disparities. `overrides` are fields of the encoder.

    Sources: transformers' conversion scripts and the config.json of the published repositories.

    Raises UserError: an unknown name or field, with the nearest valid ones.
    """
    if name not in names():
        raise errors.unknown("depth model", name, names())
    base, _, size = name.rpartition("_")
    encoder, widths, dim, taps = _SIZES[size]
    model = models.variant(encoder, **{"num_classes": 0, "image_size": (518, 518), **overrides})
    if base == "dpt_dinov2":
        widths = (128, 256, 512, 1024) if size == "l" else widths
        dpt = {"widths": widths, "taps": taps, "residual_bias": False, "project": True}
        return DptVariant(model, DptConfig(**dpt))
    depth = model.depth
    taps = taps if "_v2" in base else tuple(range(depth - LEVELS, depth))
    head = DptConfig(
        taps=taps, norm=True, readout=Readout.IGNORE, widths=widths, dim=dim, to_next=True
    )
    if (scale := _METRIC.get(base.rpartition("_")[2])) is not None:
        head = dataclasses.replace(head, output=DepthOutput.SIGMOID, scale=scale)
    return DptVariant(model, head)


def num_parameters(found: DptVariant) -> int:
    """Count the parameters of encoder and head, computing nothing."""
    head = jax.eval_shape(lambda: init(found.head, found.model, jax.random.key(0))[0])
    leaves = [*jax.tree.leaves(models.abstract(found.model)["params"]), *jax.tree.leaves(head)]
    return sum(leaf.size for leaf in leaves)
