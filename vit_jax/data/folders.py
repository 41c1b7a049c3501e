# SPDX-License-Identifier: Apache-2.0
"""Folders of images, DIR/{train,val,test}/<class>/*.{jpg,jpeg,png,webp}, read as a dataset."""

import collections
import functools
import hashlib
import os
import re
import sys
import unicodedata
from pathlib import Path

import numpy as np

from vit_jax.data.image_header import read_file
from vit_jax.data.sources import Example, Labelled, absolute_slices, digest_of
from vit_jax.errors import UserError, shown

_SPLITS = ("train", "val", "test")
_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")


class FolderSource(Labelled):
    """Examples of one split of a folder; see `Source`."""

    def __init__(self, root: Path, name: str, classes: tuple[str, ...], paths: list[str]) -> None:
        """Take paths as "<split>/<class>/<file>" relative to `root`, in the order to be read."""
        self._root = root
        self.name = name
        self.class_names = classes
        ids = {class_name: i for i, class_name in enumerate(classes)}
        self.labels = np.array([ids[path.split("/")[1]] for path in paths], np.int32)
        # A million paths take a tenth of what a list of strings does, here and in every worker.
        self._paths = np.array([os.fsencode(path) for path in paths], np.bytes_)

    def __len__(self) -> int:
        return len(self._paths)

    def read(self, index: int) -> Example:
        """Return an example's encoded image and its class id."""
        return {"image": read_file(self._path(index)), "label": int(self.labels[index])}

    def example_id(self, index: int) -> str:
        return shown(self._path(index))

    def digest(self) -> str:
        """Digest the paths below the folder; to ask for a million sizes takes minutes."""
        return digest_of(self._paths.tolist())

    def _path(self, index: int) -> str:
        return str(self._root / os.fsdecode(self._paths[index]))


def open_folder(path: str, split: str) -> FolderSource:
    """Open one split of a folder of images, with TFDS-style slices.

    Class ids come from the sorted union of the class folders of all splits, so a class that is
    missing from one split shifts no label. "validation" is another name of val, for configs that
    were written for a TFDS dataset. Within a split, files come in an order that depends on
    their names alone but is mixed over the classes: by name, `train[:99%]` would lack the last.
    Two files of a class that differ in their suffix alone may be one photograph twice: a warning.

    Raises UserError: no such folder or split, no class folders, one without an image, one that may
    not be read, or one whose name differs between splits in case alone.
    """
    if not path:
        raise UserError("data.name=folder: names no folder; write it as data.name=folder:DIR")
    try:
        return _open(Path(os.path.expanduser(path)), split)
    except OSError as error:
        raise UserError(f"{shown(str(error.filename or path))}: {error.strerror}") from error


def _open(root: Path, split: str) -> FolderSource:
    where = shown(str(root) if root.is_absolute() else f"./{root}")
    layout = f"expected {where}/{{train,val}}/<class>/*.{{jpg,jpeg,png,webp}}"
    if not root.is_dir():
        raise UserError(f"no folder {where!r}; {layout}")
    splits = [name for name in _SPLITS if (root / name).is_dir()]
    if not splits:
        raise UserError(f"{where} has none of the folders train, val, test; {layout}")
    classes = {name: _classes(root / name, layout) for name in splits}
    _check_spelling(where, classes)
    union = tuple(sorted(set().union(*classes.values())))
    split = re.sub(r"\bvalidation\b", "val", split)
    wanted = {name.split("[")[0].strip() for name in split.split("+")}
    files = {
        name: _files(root, name, classes[name], layout) if name in wanted else [] for name in splits
    }
    sizes = {name: len(found) for name, found in files.items()}
    slices = absolute_slices(split, sizes, where)
    chosen = [path for name, start, stop in slices for path in files[name][start:stop]]
    return FolderSource(root, f"{where}[{split}]", union, chosen)


def _classes(directory: Path, layout: str) -> list[str]:
    with os.scandir(directory) as entries:
        names = [e.name for e in entries if e.is_dir() and not e.name.startswith(".")]
    if not names:
        raise UserError(f"{shown(str(directory))} has no class folders; {layout}")
    return names


def _check_spelling(where: str, classes: dict[str, list[str]]) -> None:
    """Refuse a class that one split writes otherwise than another, in case or accents' encoding.

    Two such classes within a split are two: handwritten letters may well lie in "a" and "A".
    """
    spelled: dict[str, dict[str, str]] = {}
    for split, names in classes.items():
        for name in names:
            key = unicodedata.normalize("NFC", name).casefold()
            spelled.setdefault(key, {}).setdefault(name, split)
    for found in spelled.values():
        if len(found) > 1 and all(len(found.keys() & set(names)) < 2 for names in classes.values()):
            (one, here), (two, there) = list(found.items())[:2]
            differs = f"the class {one!r} of {here} is {two!r} in {there}"
            raise UserError(f"{where}: {differs}; give both folders the same name")


def _files(root: Path, split: str, classes: list[str], layout: str) -> list[str]:
    found: list[str] = []
    for name in classes:
        with os.scandir(root / split / name) as entries:
            images = [
                f"{split}/{name}/{e.name}"
                for e in entries
                if e.name.lower().endswith(_SUFFIXES) and not e.name.startswith(".")
                # Links are believed: to follow a million of them over a network takes minutes.
                if e.is_file(follow_symlinks=False) or e.is_symlink()
            ]
        folder = shown(str(root / split / name))
        if not images:
            raise UserError(f"class folder {folder} holds no images; {layout}")
        _tell_twins(folder, images)
        found += images
    return sorted(found, key=lambda p: hashlib.blake2b(os.fsencode(p), digest_size=8).digest())


def _tell_twins(folder: str, images: list[str]) -> None:
    """Warn of files that differ in their suffix alone."""
    stems = collections.Counter(path.rpartition(".")[0] for path in images)
    twins = sorted(stem for stem, count in stems.items() if count > 1)
    if not twins:
        return
    names = sorted(path for path in images if path.rpartition(".")[0] == twins[0])
    one, two = (shown(path.rpartition("/")[2]) for path in names[:2])
    more = f", and {len(twins) - 1} more such" if len(twins) > 1 else ""
    _warn_once(
        f"{folder} has {one} and {two}{more}: one photograph twice would count twice, and could "
        "lie on both sides of a split"
    )


@functools.cache
def _warn_once(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)
