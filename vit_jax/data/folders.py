# SPDX-License-Identifier: Apache-2.0
"""Folders of images, DIR/{train,val,test}/<class>/*.{jpg,jpeg,png,webp}, read as a dataset."""

import hashlib
import os
import re
from pathlib import Path

import numpy as np

from vit_jax.data.sources import absolute_slices
from vit_jax.errors import UserError

_SPLITS = ("train", "val", "test")
_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")


class FolderSource:
    """Examples of one split of a folder; see `Source`.

    Paths are kept in one array of bytes: a million of them take a tenth of what a list of strings
    does, here and in every worker process.
    """

    multi_label = False

    def __init__(self, root: Path, name: str, classes: tuple[str, ...], paths: list[str]) -> None:
        """Take paths as "<split>/<class>/<file>" relative to `root`, in the order to be read."""
        self._root = root
        self.name = name
        self.class_names = classes
        ids = {class_name: i for i, class_name in enumerate(classes)}
        self.labels = np.array([ids[path.split("/")[1]] for path in paths], np.int32)
        self._paths = np.array([os.fsencode(path) for path in paths], np.bytes_)

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.class_names)

    def __len__(self) -> int:
        return len(self._paths)

    def read(self, index: int) -> tuple[bytes, int]:
        """Return an example's encoded image and its class id."""
        with open(self.example_id(index), "rb", buffering=0) as file:  # read in one go anyway
            return file.read(), int(self.labels[index])

    def example_id(self, index: int) -> str:
        """Return the file's path."""
        return str(self._root / os.fsdecode(self._paths[index]))


def open_folder(path: str, split: str) -> FolderSource:
    """Open one split of a folder of images, with TFDS-style slices.

    Class ids come from the sorted union of the class folders of all splits, so a class that is
    missing from one split shifts no label. "validation" is another name of val, for configs that
    were written for a TFDS dataset. Within a split, files come in an order that depends on
    their names alone but is mixed over the classes: by name, `train[:99%]` would lack the last.

    Raises:
        UserError: no such folder or split, no class folders, or one without an image.
    """
    if not path:
        raise UserError("data.name=folder: names no folder; write it as data.name=folder:DIR")
    root = Path(path).expanduser()
    layout = f"expected {root}/{{train,val}}/<class>/*.{{jpg,jpeg,png,webp}}"
    if not root.is_dir():
        raise UserError(f"no folder {str(root)!r}; {layout}")
    splits = [name for name in _SPLITS if (root / name).is_dir()]
    if not splits:
        raise UserError(f"{root} has none of the folders train, val, test; {layout}")
    classes = {name: _classes(root / name, layout) for name in splits}
    union = tuple(sorted(set().union(*classes.values())))
    split = re.sub(r"\bvalidation\b", "val", split)
    wanted = {part.split("[")[0].strip() for part in split.split("+")}
    files = {
        name: _files(root, name, classes[name], layout) if name in wanted else [] for name in splits
    }
    sizes = {name: len(found) for name, found in files.items()}
    chosen: list[str] = []
    for name, start, stop in absolute_slices(split, sizes, str(root)):
        chosen += files[name][start:stop]
    return FolderSource(root, f"{root}[{split}]", union, chosen)


def _classes(directory: Path, layout: str) -> list[str]:
    with os.scandir(directory) as entries:
        names = [e.name for e in entries if e.is_dir() and not e.name.startswith(".")]
    if not names:
        raise UserError(f"{directory} has no class folders; {layout}")
    return names


def _files(root: Path, split: str, classes: list[str], layout: str) -> list[str]:
    found: list[str] = []
    for name in classes:
        with os.scandir(root / split / name) as entries:
            images = [
                f"{split}/{name}/{e.name}"
                for e in entries
                if e.name.lower().endswith(_SUFFIXES) and not e.name.startswith(".")
            ]
        if not images:
            raise UserError(f"class folder {root / split / name} holds no images; {layout}")
        found += images
    return sorted(found, key=lambda p: hashlib.blake2b(os.fsencode(p), digest_size=8).digest())
