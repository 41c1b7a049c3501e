# SPDX-License-Identifier: Apache-2.0
"""The dotted names of a config's fields, and which of them a mistyped one is nearest to."""

import dataclasses
import difflib
from collections.abc import Iterator
from typing import Any

from vit_jax.errors import UserError, unknown

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
    """Refuse an override of a field that does not exist: check_path(cfg, "optim.lr").

    `root` is what the flag calls `cfg`.

    Raises:
        UserError: naming the unknown part and the nearest fields of the whole config.
    """
    node, seen = cfg, root
    for part in path.split("."):
        inside = children(node)
        if inside is None:
            raise UserError(f"{seen} is a value, it has no field {part!r}")
        if part not in inside:
            near = nearest({root: cfg}, f"{root}.{path}")
            if near:
                raise UserError(f"unknown key --{root}.{path}; {did_you_mean(near)}")
            raise unknown(f"key --{seen}.{part}: {seen} has no field", part, inside)
        node, seen = inside[part], f"{seen}.{part}"


def check_value_path(cfg: Any, path: str, root: str = "config") -> None:
    """Refuse an override of what holds fields instead of being one, besides unknown ones.

    Raises:
        UserError: naming fields of the group.
    """
    check_path(cfg, path, root)
    inside = children(value_at(cfg, path))
    if inside is None:
        return
    flags = [f"--{root}.{path}.{name}" for name in inside]
    told = ", ".join(flags[:4]) + (f", ... ({len(flags)} in all)" if len(flags) > 4 else "")
    raise UserError(
        f"--{root}.{path} is a group of fields, which only a config file can set as a whole; "
        f"here set one of {told or 'its fields (it has none)'}"
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
    """List up to three fields of all that there are, nearest first.

    Compared are the last names, `lr` with that of `optim.lr`, then the whole names.

    Args:
        tree: a config, or several by name.
        path: what was written.
        alike: how alike the last names must be; 1 is the same.
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
    """Suggest fields as flags."""
    return f"did you mean {' or '.join(f'--{path}' for path in paths)}?"
