# SPDX-License-Identifier: Apache-2.0
"""What is true of one model family: `FAMILY` in the family's file, read through `models.family`.

Nothing outside this package asks which class a config has: it asks the config's family.
"""

import ast
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flax import linen as nn

from vit_jax.fields import annotations, conformed
from vit_jax.models import base

Grid = tuple[int, int]
Channels = tuple[float, ...]
# A regex of a '/'-joined name, and what replaces it.
Rename = tuple[str, str | Callable[[re.Match[str]], str]]

_VARIANTS = Path(__file__).with_name("variants.tsv")
HALF: tuple[Channels, Channels] = ((0.5,), (0.5,))
IMAGENET: tuple[Channels, Channels] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class Images(NamedTuple):
    """How most of a family's networks in timm 1.0.31 want their images.

    Attributes:
        mean_std: of the input, in units where white is 1.
        crop: the side of the network's image over that of the resized one, up to 224 pixels.
        large_crop: the same above 224 pixels, for which most are fine-tuned on whole images.
        bilinear: the images are resized bilinearly, not bicubically.
    """

    mean_std: tuple[Channels, Channels] = IMAGENET
    crop: float = 0.875
    large_crop: float = 1.0
    bilinear: bool = False


class Timm(NamedTuple):
    """What timm needs to build the model of a config.

    Attributes:
        architecture: a function of timm's.
        args: its arguments, but for the number of classes.
        fixed: our fields that it leaves no choice of, with their values there.
        first: our name of the module that sees the image.
    """

    architecture: str
    args: dict[str, Any]
    fixed: Mapping[str, Any]
    first: str = "patch_embed"


class Google(NamedTuple):
    """How Google's .npz files hold a family.

    Attributes:
        names: from ours to theirs.
        stem: the parameter that tells which prefix a file has.
        prefixes: those that there are; the first that fits counts.
        head_is_convolution: the head's kernel is (1, 1, E, K).
    """

    names: tuple[Rename, ...]
    stem: str = "embedding/kernel"
    prefixes: tuple[str, ...] = ("", "params/", "opt/target/", "params/img/")
    head_is_convolution: bool = False


class Heads(NamedTuple):
    """Layers of one kind that attend, by what `models.captured` records of them.

    Attributes:
        kind: of layer, for captions.
        weights: the name of the record, [L, B, h, N, N] of a stack, [B, h, 1, N] of a pooling.
        query: who looks, in words.
        readers: which queries those are; None for one learned token.
        also: further (query, name of the record) of the same layers.
        gates: the parameter that holds GPSA's gates, if any.
    """

    kind: str
    weights: str
    query: str
    readers: slice | None
    also: tuple[tuple[str, str], ...] = ()
    gates: str = ""


class Attention(NamedTuple):
    """Where a model's attention shows what it looks at.

    Attributes:
        method: the map of the whole model, for captions.
        layers: from the first to the last.
        rolled: the records of the layers that attention rollout goes through; a class token that
            enters between two of them is added.
        readers: the tokens of the last of them that the head reads.
        reader: the record of the one query that reads for the head instead, if any.
    """

    method: str
    layers: tuple[Heads, ...]
    rolled: tuple[str, ...] = ()
    readers: slice = slice(0, 1)
    reader: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """The facts of one family; those with a default are for a family that has the thing.

    Attributes:
        config: the class of its configs.
        module: config -> Flax module.
        variants: its named configs.
        validate: raises UserError where fields of a config do not go together.
        grids: config, (H, W) of an image -> (rows, columns) of the tokens of each stage.
        num_prefix: config -> number of tokens before the patches.
        windows: config -> (rows, columns) of the attention windows of each stage.
        one_size: weights are for one size of images alone, since a layer mixes that many patches.
        attention: config, (rows, columns) of tokens -> what attends among all of them.
        images: config -> how published networks want their images.
        timm: config -> timm's model; raises UserError where timm has none of this size.
        timm_names: config -> from our names to timm's, which are ours but for these.
        timm_lacks: config -> what no weights give timm's model, in words; "" for nothing.
        timm_zeros: config -> sizes of the biases that timm's model has and ours has not.
        timm_convolutions: the linear kernels of ours that timm has as 1x1 convolutions, a regex.
        official_names: from the authors' names in PyTorch to timm's, joined by dots.
        google: Google's files of it.
    """

    config: type[base.ModelConfig]
    module: Callable[[Any], nn.Module]
    variants: Mapping[str, Any]
    validate: Callable[[Any], None]
    grids: Callable[[Any, Grid], Sequence[Grid]] = lambda cfg, size: [base.patch_grid(cfg, size)]
    num_prefix: Callable[[Any], int] = lambda cfg: 0
    windows: Callable[[Any], Sequence[Grid]] | None = None
    one_size: bool = False
    attention: Callable[[Any, Grid], Attention] | None = None
    images: Callable[[Any], Images] = lambda cfg: Images()
    timm: Callable[[Any], Timm] | None = None
    timm_names: Callable[[Any], Sequence[Rename]] | None = None
    timm_lacks: Callable[[Any], str] = lambda cfg: ""
    timm_zeros: Callable[[Any], Mapping[str, int]] = lambda cfg: {}
    timm_convolutions: str = ""
    official_names: Sequence[Rename] = ()
    google: Google | None = None

    @property
    def name(self) -> str:
        """The family's name in messages."""
        return self.config.__name__.removesuffix("Config")


def variants(config: type[base.ModelConfig]) -> dict[str, Any]:
    """Read the named configs of a class from variants.tsv, which says where sizes are from."""
    found: dict[str, Any] = {}
    kinds = annotations(config)
    lines = _VARIANTS.read_text("utf-8").splitlines()
    for name, family, fields in (line.split("\t") for line in lines if line[0] != "#"):
        if f"{family}Config" == config.__name__:
            values = dict(field.split("=") for field in fields.split())
            read = {key: conformed(kinds[key], key, _value(text)) for key, text in values.items()}
            found[name] = config(**read)
    return found


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except ValueError:
        return text  # the value of an enum


def google_unit(number: str) -> Callable[[re.Match[str]], str]:
    """Rename our 0-based stage and block to a 1-based block and unit, written as `number`."""
    return lambda found: f"block{int(found[1]) + 1}/unit{int(found[2]) + 1:{number}}/"


def taken(cfg: Any, *same: str, **fields: str) -> dict[str, Any]:
    """Return arguments of timm's from fields: those of the same name, and `argument=field`."""
    values = {name: getattr(cfg, name) for name in same}
    values |= {argument: getattr(cfg, field) for argument, field in fields.items()}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


def patch_args(cfg: Any) -> dict[str, Any]:
    """Return timm's arguments for the size of images and patches."""
    image, patch = base.pair(cfg.image_size, "image_size"), base.pair(cfg.patch, "patch")
    return {"img_size": list(image), "patch_size": list(patch)}


def transformer_args(cfg: Any) -> dict[str, Any]:
    """Return timm's arguments for the sizes of a transformer."""
    sizes = taken(cfg, "depth", "num_heads", "qkv_bias", embed_dim="dim")
    return {**patch_args(cfg), **sizes, "mlp_ratio": ratio(cfg.mlp_dim, cfg.dim)}


def ratio(hidden: int, dim: int) -> float:
    """Return the ratio of which timm's int(dim * ratio) is `hidden`."""
    exact = hidden / dim
    return exact if int(dim * exact) == hidden else (hidden + 0.5) / dim
