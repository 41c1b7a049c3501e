# SPDX-License-Identifier: Apache-2.0
"""What a run trains and evaluates on, saved with every checkpoint and compared at every start."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vit_jax import data
from vit_jax.errors import UserError

KEY = "data"


def describe(train: data.Source, evals: Mapping[str, Mapping[str, data.Source]]) -> dict[str, Any]:
    """Return, by split, the number of examples and the digest of the names of their files."""
    splits = {"train": train} | {
        f"evals.{name}.{part}".rstrip("."): source
        for name, sources in evals.items()
        for part, source in sources.items()
    }
    return {
        split: {"name": source.name, "examples": len(source), "digest": source.digest()}
        for split, source in splits.items()
    }


def changes(
    saved: Mapping[str, Any], class_names: Sequence[str], splits: Mapping[str, Any]
) -> list[str]:
    """Say what differs between the data that a checkpoint names and the data that is here.

    A split that another config names is left to the comparison of configs. Checkpoints of earlier
    versions name class names alone.

    Args:
        saved: the checkpoint's metadata.
        class_names: of the training split, now.
        splits: `describe` of what is here.
    """
    lines = []
    now = list(class_names)
    before = saved.get("class_names", now)
    same_name = _name(saved.get(KEY, {})) in ("", _name(splits))
    if same_name and before != now:
        pairs = zip(before, now, strict=False)
        first = next((f"{a!r} is now {b!r}" for a, b in pairs if a != b), "")
        lines.append(f"classes: {first or f'{len(before)} before, {len(now)} now'}")
    for split, here in splits.items():
        there = saved.get(KEY, {}).get(split)
        if there is None or there["name"] != here["name"]:
            continue
        if there["examples"] != here["examples"]:
            lines.append(
                f"{split}: {there['examples']:,} examples before, {here['examples']:,} now"
            )
        elif there["digest"] != here["digest"]:
            lines.append(f"{split}: other files than before (their names, or sizes of shards)")
    return lines


def _name(splits: Mapping[str, Any]) -> str:
    return splits.get("train", {}).get("name", "")


def check_unchanged(lines: list[str], place: Path) -> None:
    """Refuse to continue a run on data that are not those it was trained on.

    Raises:
        UserError: with what differs.
    """
    if lines:
        raise UserError(
            f"{place} was trained on other data ({'; '.join(lines[:4])}); bring those back, choose "
            "another workdir, or add --allow_data_change to continue on these"
        )
