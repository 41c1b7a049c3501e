# SPDX-License-Identifier: Apache-2.0
"""Fill a model's variables from a file, strictly: nothing missing, nothing left over, no NaN."""

import difflib
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from vit_jax import fields
from vit_jax.errors import UserError, unknown
from vit_jax.weights.layout import Entry, FileTensor, Shape

# The layers of a model that turn features into logits, by our names.
_HEAD = re.compile(r"^params/head(_dist)?/")


class OtherHead(UserError):
    """All that does not fit is heads.

    Attributes:
        patterns: what `skip` would have to be.
        lacking: the file has no head at all.
    """

    def __init__(self, message: str, patterns: Sequence[str], *, lacking: bool) -> None:
        super().__init__(message)
        self.patterns, self.lacking = tuple(patterns), lacking


# (name, value in our layout, wanted shape) -> value of that shape; raises UserError where it can't.
Resizer = Callable[[str, np.ndarray, Shape], np.ndarray]


@runtime_checkable  # beartype checks annotations with isinstance
class WeightsFile(Protocol):
    """A file of named tensors that is read one tensor at a time."""

    @property
    def name(self) -> str:
        """What to call it in messages: its path."""
        ...

    def shapes(self) -> Mapping[str, Shape]:
        """Return the shape of every tensor, from headers alone."""
        ...

    def read(self, key: str) -> np.ndarray:
        """Return one tensor as float32; raises UserError where it holds no floats."""
        ...


class Arrays:
    """A WeightsFile over arrays in memory."""

    def __init__(self, arrays: Mapping[str, np.ndarray], name: str = "the given arrays") -> None:
        self.name, self._arrays = name, arrays

    def shapes(self) -> Mapping[str, Shape]:
        return {key: tuple(value.shape) for key, value in self._arrays.items()}

    def read(self, key: str) -> np.ndarray:
        return np.asarray(self._arrays[key], np.float32)


# Parameters whose shape depends on the input size or the patch, by the end of their name.
RESIZABLE = re.compile(r"(^|/)(pos_embed|rel_pos_bias|patch_embed/kernel)$")


def fill(
    entries: Iterable[Entry],
    source: WeightsFile,
    *,
    skip: Sequence[str] = (),
    resize: Resizer | None = None,
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
        is_ignored: keys of the file that are nothing of the network.
        headless: let a file do without a head, which is then left out of the result.
        only_check: read no tensor.

    Returns:
        Our name -> float32 array in our layout, without what is skipped; nothing with `only_check`.

    Raises:
        UserError: keys missing, unused or of another shape, each with its name and shape; a value
            that is not finite; a skip that finds nothing.
        OtherHead: only heads are missing, unused or of another shape.
    """
    entries, shapes = list(entries), source.shapes()
    skips = [_Skip(pattern) for pattern in skip]
    wanted, used = [], set()
    for entry in entries:
        skipped = _is_skipped(entry.name.split("/", 1)[1], skips)
        used |= {part.key for parts in entry.layers for part in parts}
        if not skipped:
            wanted.append(entry)
    unused = [
        key
        for key in shapes
        if key not in used and not is_ignored(key) and not _is_skipped(key, skips)
    ]
    for one in skips:
        if not one.found:
            names = [entry.name.split("/", 1)[1] for entry in entries]
            raise unknown("parameter in init.skip:", one.pattern, _near(one.pattern, names, unused))
    if headless and not unused and _lacks_head(entries, shapes):
        wanted = [entry for entry in wanted if not _HEAD.match(entry.name)]
    _check_keys(wanted, unused, shapes, source.name, resize)
    if only_check:
        return {}
    return {entry.name: _read(entry, source, shapes, resize) for entry in wanted}


def _lacks_head(entries: Iterable[Entry], shapes: Mapping[str, Shape]) -> bool:
    heads = [entry for entry in entries if _HEAD.match(entry.name)]
    return not any(part.key in shapes for entry in heads for part in itertools.chain(*entry.layers))


def _near(pattern: str, names: Sequence[str], unused: Sequence[str]) -> Collection[str]:
    """Return names of layers, of modules or of arrays that resemble a pattern; else the modules."""
    paths = [re.split(r"[./]", name) for name in [*names, *unused]]
    every = {"/".join(path[:end]) for path in paths for end in range(1, len(path) + 1)}
    return difflib.get_close_matches(pattern, every) or {path[0] for path in paths}


class _Skip:
    """A pattern that remembers whether it ever found anything."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.found = pattern, False
        self._regex = fields.regex("init.skip", pattern)

    def finds(self, name: str) -> bool:
        # PyTorch's keys are joined by dots: one pattern means the same in both.
        hit = self._regex.search(name) or self._regex.search(name.replace(".", "/"))
        self.found |= hit is not None
        return hit is not None


def _is_skipped(name: str, skips: Sequence[_Skip]) -> bool:
    # All of them look, not only the first that finds it: each must be of use.
    return sum(one.finds(name) for one in skips) > 0


def _listed(problems: Sequence[str]) -> str:
    items = list(dict.fromkeys(problems))  # a tensor of many layers is one problem
    more = f" and {len(items) - 4} more" if len(items) > 4 else ""
    return ", ".join(items[:4]) + more


def _check_keys(
    entries: Sequence[Entry],
    unused: Sequence[str],
    shapes: Mapping[str, Shape],
    file: str,
    resize: Resizer | None,
) -> None:
    missing, wrong, modules = [], [], {re.split(r"[./]", key)[0] for key in unused}
    for entry in entries:
        for part in itertools.chain(*entry.layers):
            there = shapes.get(part.key)
            if there == part.shape:
                continue
            if there is None:
                missing.append(f"{part.key} {list(part.shape)}")
            elif resize is None or not _can_resize(entry, part, there):
                off = " (resizing is off)" if _can_resize(entry, part, there) else ""
                wrong.append(f"{part.key}: in the file {list(there)}, here {list(part.shape)}{off}")
            else:
                continue
            modules.add(entry.name.split("/")[1])
    problems = []
    if missing:
        problems.append(f"lacks {_listed(missing)}")
    if wrong:
        problems.append(f"has other shapes: {_listed(wrong)}")
    if unused:
        left = [f"{key} {list(shapes[key])}" for key in unused]
        problems.append(f"has more than the model: {_listed(left)}")
    if problems:
        message = f"{file} {'; it '.join(problems)}; choose the config it was made with"
        if not modules <= {"head", "head_dist", "pre_logits"}:
            raise UserError(message)
        # "^head" finds head_dist too.
        names = modules - ({"head_dist"} if "head" in modules else set())
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
        sizes, limit = {0, 1} if part.shape == entry.shape[-4:] else {2, 3}, 2**7
    return set(differs) <= sizes and all(1 <= there[i] <= limit for i in differs)


def _read(
    entry: Entry, source: WeightsFile, shapes: Mapping[str, Shape], resize: Resizer | None
) -> np.ndarray:
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
        if resize is not None and RESIZABLE.search(entry.name):
            # Tables of equal shape too: a grid of 2 x 8 is not one of 4 x 4.
            layer = resize(entry.name, layer, target)
        assert layer.shape == target, (entry.name, layer.shape, target)
        if entry.stacked:
            whole[i] = layer
        else:
            whole[...] = layer
    return whole
