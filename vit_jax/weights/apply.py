# SPDX-License-Identifier: Apache-2.0
"""Fill a model's variables from a file, strictly: nothing missing, nothing left over, no NaN.

A kernel of images with other channels is adapted by timm's rule (timm.models.adapt_input_conv).
"""

import difflib
import itertools
import logging
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from vit_jax.errors import UserError, unknown
from vit_jax.settings import fields
from vit_jax.weights.files import WeightsFile
from vit_jax.weights.layout import Entry, FileTensor, Shape

_log = logging.getLogger(__name__)
# The layers of a model that turn features into logits, by our names.
HEAD = re.compile(r"^(params/head(_dist)?|batch_stats/head_norm)/")
# Modules that are heads, by the names of ours and of transformers.
_HEADS = {"head", "head_dist", "head_norm", "pre_logits"}
_HEADS |= {"classifier", "cls_classifier", "distillation_classifier"}
# (name, value in our layout, wanted shape) -> value of that shape; raises UserError where it can't.
Resizer = Callable[[str, np.ndarray, Shape], np.ndarray]
# Parameters whose shape depends on the input size or the patch, by the end of their name.
RESIZABLE = re.compile(r"(^|/)(pos_embed|rel_pos_bias|patch_embed/kernel)$")


def fits(old: int, new: int) -> bool:
    """Return whether there is a rule from one number of channels to another.

    To one channel from at most three, which show one image; from colours or one channel to any.
    """
    return old == new or old in (1, 3) or (new == 1 and old < 3)


def adapted(
    kernel: Float[np.ndarray, "H W C D"], count: int, name: str
) -> Float[np.ndarray, "H W K D"]:
    """Return a kernel for `count` channels, and say so in one line; `name` is its file's.

    For one channel it is summed, so that a grey image gives what its copy in each channel gave. For
    more it is repeated and scaled, so that a constant gives the same.
    """
    old = kernel.shape[2]
    if count == 1:
        what, found = "summed over them", kernel.sum(axis=2, keepdims=True)
    else:
        what = f"repeated, times {old}/{count}"
        copies = np.tile(kernel, (1, 1, math.ceil(count / old), 1))[:, :, :count]
        found = copies * np.float32(old / count)
    _log.warning(
        "%s sees %d channels, this model %d: the kernel that sees them is %s",
        name,
        old,
        count,
        what,
    )
    return found


class OtherHead(UserError):
    """All that does not fit is heads."""

    def __init__(self, message: str, patterns: Sequence[str], *, lacking: bool) -> None:
        super().__init__(message)
        self.patterns = tuple(patterns)  # what `skip` would have to be
        self.lacking = lacking  # whether the file has no head at all


def in_memory(values: Mapping[str, np.ndarray], name: str = "the given arrays") -> WeightsFile:
    """Return a WeightsFile over arrays in memory."""
    shapes = {key: tuple(value.shape) for key, value in values.items()}
    return WeightsFile(name, shapes, lambda key: np.asarray(values[key], np.float32))


def fill(
    entries: Iterable[Entry],
    source: WeightsFile,
    *,
    skip: Sequence[str] = (),
    resize: Resizer | None = None,
    refused: Mapping[str, str] | None = None,
    stem: str = "",
    is_ignored: Callable[[str], bool] = lambda key: False,
    headless: bool = False,
    only_check: bool = False,
) -> dict[str, np.ndarray]:
    """Read every entry from `source`; all keys and shapes are checked before any tensor is read.

    Args:
        entries: what the model holds, and where the file should have it.
        source: the file.
        skip: regexes searched in our names without the collection ("head/kernel") and in the file's
            keys; what they find is left out of the result, or unused in the file.
        resize: how to bring a position table, bias table or patch kernel of another size to ours.
        refused: our names of what must not be taken though it may fit, and why.
        stem: our name of the layer that sees the image, whose kernel may be of images with another
            number of channels; "" where it may not.
        is_ignored: keys of the file that are nothing of the network.
        headless: let a file do without a head, which is then left out of the result.
        only_check: read no tensor, and return nothing.

    Returns our name -> float32 array in our layout.

    Raises:
        UserError: keys missing, unused or of another shape, each with its name and shape; a value
            that is not finite; a skip that finds nothing.
        OtherHead: only heads are missing, unused or of another shape.
    """
    entries, shapes = list(entries), source.shapes
    skips = {pattern: fields.regex("init.skip", pattern) for pattern in skip}
    of_use: set[str] = set()

    def is_skipped(name: str) -> bool:
        # PyTorch's keys are joined by dots: one pattern means the same in both.
        spellings = (name, name.replace(".", "/"))
        hits = {key for key, regex in skips.items() if any(map(regex.search, spellings))}
        of_use.update(hits)
        return bool(hits)

    names = [entry.name.split("/", 1)[1] for entry in entries]
    wanted = [entry for entry, name in zip(entries, names, strict=True) if not is_skipped(name)]
    used = {part.key for entry in entries for parts in entry.layers for part in parts}
    spare = [key for key in shapes if key not in used and not is_ignored(key)]
    unused = [key for key in spare if not is_skipped(key)]
    for pattern in skips:
        if pattern not in of_use:
            raise unknown(
                "parameter in init.skip:", pattern, _near(pattern, names, unused), field="init.skip"
            )
    if headless and not unused and _lacks_head(entries, shapes):
        wanted = [entry for entry in wanted if not HEAD.match(entry.name)]
    kernel = f"params/{stem}/kernel" if stem else ""
    _check_keys(wanted, unused, source, resize, kernel)
    for entry in wanted:
        if refused and entry.name in refused:
            raise UserError(refused[entry.name])
    if only_check:
        return {}
    return {entry.name: _read(entry, source, resize, kernel) for entry in wanted}


def _lacks_head(entries: Iterable[Entry], shapes: Mapping[str, Shape]) -> bool:
    heads = [entry for entry in entries if HEAD.match(entry.name)]
    return not any(part.key in shapes for entry in heads for part in itertools.chain(*entry.layers))


def _near(pattern: str, names: Sequence[str], unused: Sequence[str]) -> Collection[str]:
    """Return names of layers, of modules or of arrays that resemble a pattern; else the modules."""
    paths = [re.split(r"[./]", name) for name in [*names, *unused]]
    every = {"/".join(path[:end]) for path in paths for end in range(1, len(path) + 1)}
    return difflib.get_close_matches(pattern, every) or {path[0] for path in paths}


def _listed(problems: Sequence[str]) -> str:
    items = list(dict.fromkeys(problems))  # a tensor of many layers is one problem
    more = f" and {len(items) - 4} more" if len(items) > 4 else ""
    return ", ".join(items[:4]) + more


def _check_keys(
    entries: Sequence[Entry],
    unused: Sequence[str],
    source: WeightsFile,
    resize: Resizer | None,
    stem: str,
) -> None:
    shapes = source.shapes
    missing, wrong, modules = [], [], {re.split(r"[./]", key)[0] for key in unused}
    for entry in entries:
        for part in itertools.chain(*entry.layers):
            there = shapes.get(part.key)
            if there is not None and entry.name == stem:
                there = _of_our_channels(entry, part, there)
            can_resize = there is not None and _can_resize(entry, part, there)
            if there == part.shape or (can_resize and resize is not None):
                continue
            there = shapes.get(part.key)
            modules.add(entry.name.split("/")[1])
            if there is None:
                missing.append(f"{part.key} {list(part.shape)}")
            else:
                off = " (resizing is off)" if can_resize else ""
                wrong.append(f"{part.key}: in the file {list(there)}, here {list(part.shape)}{off}")
    more = [f"{key} {list(shapes[key])}" for key in unused]
    kinds = {"lacks ": missing, "has other shapes: ": wrong, "has more than the model: ": more}
    problems = [kind + _listed(found) for kind, found in kinds.items() if found]
    if not problems:
        return
    message = f"{source.name} {'; it '.join(problems)}; choose the config it was made with"
    if not modules <= _HEADS:
        raise UserError(message)
    # "^head" finds the others too.
    names = modules - ({"head_dist", "head_norm"} if "head" in modules else set())
    patterns = [f"^{name}" for name in sorted(names)]
    lacking = bool(missing) and not wrong and not unused and _lacks_head(entries, shapes)
    raise OtherHead(message, patterns, lacking=lacking)


def _can_resize(entry: Entry, part: FileTensor, there: Shape) -> bool:
    # Only the sizes of grids, windows and patches may differ, and not without bound: what a file
    # claims must not decide how much memory is used.
    name = entry.name
    if not RESIZABLE.search(name) or len(there) != len(part.shape):
        return False
    differs = [i for i, (a, b) in enumerate(zip(there, part.shape, strict=True)) if a != b]
    sizes, limit = {"pos_embed": {1}, "rel_pos_bias": {0}}.get(name.rsplit("/", 1)[-1]), 2**16
    if sizes is None:  # a patch kernel: height and width, in PyTorch's order or in ours
        sizes, limit = _kernel_axes(entry, part)[0], 2**7
    return set(differs) <= sizes and all(1 <= there[i] <= limit for i in differs)


def _of_our_channels(entry: Entry, part: FileTensor, there: Shape) -> Shape:
    """Return the shape of a stem's kernel in a file once it has our number of channels."""
    axis = _kernel_axes(entry, part)[1]
    if len(there) != len(part.shape) or not fits(there[axis], part.shape[axis]):
        return there
    return (*there[:axis], part.shape[axis], *there[axis + 1 :])


def _kernel_axes(entry: Entry, part: FileTensor) -> tuple[set[int], int]:
    """Return the axes of height and width, and that of channels, of a convolution in a file."""
    return ({0, 1}, 2) if part.shape == entry.shape[-4:] else ({2, 3}, 1)  # ours, PyTorch's


def _read(entry: Entry, source: WeightsFile, resize: Resizer | None, stem: str) -> np.ndarray:
    whole = np.empty(entry.shape, np.float32)
    tensors: dict[str, np.ndarray] = {}  # a stacked file's tensor is read once for all layers
    for i, parts in enumerate(entry.layers):
        values = []
        for part in parts:
            if part.key not in tensors:
                tensors[part.key] = source.read(part.key)
            value = tensors[part.key] if part.layer is None else tensors[part.key][part.layer]
            if part.layer is None:
                del tensors[part.key]
            if not np.isfinite(value).all():
                raise UserError(f"{source.name}: {part.key} holds NaN or infinite values")
            values.append(value)
        layer = np.asarray(entry.decode(values))
        target = entry.shape[1:] if entry.stacked else entry.shape
        if entry.name == stem and layer.shape[2] != target[2]:
            layer = adapted(layer, target[2], source.name)
        if resize is not None and RESIZABLE.search(entry.name):
            # Tables of equal shape too: a grid of 2 x 8 is not one of 4 x 4.
            layer = resize(entry.name, layer, target)
        assert layer.shape == target, (entry.name, layer.shape, target)
        _copy(layer, whole[i, ...] if entry.stacked else whole)
    return whole


def _copy(values: np.ndarray, to: np.ndarray) -> None:
    if values.ndim < 2 or values.flags.c_contiguous:
        to[...] = values
        return
    # PyTorch's kernels, transposed: in strips of a few cache lines it takes a third of the time.
    for start in range(0, to.shape[-1], 64):
        to[..., start : start + 64] = values[..., start : start + 64]
