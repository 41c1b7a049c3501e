# SPDX-License-Identifier: Apache-2.0
"""The grid of patches and the windows to which the tables of a file of weights belong.

A table's length does not tell: 32 positions may be 4 x 8, 8 x 4 or 2 x 16. A run has its config; a
file may have the model in its metadata, a config.json beside it or a published name. Without these
the grid is taken to be square.
"""

import json
import logging
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from vit_jax import models
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig, ViTConfig
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.models.resample import Grid
from vit_jax.weights.files import WeightsFile
from vit_jax.weights.layout import Entry, Shape
from vit_jax.weights.resize import ResizeRule, positions

_log = logging.getLogger(__name__)

_KEY = "vit_jax.grid"  # in the metadata of a .safetensors file
_MOST = 2**14  # pixels a side
_STEM = "patch_embed.proj.weight"  # of timm, which tells the patch


def metadata(cfg: ModelConfig | None) -> dict[str, str]:
    """Return what a .safetensors file of a model's weights says besides, for `saved`."""
    found = {"format": "pt"}
    if cfg is not None:
        sizes = {"img_size": list(models.pair(cfg.image_size, "image_size"))}
        if models.family(cfg).windows:
            sizes["window_size"] = list(getattr(cfg, "window", ()))
        found[_KEY] = json.dumps(sizes)
    return found


def saved(source: WeightsFile, about: Mapping[str, Any], cfg: ModelConfig) -> ModelConfig | None:
    """Return the model that a file of timm's names was saved from, as far as tables need it.

    Args:
        source: the file, under timm's names, with its own metadata.
        about: timm's pretrained_cfg, with img_size and window_size where a config.json has these.
        cfg: the model that the file is read into.

    Returns None where neither says a size.
    """
    try:
        own = json.loads(source.metadata.get(_KEY, "{}"))
    except (ValueError, RecursionError):  # a stranger's
        own = {}
    if isinstance(own, dict):
        about = {**about, **own}
    shown = about.get("input_size")
    size = about.get("img_size") or (shown[1:] if isinstance(shown, list) else 0)
    return like(cfg, size, _patch(source.shapes), about.get("window_size"))


def _patch(shapes: Mapping[str, Shape]) -> Shape:
    return shapes[_STEM][2:] if len(shapes.get(_STEM, ())) == 4 else ()


def like(cfg: ModelConfig, size: Any, patch: Shape = (), window: Any = None) -> ModelConfig | None:
    """Return a model like `cfg` of other sizes; None where they are none."""
    fields: dict[str, Any] = {"image_size": _sides(size)}
    if patch and hasattr(cfg, "patch"):
        fields["patch"] = patch
    if window and models.family(cfg).windows:
        fields["window"] = _sides(window)
    if getattr(cfg, "base_patch", ()):  # only here
        fields |= {"base_patch": (), "base_grid": ()}
        if hasattr(cfg, "drawn_patches"):
            fields["drawn_patches"] = ()
    if not all(map(all, (fields["image_size"], fields.get("window", (1,))))):
        return None
    try:
        found = models.with_fields(cfg, fields)
    except UserError:
        return None
    return found if _has_grid(found) else None


def _sides(value: Any) -> tuple[int, ...]:
    sides = value if isinstance(value, list | tuple) else [value]
    fit = 1 <= len(sides) <= 4 and all(type(side) is int and 1 <= side <= _MOST for side in sides)
    return tuple(sides) if fit else (0,)


def _has_grid(cfg: ModelConfig) -> bool:
    try:
        models.create(cfg)
    except UserError:  # such as patches that do not divide the image
        return False
    return True


def square(cfg: ModelConfig, count: int, patch: Shape) -> ModelConfig | None:
    """Return a model like `cfg` of a square grid of `count` patches; None where there is none."""
    side = math.isqrt(count)
    if not side or side * side != count:
        return None
    if models.family(cfg).name == "Hybrid":  # its patches are of a map of the image
        unit = models.pair(cfg.image_size, "image_size")
        unit = [
            n // m for n, m in zip(unit, models.patch_grid(cfg, (unit[0], unit[1])), strict=True)
        ]
    else:
        unit = list(patch or models.pair(getattr(cfg, "patch", (1,)), "patch"))
    return like(cfg, [side * step for step in unit], patch)


def refused(
    entries: Iterable[Entry],
    source: WeightsFile,
    cfg: ModelConfig,
    old: ModelConfig | None,
    rule: ResizeRule,
) -> dict[str, str]:
    """Return the tables that must not be used although their shape fits: our name -> why.

    These are tables of another grid with as many patches that no rule resizes, and tables of an
    unknown grid with a square number of patches, if the model's grid is not square. With another
    number the unknown grid is no square; it is taken to be the model's, and a line says so.
    """
    found = {}
    for entry in entries:
        parts = entry.layers[0]
        if any(source.shapes.get(part.key) != part.shape for part in parts):
            continue
        what, wanted = _grid(entry.name, cfg)
        there = _grid(entry.name, old)[1] if old is not None else None
        if wanted is None:
            continue
        if there is not None and math.prod(there) != math.prod(wanted):
            there = None  # what says so is of another file
        if there is None and (rule is ResizeRule.NONE or wanted[0] == wanted[1]):
            continue
        if there is None and math.isqrt(math.prod(wanted)) ** 2 != math.prod(wanted):
            _log.warning(
                "%s: nothing says of which grid %s is; it is taken to be of this model's %d x %d",
                *(source.name, parts[0].key, *wanted),
            )
            continue
        can_resize = entry.name.endswith(("/pos_embed", "/rel_pos_bias"))
        if there is not None and (there == wanted or (can_resize and rule is not ResizeRule.NONE)):
            continue
        found[entry.name] = f"{source.name}: {parts[0].key} is {_why(what, wanted, there)}"
    return found


def _why(what: str, wanted: Grid, there: Grid | None) -> str:
    here = f"{wanted[0]} x {wanted[1]}"
    if there is not None:
        return f"of {there[0]} x {there[1]} {what}, and this model has {here}, as many otherwise"
    return (
        f"of as many {what} as this model's {here}, but may be of another grid, and nothing says "
        "of which; put timm's config.json with its input_size beside the file, or, where you know "
        "that it is of this grid, take it as it is: init.resize=none"
    )


def _grid(name: str, cfg: Any) -> tuple[str, Grid | None]:
    """Return what a parameter that depends on a grid has one of, and that grid; else None."""
    kind = name.rpartition("/")[2]
    if kind == "pos_embed":
        return "patches", positions(cfg)[1]
    if kind == "rel_pos_bias" and (windows := models.family(cfg).windows):
        stage = re.search(r"/stage(\d+)/", name)
        return "patches a window", windows(cfg)[int(stage[1]) if stage else 0]
    in_sequence = isinstance(cfg, ViTConfig) and cfg.pos_embed is PosEmbed.RELATIVE
    mixed = models.family(cfg).one_size and re.search(r"/mlp_tokens/fc\d/kernel$", name)
    if mixed or (in_sequence and kind == "rel_embed"):
        return "patches", positions(cfg)[1]
    return "", None
