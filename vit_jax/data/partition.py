# SPDX-License-Identifier: Apache-2.0
"""Names of one's own images, and splits where they have none: seeded, alike in every class."""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence

from vit_jax.errors import UserError

SPLITS = ("train", "val", "test")
WHOLE = "whole"  # all of them; TFDS reads "all" in its own way
_HELD_OUT = 0.1  # of each class, for val and for test each
# Beginnings of names of one's own images, which may lie elsewhere on another machine.
KINDS = ("folder:", "csv:", "tar:", "parquet:", "hf:")
_ENDS = {"csv": (".csv", ".csv.gz", ".tsv"), "tar": (".tar",), "parquet": (".parquet",)}
# How a name ends that chooses the fields of tar and Parquet files.
_OPTION = re.compile(r"[?&](?:(split_seed(?==\d)|label|image|config)=([^?&]+))$")
_SEED = re.compile(r"\?split_seed=(\d+)$")


def split_seed(name: str) -> tuple[str, int]:
    """Separate the seed from "DIR?split_seed=3"; without one it is 0."""
    found = _SEED.search(name)
    return (name[: found.start()], int(found[1])) if found else (name, 0)


def check_no_seed(seed: int, where: str) -> None:
    """Raise UserError for the seed of a draw where data, `where` in messages, have splits."""
    if seed:
        raise UserError(f"{where} has splits of its own; leave out split_seed={seed}")


def options(name: str) -> tuple[str, dict[str, str]]:
    """Separate "PATTERN?label=fine_label&image=img" into the pattern and its options."""
    found: dict[str, str] = {}
    while match := _OPTION.search(name):
        found[match[1]], name = match[2], name[: match.start()]
    return name, found


def full_name(name: str) -> str:
    """Write a path alone, "photos/birds", as the dataset that it is: "folder:photos/birds".

    With the suffix .csv, .csv.gz, .tsv, .tar or .parquet it is "csv:FILE", "tar:PATTERN" or
    "parquet:PATTERN"; other names stay as they are.
    """
    plain = options(name)[0]
    if name.startswith(KINDS) and not name.startswith("hf://"):
        return name
    for kind, ends in _ENDS.items():
        if plain.lower().endswith(ends):
            return f"{kind}:{name}"
    is_path = plain.startswith(("/", "./", "../", "~")) or "://" in plain
    is_path = is_path or ("/" in plain and os.path.isdir(plain))
    return f"folder:{name}" if is_path else name


def partition(paths: Sequence[str], labels: Sequence[int], seed: int) -> Mapping[str, list[int]]:
    """Divide examples into train, val and test: of each class 80 %, 10 % and 10 %.

    A function of the seed and the paths alone. A class of three or more examples has some in each
    split, a smaller one only in train.

    Args:
        paths: names of the examples, each another.
        labels: their class ids.
        seed: of the draw.

    Returns:
        The indices of each split, in an order that is mixed over the classes.
    """
    keys = [_key(path, seed) for path in paths]
    by_class: dict[int, list[int]] = {}
    for index in sorted(range(len(paths)), key=lambda index: keys[index]):
        by_class.setdefault(labels[index], []).append(index)
    found: dict[str, list[int]] = {name: [] for name in SPLITS}
    for members in by_class.values():
        held = max(1, round(_HELD_OUT * len(members))) if len(members) > 2 else 0
        found["val"] += members[:held]
        found["test"] += members[held : 2 * held]
        found["train"] += members[2 * held :]
    return {name: sorted(members, key=lambda index: keys[index]) for name, members in found.items()}


def _key(path: str, seed: int) -> bytes:
    salt = seed.to_bytes(8, "little")
    return hashlib.blake2b(os.fsencode(path), digest_size=8, salt=salt).digest()
