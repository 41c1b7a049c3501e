# SPDX-License-Identifier: Apache-2.0
"""Texts about a config's fields: dotted names, the nearest name, valid values."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterator
from typing import Any

from vit_jax.errors import UserError, setting, unknown

# What other codebases call a field whose name here looks nothing like it.
_ALSO_CALLED = {
    "learning_rate": "optim.lr",
    "wd": "optim.weight_decay",
    "optimizer": "optim.name",
    "epochs": "duration",
    "num_epochs": "duration",
    "total_epochs": "duration",
    "steps": "duration",
    "num_steps": "duration",
    "total_steps": "duration",
    "max_steps": "duration",
    "epoch": "duration",
    "dataset": "data.name",
    "patch_size": "model.patch",
    "img_size": "model.image_size",
    "num_layers": "model.depth",
    "layers": "model.depth",
    "hidden_dim": "model.dim",
    "embed_dim": "model.dim",
    "mixup": "data.mix.mixup_alpha",
    "cutmix": "data.mix.cutmix_alpha",
    "ema": "ema_decay",
    "warmup_epochs": "optim.warmup",
    "warmup_steps": "optim.warmup",
}
_ALIKE = 0.7  # of two last names, for the one to be suggested for the other
_AS_GOOD = 0.4  # how far behind the best another suggestion may lie; both scores add up to 2


def check_path(cfg: Any, path: str, root: str = "config") -> None:
    """Refuse an override of a field that does not exist, with the nearest of the whole config.

    check_path(cfg, "optim.lr"); `root` is what the flag calls `cfg`.
    """
    node, seen = cfg, root
    for part in path.split("."):
        inside = children(node)
        if inside is None:
            raise UserError(f"{seen} is a value, it has no field {part!r}")
        if part not in inside:
            near = nearest({root: cfg}, f"{root}.{path}")
            if near:
                raise UserError(f"unknown key {setting(f'{root}.{path}')}; {did_you_mean(near)}")
            key = setting(f"{seen}.{part}")
            raise unknown(f"key {key}: {seen} has no field", part, inside)
        node, seen = inside[part], f"{seen}.{part}"


def check_value_path(cfg: Any, path: str, root: str = "config") -> None:
    """Refuse an override of an unknown field, and of a group of fields."""
    check_path(cfg, path, root)
    inside = children(value_at(cfg, path))
    if inside is None:
        return
    flags = [f"--{root}.{path}.{name}" for name in inside]
    listed = ", ".join(flags[:4]) + (f", ... ({len(flags)} in all)" if len(flags) > 4 else "")
    raise UserError(
        f"--{root}.{path} is a group of fields, which only a config file can set as a whole; "
        f"here set one of {listed or 'its fields (it has none)'}"
    )


def value_at(node: Any, path: str) -> Any:
    """Return what lies in a config under a dotted name; None where there is nothing."""
    for part in path.split("."):
        node = (children(node) or {}).get(part)
    return node


def children(node: Any) -> dict[str, Any] | None:
    """Return what lies in a dataclass or a dict by name; None of a value."""
    if isinstance(node, dict):
        return node
    if dataclasses.is_dataclass(node):
        return {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}
    return None


def _paths(node: Any, before: str) -> Iterator[str]:
    """Yield the names of the values; those of groups cannot be set."""
    for name, value in (children(node) or {}).items():
        if children(value) is None:
            yield f"{before}{name}"
        yield from _paths(value, f"{before}{name}.")


def nearest(tree: Any, path: str, alike: float = _ALIKE) -> list[str]:
    """List up to three fields of a config, or of several by name, that `path` may mean.

    The last names, `lr` and that of `optim.lr`, must be as similar as `alike` (1: equal); then the
    whole names decide. The nearest comes first.
    """
    known = list(_paths(tree, ""))
    last = path.rpartition(".")[2].lower()
    meant = _ALSO_CALLED.get(last)
    found = [name for name in known if f".{name}".endswith(f".{meant}")]
    if found:
        return found
    scores = {}
    for name in known:
        own = difflib.SequenceMatcher(None, last, name.rpartition(".")[2]).ratio()
        if own >= alike:
            scores[name] = own + difflib.SequenceMatcher(None, path, name).ratio()
    best = sorted(scores, key=lambda name: -scores[name])
    return [name for name in best if scores[name] > scores[best[0]] - _AS_GOOD][:3]


def did_you_mean(paths: list[str]) -> str:
    """Suggest fields, as flags where a command line was typed."""
    return f"did you mean {' or '.join(map(setting, paths))}?"


def brief(value: Any) -> str:
    """Write a value for a message, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        text = "..."
    return text if len(text) <= 200 else f"{text[:197]}..."


# What each scalar is called, and a tuple of it as an example.
_SCALARS: dict[Any, tuple[str, tuple[Any, ...]]] = {
    int: ("whole number", (1, 3, 7)),
    float: ("number", (0.5, 1.0)),
    str: ("string", ("^head",)),
    bool: ("true or false", (True,)),
    type(None): ("None", (None,)),
}


def words(kind: Any, default: Any = dataclasses.MISSING, value: Any = None) -> str:
    """Describe in a few words what a field of the annotation `kind` may be, with an example.

    `value` was given instead: a number for a string was probably meant as a duration.
    """
    args = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        several = f"{'' if args[0] in _SCALARS else 'a tuple of '}{_one(args[0])}s"
        if Ellipsis not in args:
            several = _one(kind)
        example = default if isinstance(default, tuple) and default else _example(kind)
        return f"{several}, such as {written(example)}"
    if kind is str and isinstance(default, str) and default:
        return f"a string, such as {default!r}"
    if kind is str and isinstance(value, int | float) and not isinstance(value, bool):
        return f"a string: '{brief(value)}', or as a duration '{brief(value)} steps'"
    one = _one(kind)
    if kind not in (bool, type(None)) and typing.get_origin(kind) is None:
        one = f"a{'n' if one[0] in 'AEIO' else ''} {one}"
    if dataclasses.is_dataclass(kind) and isinstance(default, type):
        return f"{one}, such as {default.__name__}()"
    return one


def _one(kind: Any) -> str:
    """Name one value of an annotation."""
    args, origin = typing.get_args(kind), typing.get_origin(kind)
    if kind in _SCALARS:
        return _SCALARS[kind][0]
    if origin in (typing.Union, types.UnionType):
        return " or ".join(words(arg) for arg in args)
    if origin is dict:
        return f"a dict from {_one(args[0])} to {_one(args[1])}"
    if origin is tuple:
        return "(" + ", ".join("..." if arg is Ellipsis else _one(arg) for arg in args) + ")"
    return getattr(kind, "__name__", str(kind))


def _example(kind: Any) -> Any:
    args = typing.get_args(kind)
    if typing.get_origin(kind) is not tuple:
        return _SCALARS[kind][1][0] if kind in _SCALARS else kind
    if Ellipsis in args and args[0] in _SCALARS:
        return _SCALARS[args[0]][1]
    return tuple(_example(arg) for arg in args if arg is not Ellipsis)


def written(values: tuple[Any, ...]) -> str:
    """Write a tuple as a flag takes it: 1,3,7 or "('30%','60%')"."""
    if all(isinstance(value, int | float) for value in values):
        return ",".join(map(str, values))
    items = ",".join(map(repr, values))
    return f'"({items}{"," if len(values) == 1 else ""})"'
