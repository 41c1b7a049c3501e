# SPDX-License-Identifier: Apache-2.0
"""Class folders inside tar files, [SPLIT/]CLASS/IMAGE, which label what nothing else does."""

from typing import NamedTuple

import numpy as np

from vit_jax.data.names import KNOWN_SPLITS, alike


class Folders(NamedTuple):
    """What the folders of all images say."""

    classes: np.ndarray  # bytes (M,), the class folder of each image
    splits: list[str]  # of each image, or () where the folders are no splits
    said: str


def read(names: np.ndarray) -> Folders | None:
    """Return the class folders of the images with these names in their tars; None: there are none.

    A class is a folder below that of a split, or, without splits, below the folder that all images
    have in common. Folders in it belong to it. One folder of all images is no class.
    """
    folders = [
        [part for part in name.split(b"/")[:-1] if part not in (b"", b".")]
        for name in names.tolist()
    ]
    if not all(folders):
        return None
    depth = _depth_of_splits(folders)
    if depth is not None:
        splits = [parts[depth].decode() for parts in folders]
        classes = [parts[depth + 1] for parts in folders]
        return _labelled(classes, splits)
    depth = 0
    while len({parts[depth] for parts in folders}) == 1:
        depth += 1
        if any(len(parts) <= depth for parts in folders):
            return None
    return _labelled([parts[depth] for parts in folders], [])


def _labelled(classes: list[bytes], splits: list[str]) -> Folders:
    count = len({*classes})
    layout = "SPLIT/CLASS" if splits else "CLASS"
    said = f"no image has a label, so the folders {layout} in the tars are its {count:,} class"
    said += "es" if count > 1 else ""
    return Folders(np.array(classes, np.bytes_), splits, said)


def _depth_of_splits(folders: list[list[bytes]]) -> int | None:
    """Return how deep the folders of splits lie, if all images lie in a class of one."""
    for depth in range(min(map(len, folders)) - 1):
        names = {parts[depth] for parts in folders}
        if all(alike(name.decode(errors="replace")) in KNOWN_SPLITS for name in names):
            return depth
        if len(names) > 1:
            return None
    return None
