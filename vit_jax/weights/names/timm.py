# SPDX-License-Identifier: Apache-2.0
"""timm's names: our parameters under them, and the authors' own PyTorch files.

Our names are timm's except for the renames of the family, which apply in both directions; stacked
parameters are split by layer. The authors' files are recognised by their names: those of
facebookresearch/deit, convit and ConvNeXt, microsoft/Swin-Transformer, torchvision's RegNet, and
earlier versions of timm. A name that no rule of the family matches is timm's already.
"""

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from vit_jax import models
from vit_jax.errors import UserError, setting
from vit_jax.models import ModelConfig
from vit_jax.models.facts import Rename
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import table_grid
from vit_jax.weights import files
from vit_jax.weights import layout as layout_lib
from vit_jax.weights.apply import HEAD
from vit_jax.weights.files import WeightsFile
from vit_jax.weights.layout import (
    Entry,
    FileTensor,
    Layout,
    Own,
    Shape,
    fused,
    pointwise,
    renamed,
    torch_layout,
)
from vit_jax.weights.names import forms

# Microsoft merges patches at the end of a stage, timm at the beginning of the next one.
_MICROSOFT_SWIN: tuple[Rename, ...] = (
    (r"^layers\.(\d+)\.downsample\.", lambda found: f"layers.{int(found[1]) + 1}.downsample."),
)
# Tables that the code computes from the config.
_BESIDE = re.compile(r"num_batches_tracked$|^n_averaged$|^(decoder|predictor)_|^mask_token$")
_BUFFERS = re.compile(
    r"\.(relative_position_index|attn_mask)$"
    r"|^rope_embed\.periods$|(^|\.)rope(_reg)?\.freqs_(cos|sin)$|\.attn\.rope(_reg)?\.freqs$"
    r"|^freqs_t_[xy]$|^local_cls_norm\."
    r"|^norms\.\d+\.|^projectors\."  # DINOv3's and EUPE's ConvNeXts
)
# Where a file holds several networks, what the names of the one that is read begin with, beside a
# text tower (CLIP, PE), a momentum encoder (MoCo v3) or the heads of pretraining (DINO).
_TOWERS = ("visual.trunk.", "visual.", "module.base_encoder.", "backbone.")
_PROJECTION = re.compile(r"^head\.\d+\.")  # MoCo v3's


def key(name: str, cfg: ModelConfig) -> str:
    """Return timm's name of one layer of a parameter: "blocks/3/mlp/fc1/kernel" and so on.

    Raises UserError: a family without timm's names of parameters.
    """
    family = models.family(cfg)
    if family.timm_names is None:
        raise UserError(
            f"there are no timm names for {family.name}; give its FAMILY in vit_jax/models "
            "timm_names, or take weights of a run (ckpt:DIR)"
        )
    name = renamed(name, family.timm_names(cfg))
    return re.sub(r"/(kernel|scale)$", "/weight", name).replace("/", ".")


def entries(cfg: ModelConfig, own: Own | None = None) -> list[Entry]:
    """List every parameter and statistic of a model with its place in a timm state_dict.

    With `own` instead those beside the model, whose names are the authors' but for `kernel`.
    """
    convolutions = models.family(cfg).timm_convolutions(cfg)
    num_heads = own.num_heads if own else getattr(cfg, "num_heads", 1)

    def place(name: str, shape: Shape, _: int) -> tuple[tuple[FileTensor, ...], Any, Any]:
        heads = num_heads
        if isinstance(heads, tuple):
            stage = re.match(r"stage(\d+)/", name)
            heads = heads[int(stage[1])] if stage else 1
        if name.startswith(("map_pool/", "query_pool/")):
            heads = getattr(cfg, "pool_heads", 0) or heads
        is_convolution = convolutions and re.search(convolutions, name)
        layout = pointwise(shape) if is_convolution else torch_layout(name, shape, heads)
        if getattr(cfg, "native", False) and not own:
            layout = _native(name, shape, cfg) or layout
        if name.endswith("/qkv/bias") and not getattr(cfg, "key_bias", True) and not own:
            layout = fused(shape, 2, heads)
        parts = (FileTensor(key(name, cfg), layout.shape),)
        return parts, lambda parts: layout.decode(parts[0]), lambda value: [layout.encode(value)]

    return layout_lib.entries({"params": own.shapes} if own else models.abstract(cfg), place)


def _native(name: str, shape: Shape, cfg: Any) -> Layout | None:
    """Return the layout of what timm's NaFlexVit has otherwise than its ViT; None: nothing else.

    Its patches are rows of a linear layer, the channel fastest, and its table is a grid.
    """
    if name == "patch_embed/kernel":
        there = (shape[-1], math.prod(shape[:-1]))
        return Layout(there, lambda w: w.T.reshape(shape), lambda w: w.reshape(there[::-1]).T)
    if name == "pos_embed":
        table = (1, *table_grid(cfg), shape[-1])
        return Layout(table, lambda w: w.reshape(shape), lambda w: w.reshape(table))
    return None


def is_ignored(key: str) -> bool:
    """Return whether a key of a state_dict is no weight of a model.

    PyTorch's batch counters are none, and what MAE and I-JEPA have beside their encoders.
    """
    return bool(_BESIDE.search(key))


def with_timm_names(
    source: WeightsFile, cfg: ModelConfig, known: list[Entry] | None = None
) -> WeightsFile:
    """Name an official checkpoint's tensors as timm does, in the form of the model's entries.

    `known` are these entries, where they have been listed before.

    Raises UserError: two tensors have one name.
    """
    entries_ = entries(cfg) if known is None else known
    needed = {part.key for e in entries_ if not HEAD.match(e.name) for p in e.layers for part in p}

    def fits(file: WeightsFile) -> bool:
        return needed <= _named(file, cfg, entries_).shapes.keys()

    return _named(files.unwrapped(source, fits), cfg, entries_)


def _named(source: WeightsFile, cfg: ModelConfig, known: list[Entry]) -> WeightsFile:
    keys: dict[str, str] = {}
    rules = _rules(source.shapes, cfg)
    _check_last_norm(source, cfg)
    tower = next((t for t in _TOWERS if any(key.startswith(t) for key in source.shapes)), "")
    for old in source.shapes:
        if not old.startswith(tower):
            continue
        plain = old.removeprefix(tower)
        if _BUFFERS.search(plain) or (tower and _PROJECTION.search(plain)):
            continue
        new = renamed(plain, rules)
        if new in keys:
            raise UserError(
                f"{source.name}: {keys[new]} and {old} are both {new}; which one counts?"
            )
        keys[new] = old
    there = {new: source.shapes[old] for new, old in keys.items()}
    there |= _reshaped(there, cfg)
    named = WeightsFile(source.name, there, lambda new: source.read(keys[new]).reshape(there[new]))
    if "reg_token" in there and "register_tokens" in source.shapes:
        named = _with_class_position(named)
    return forms.adapted(named, known)


def _check_last_norm(source: WeightsFile, cfg: Any) -> None:
    """Refuse to take CLIPA's norm, after the mean over the patches, for one before it.

    Its names are those of CLIP's, which has one before the blocks, too.
    """
    names = {key.removeprefix("visual.") for key in source.shapes}
    is_clipa = "ln_post.weight" in names and "ln_pre.weight" not in names
    if is_clipa and getattr(cfg, "pool", "") == Pool.GAP and not cfg.fc_norm:
        raise UserError(
            f"{source.name}: ln_post without ln_pre, as CLIPA has it, is a norm after the mean; "
            f"set {setting('config.model.fc_norm=true')}"
        )


def _with_class_position(source: WeightsFile) -> WeightsFile:
    """Move the class token's own position in DINOv2's files with registers to the token."""
    table, token = (source.shapes.get(key, ()) for key in ("pos_embed", "cls_token"))
    if len(table) != 3 or token != (1, 1, table[2]) or table[1] < 2:
        return source
    if math.isqrt(table[1] - 1) ** 2 != table[1] - 1:
        return source
    shapes = {**source.shapes, "pos_embed": (table[0], table[1] - 1, table[2])}

    def read(key: str) -> np.ndarray:
        if key == "pos_embed":
            return source.read(key)[:, 1:]
        value = source.read(key)
        return value + source.read("pos_embed")[:, :1] if key == "cls_token" else value

    return WeightsFile(source.name, shapes, read)


def _rules(keys: Collection[str], cfg: ModelConfig) -> list[Rename]:
    rules = list(models.family(cfg).official_names)
    if getattr(cfg, "fc_norm", False):  # CLIPA's norm after the mean (open_clip)
        rules.insert(0, (r"^ln_post\.", "fc_norm."))
    if all(key.startswith("module.") for key in keys):  # saved from a parallel wrapper: CaiT
        rules.insert(0, (r"^module\.", ""))
    # In timm the first stage has nothing to merge.
    if any(re.match(r"(module\.)?layers\.0\.downsample\.", key) for key in keys):
        rules += _MICROSOFT_SWIN
    return rules


def _reshaped(shapes: Mapping[str, Shape], cfg: Any) -> dict[str, Shape]:
    # timm once projected flattened patches (channels, rows, columns) by a Linear layer.
    key = "patch_embed.proj.weight"
    shape: Shape = shapes.get(key, ())
    if len(shape) != 2 or not hasattr(cfg, "patch"):
        return {}
    found = layout_lib.flat_patch(shape[1], cfg.channels, models.pair(cfg.patch, "patch"))
    return {key: (shape[0], *found)} if found else {}
