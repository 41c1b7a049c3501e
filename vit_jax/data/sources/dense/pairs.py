# SPDX-License-Identifier: Apache-2.0
"""Images in one folder and a file of each one's pixels in another, paired by their names."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vit_jax.data.account import SYSTEM
from vit_jax.data.images.header import read_file
from vit_jax.data.sources.dense.annotated import CLASSES, Item, Root
from vit_jax.data.sources.folders import OUTSIDE
from vit_jax.data.sources.listing import list_all
from vit_jax.errors import UserError, shown
from vit_jax.storage import remote


class Pairs(NamedTuple):
    """What two folders hold.

    Attributes:
        items: the images that have a file of their pixels.
        targets: the path of that file, for each.
        left_out: (reason, path) of images without, of files without an image, of other files.
        notes: what is to be said besides.
    """

    items: list[Item]
    targets: list[str]
    left_out: list[tuple[str, str]]
    notes: list[str]


def find(
    root: Root, where: str, folders: tuple[str, Sequence[str]], suffixes: Sequence[str], what: str
) -> Pairs:
    """Pair the files of two folders: IMAGES/<split>/x.jpg and TARGETS/<split>/x.png.

    The splits may lie above the folders instead, <split>/IMAGES/x.jpg; without any, they are drawn.

    Args:
        root: of both folders.
        where: the root in messages.
        folders: the name of the images' folder, and the names that the other one may have.
        suffixes: of the files of pixels.
        what: they are called, "mask".

    Raises UserError: no such folders, or two files of one image's pixels.
    """
    listing = list_all(root)
    arrays = [path for why, path in listing.others if path.endswith(".npy") and why != SYSTEM]
    told = {*arrays, CLASSES}
    others = [(why, path) for why, path in listing.others if path not in told]
    ours, names = folders
    inside = {"/".join(path.split("/")[:depth]) for path in listing.folders for depth in (1, 2)}
    name = next((each for each in names if each in inside), "")
    above = False
    if ours not in inside or not name:
        splits = [path.rpartition("/")[0] for path in inside if path.endswith(f"/{ours}")]
        name = next((each for each in names if any(f"{s}/{each}" in inside for s in splits)), "")
        above = bool(name)
    if not name:
        layout = f"{ours}/<split>/NAME.jpg and {names[0]}/<split>/NAME{suffixes[0]}"
        text = f"{where} holds no folders {ours} and {names[0]}; expected {where}/{layout}"
        raise UserError(text)
    images: dict[tuple[str, str], str] = {}
    targets: dict[tuple[str, str], str] = {}
    found = [*listing.images, *arrays]
    direct = not above and not any(path.startswith(f"{ours}/") for path in listing.folders)
    notes: list[str] = []
    for path in sorted(found):
        parts = path.split("/")
        if above and len(parts) > 2 and parts[1] in (ours, name):
            folder, split, rest = parts[1], parts[0], "/".join(parts[2:])
        elif not above and len(parts) > 1 and parts[0] in (ours, name):
            split = "" if direct or len(parts) == 2 else parts[1]
            folder, rest = parts[0], "/".join(parts[1 if direct or not split else 2 :])
            if not direct and not split:
                others.append((OUTSIDE, path))
                continue
        else:
            others.append((f"outside of {ours} and {name}", path))
            continue
        stem, suffix = os.path.splitext(rest)
        if folder == ours and path in arrays:
            others.append(("not an image", path))
            continue
        if folder == name and suffix.lower() not in suffixes:
            others.append((f"no {what} ({', '.join(suffixes)})", path))
            continue
        into = images if folder == ours else targets
        if (split, stem) in into:
            both = f"{shown(into[split, stem])} and {shown(path)}"
            kind = "image" if folder == ours else what
            raise UserError(f"{where}: {both} are one {kind} in two formats; keep one of them")
        into[split, stem] = path
    used = sorted(images.keys() & targets.keys(), key=lambda key: images[key])
    others += [(f"without a {what}", path) for key, path in images.items() if key not in targets]
    lonely = sorted(path for key, path in targets.items() if key not in images)
    if lonely:
        count = f"{len(lonely):,} {what}s have" if len(lonely) > 1 else f"1 {what} has"
        notes.append(f"{count} no image (first: {shown(lonely[0])})")
    items = [Item(images[key], key[0]) for key in used]
    return Pairs(items, [targets[key] for key in used], others, notes)


class PathTable:
    """Paths below a root, in little memory."""

    def __init__(self, root: Root, paths: Sequence[str]) -> None:
        self._root = root if isinstance(root, Path) else str(root)
        self._paths = np.array([os.fsencode(path) for path in paths], np.bytes_)

    def __len__(self) -> int:
        return len(self._paths)

    def name(self, row: int) -> str:
        """Return a path or an address."""
        path = os.fsdecode(self._paths[row])
        return str(self._root / path) if isinstance(self._root, Path) else f"{self._root}/{path}"

    def read(self, row: int) -> bytes:
        """Return a file's content; raises OSError, ValueError, RemoteError."""
        path = self.name(row)
        return remote.read(path) if isinstance(self._root, str) else read_file(path)

    def digest(self, row: int) -> bytes:
        """Return a path below the root."""
        return bytes(self._paths[row])
