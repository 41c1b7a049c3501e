# SPDX-License-Identifier: Apache-2.0
"""What is true of one model family: `FAMILY` in the family's file, read through `models.family`.

Code outside this package reads the config's family instead of testing the config's class.
"""

import ast
import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flax import linen as nn

from vit_jax.errors import UserError
from vit_jax.models import base
from vit_jax.settings.fields import annotations, conformed

Grid = tuple[int, int]
Channels = tuple[float, ...]
# A regex of a parameter's name, and what replaces it.
Rename = tuple[str, str | Callable[[re.Match[str]], str]]

HALF: tuple[Channels, Channels] = ((0.5,), (0.5,))
IMAGENET: tuple[Channels, Channels] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP: tuple[Channels, Channels] = (
    (0.48145466, 0.4578275, 0.40821073),
    (0.26862954, 0.26130258, 0.27577711),
)


class Images(NamedTuple):
    """How most of a family's networks in timm 1.0.31 want their images.

    Attributes:
        mean_std: of the input, in units where white is 1.
        crop: side of the network's image over that of the resized image, up to 224 pixels.
        large_crop: the same above 224 pixels, where most are fine-tuned on whole images.
        bilinear: images are resized bilinearly, not bicubically.
    """

    mean_std: tuple[Channels, Channels] = IMAGENET
    crop: float = 0.875
    large_crop: float = 1.0
    bilinear: bool = False


class Timm(NamedTuple):
    """What timm needs to build the model of a config.

    Attributes:
        architecture: a function of timm's.
        args: its arguments, without the number of classes.
        fixed: fields of ours that the architecture fixes, with their values there.
        first: our name of the module that sees the image.
    """

    architecture: str
    args: dict[str, Any]
    fixed: Mapping[str, Any]
    first: str = "patch_embed"


class Form(NamedTuple):
    """In what form timm's file of a model has what it has in one form of several.

    Attributes:
        gammas: LayerScale is `gamma_1`, not `ls1.gamma`.
        separate: q, k and v are three layers.
        packed: one layer gives SwiGLU's gate and value.
        split_bias: the bias of a fused qkv is `q_bias` and `v_bias`.
    """

    gammas: bool = False
    separate: bool = False
    packed: bool = False
    split_bias: bool = False


class Google(NamedTuple):
    """How Google's .npz files hold a family.

    Attributes:
        names: from ours to theirs.
        stem: the parameter whose key shows a file's prefix.
        prefixes: the possible ones; the first that fits counts.
        head_is_convolution: the head's kernel is (1, 1, E, K).
    """

    names: Sequence[Rename]
    stem: str = "embedding/kernel"
    prefixes: tuple[str, ...] = ("", "params/", "opt/target/", "params/img/", "img/")
    head_is_convolution: bool = False


class Heads(NamedTuple):
    """Attention layers of one kind, by what `models.captured` returns of them.

    Attributes:
        kind: of layer, for captions.
        weights: name of the captured weights: [L, B, h, N, N] of a stack, [B, h, 1, N] of a pool.
        query: which tokens look, in words.
        readers: the indices of those tokens; None for one learned token.
        also: further (query, name of captured weights) of the same layers.
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
        rolled: captured weights of the layers of an attention rollout, which adds a class token
            where one enters between two of them.
        readers: the tokens of the last of those layers that the head reads.
        reader: captured weights of the one query that reads for the head instead, if any.
    """

    method: str
    layers: tuple[Heads, ...]
    rolled: tuple[str, ...] = ()
    readers: slice = slice(0, 1)
    reader: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """The facts of one family; those that many families lack have a default.

    Attributes:
        config: the class of its configs.
        module: config -> Flax module.
        variants: its named configs.
        validate: raises UserError for fields of a config that do not go together.
        grids: config, (H, W) of an image -> (rows, columns) of the tokens of each stage.
        num_prefix: config -> number of tokens before the patches.
        stem: the layer that sees the image, by its name among the parameters.
        windows: config -> (rows, columns) of the attention windows of each stage.
        hides_patches: its module takes `source` and `kept`, as the ViT's.
        can_be_pruned: heads and MLP units can be removed from its blocks (`models.pruning`).
        one_size: weights fit images of one size only, since a layer mixes that many patches.
        attention: config, (rows, columns) of tokens -> which layers attend among all of them.
        images: config -> how published networks want their images.
        timm: config -> timm's model; raises UserError where timm has none of this size.
        timm_names: config -> from our names to timm's, which differ by these only.
        timm_form: config -> the form in which timm's file has some layers.
        timm_lacks: config -> what no weights give timm's model, in words; "" for nothing.
        timm_zeros: config -> sizes of the biases that only timm's model has.
        timm_convolutions: config -> regex of our linear kernels that are 1x1 convolutions in timm.
        official_names: from the authors' names in PyTorch to timm's, joined by dots.
        google: its layout in Google's files.
    """

    config: type[base.ModelConfig]
    module: Callable[[Any], nn.Module]
    variants: Mapping[str, Any]
    validate: Callable[[Any], object]
    grids: Callable[[Any, Grid], Sequence[Grid]] = lambda cfg, size: [base.patch_grid(cfg, size)]
    num_prefix: Callable[[Any], int] = lambda cfg: 0
    stem: str = "patch_embed"
    windows: Callable[[Any], Sequence[Grid]] | None = None
    hides_patches: bool = False
    can_be_pruned: bool = False
    one_size: bool = False
    attention: Callable[[Any, Grid], Attention] | None = None
    images: Callable[[Any], Images] = lambda cfg: Images()
    timm: Callable[[Any], Timm] | None = None
    timm_names: Callable[[Any], Sequence[Rename]] | None = None
    timm_form: Callable[[Any], Form] = lambda cfg: Form()
    timm_lacks: Callable[[Any], str] = lambda cfg: ""
    timm_zeros: Callable[[Any], Mapping[str, int]] = lambda cfg: {}
    timm_convolutions: Callable[[Any], str] = lambda cfg: ""
    official_names: Sequence[Rename] = ()
    google: Google | None = None

    @property
    def name(self) -> str:
        """The family's name in messages."""
        return self.config.__name__.removesuffix("Config")


def _rows(table: str) -> list[list[str]]:
    lines = Path(__file__).with_name(table).read_text("utf-8").splitlines()
    return [line.split("\t") for line in lines if line[0] != "#"]


@functools.cache
def listed() -> dict[str, str]:
    """Return the names in variants.tsv, each with the class of its config."""
    return {name: f"{family}Config" for name, family, _ in _rows("variants.tsv")}


def variants(config: type[base.ModelConfig]) -> dict[str, Any]:
    """Read the named configs of a class from variants.tsv, which cites their sources."""
    found: dict[str, Any] = {}
    kinds = annotations(config)
    for name, family, fields in _rows("variants.tsv"):
        if f"{family}Config" == config.__name__:
            values = dict(field.split("=") for field in fields.split())
            read = {key: conformed(kinds[key], key, parsed(text)) for key, text in values.items()}
            found[name] = config(**read)
    return found


def parsed(text: str) -> Any:
    """Read a value of a table: a Python literal, or the name of a choice."""
    try:
        return ast.literal_eval(text)
    except ValueError:
        return text  # the value of an enum


@functools.cache
def names(family: str, code: str) -> tuple[Rename, ...]:
    """Read the renames of a family for "timm", "google" or "official" from names.tsv."""
    found = (row[2:] for row in _rows("names.tsv") if row[:2] == [family, code])
    return tuple((regex, functools.partial(_replacement, new)) for regex, new in found)


def _replacement(new: str, match: re.Match[str]) -> str:
    """Return what replaces a match, with "3+1" written as "4"."""
    return re.sub(r"(\d+)\+1", lambda number: str(int(number[1]) + 1), match.expand(new))


def architecture(family: str, known: Mapping[tuple, str], **values: Any) -> str:
    """Return timm's architecture of these values, which timm's arguments do not change.

    Raises:
        UserError: `known`, values -> architecture, has none; the message lists its architectures.
    """
    name = known.get(tuple(values.values()))
    if name is None:
        given = ", ".join(f"model.{field}={value}" for field, value in values.items())
        raise UserError(f"timm has no {family} with {given}; it has {', '.join(known.values())}")
    return name


def timm_args(cfg: Any, *same: str, **fields: str) -> dict[str, Any]:
    """Return arguments of timm's from fields: those of the same name, and `argument=field`."""
    values = {name: getattr(cfg, field) for name, field in ({n: n for n in same} | fields).items()}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


def patch_args(cfg: Any) -> dict[str, Any]:
    """Return timm's arguments for the size of images and patches."""
    image, patch = base.pair(cfg.image_size, "image_size"), base.pair(cfg.patch, "patch")
    return {"img_size": list(image), "patch_size": list(patch)}


def transformer_args(cfg: Any) -> dict[str, Any]:
    """Return timm's arguments for the sizes of a transformer."""
    sizes = timm_args(cfg, "depth", "num_heads", "qkv_bias", embed_dim="dim")
    return {**patch_args(cfg), **sizes, "mlp_ratio": ratio(cfg.mlp_dim, cfg.dim)}


def ratio(hidden: int, dim: int) -> float:
    """Return a ratio with which timm's int(dim * ratio) is `hidden`."""
    exact = hidden / dim
    return exact if int(dim * exact) == hidden else (hidden + 0.5) / dim
