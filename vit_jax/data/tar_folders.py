# SPDX-License-Identifier: Apache-2.0
"""Class folders inside tar files, [SPLIT/]CLASS/IMAGE, which label what nothing else does."""

import collections
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from vit_jax.data.names import KNOWN_SPLITS, alike, look_alike, one_spelling


class Folders(NamedTuple):
    """What the folders of all images say."""

    classes: tuple[str, ...]
    ids: Int[np.ndarray, " M"]  # the class of each image
    splits: list[str]  # of each image; [] where the folders are no splits
    notes: list[str]


def read(names: np.ndarray) -> Folders | None:
    """Return the class folders of the images with these names in their tars; None: there are none.

    A class is a folder below that of a split, or, without splits, below the folder that all images
    have in common. Folders in it belong to it. One folder of all images is no class. Classes are
    the sorted names, as those of a folder are.
    """
    texts = (name.decode(errors="backslashreplace") for name in names.tolist())
    folders = [[part for part in text.split("/")[:-1] if part.strip(". ")] for text in texts]
    if not all(folders):
        return None
    at_splits = _depth_of_splits(folders)
    depth = 0 if at_splits is None else at_splits + 1
    while at_splits is None and len({parts[depth] for parts in folders}) == 1:
        depth += 1
        if any(len(parts) <= depth for parts in folders):
            return None
    found = [one_spelling(parts[depth]) for parts in folders]
    classes, ids = np.unique(found, return_inverse=True)
    layout = "CLASS" if at_splits is None else "SPLIT/CLASS"
    said = f"no image has a label of its own, so it is that of its folder, {layout}, in the tar"
    notes = [said, *look_alike(collections.Counter(found))]
    splits = [] if at_splits is None else [parts[at_splits] for parts in folders]
    return Folders(tuple(classes.tolist()), ids, splits, notes)


def _depth_of_splits(folders: list[list[str]]) -> int | None:
    """Return how deep the folders of splits lie, if all images lie in a class of one."""
    for depth in range(min(map(len, folders)) - 1):
        names = {parts[depth] for parts in folders}
        if all(alike(name) in KNOWN_SPLITS for name in names):
            return depth
        if len(names) > 1:
            return None
    return None
