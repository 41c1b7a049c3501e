# SPDX-License-Identifier: Apache-2.0
"""Class folders inside tar files, [SPLIT/]CLASS/IMAGE, which label what nothing else does."""

import collections
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from vit_jax.data.names import KNOWN_SPLITS, alike, look_alike, one_spelling, without_label
from vit_jax.data.sources.folder_layout import BESIDE, OUTSIDE, splits_in


class Folders(NamedTuple):
    """What the folders of all images say.

    Attributes:
        classes: their names, by class id.
        used: which images these are of.
        ids: the class of each of these, -1 for none.
        splits: of each of these; [] where the folders are no splits.
        left_out: (reason, name) of the other images.
        notes: what was decided.
    """

    classes: tuple[str, ...]
    used: Bool[np.ndarray, " N"]
    ids: Int[np.ndarray, " M"]
    splits: list[str]
    left_out: list[tuple[str, str]]
    notes: list[str]


def read(names: np.ndarray) -> Folders | None:
    """Return the class folders of the images with these names in their tars; None: there are none.

    Below the folders that all have in common they mean what a folder's do (`splits_in`), but that
    splits are those called so, and that one folder of all images is no class. None also where more
    images lie beside class folders than in them.
    """
    texts = [name.decode(errors="backslashreplace") for name in names.tolist()]
    folders = [[part for part in text.split("/")[:-1] if part.strip(". ")] for text in texts]
    depth = 0
    while len(tops := {parts[depth] for parts in folders if len(parts) > depth}) == 1:
        if alike(min(tops)) in KNOWN_SPLITS:
            break
        depth += 1
    splits, _ = splits_in("/".join([*parts[depth:], "image"]) for parts in folders)
    if not all(alike(split) in KNOWN_SPLITS for split in splits):
        splits = {}
    labelled = depth + bool(splits)
    used: list[tuple[str, str]] = []  # split and class
    left_out: list[tuple[str, str]] = []
    is_used = np.ones(len(texts), bool)
    for i, (text, parts) in enumerate(zip(texts, folders, strict=True)):
        split = parts[depth] if splits and len(parts) > depth else ""
        if splits and split not in splits:
            left_out.append((OUTSIDE, text))
        elif splits.get(split, True) and len(parts) <= labelled:
            left_out.append((BESIDE, text))
        else:
            used.append((split, one_spelling(parts[labelled]) if splits.get(split, True) else ""))
            continue
        is_used[i] = False
    counts = collections.Counter(label for _, label in used if label)
    if len(left_out) > len(used) or len(counts) < 1 + (not splits):
        return None
    place = {label: k for k, label in enumerate(sorted(counts))} | {"": -1}
    layout = "SPLIT/CLASS" if splits else "CLASS"
    said = f"no image has a label of its own, so it is that of its folder, {layout}, in the tar"
    return Folders(
        tuple(sorted(counts)),
        is_used,
        np.array([place[label] for _, label in used], np.int64),
        [split for split, _ in used] if splits else [],
        left_out,
        [said, *look_alike(counts), *without_label(sum(not x for _, x in used), len(used))],
    )
