# SPDX-License-Identifier: Apache-2.0
"""Folders of images, [<split>/]<class>/*.{jpg,png,webp,...}, read as a dataset."""

import collections
import functools
import hashlib
import os
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from vit_jax import remote
from vit_jax.data.image_header import SUFFIXES, read_file
from vit_jax.data.names import KNOWN_SPLITS, with_known_names
from vit_jax.data.partition import WHOLE, check_no_seed, partition, split_seed
from vit_jax.data.remote_folders import RemoteFolder
from vit_jax.data.sources import Example, Labelled, absolute_slices, digest_of
from vit_jax.errors import UserError, shown

Folder: TypeAlias = Path | RemoteFolder


class FolderSource(Labelled):
    """Examples of one split of a folder or a table; see `Source`."""

    def __init__(
        self,
        root: Path | str,
        name: str,
        classes: tuple[str, ...],
        paths: Sequence[str],
        labels: Sequence[int],
        *,
        drawn: bool = False,
    ) -> None:
        """Take paths relative to `root` in the order to be read, and their class ids.

        `root` is a string where it is an address.
        """
        self._root, self.drawn = root, drawn
        self.is_remote = isinstance(root, str)
        self.name = name
        self.class_names = classes
        self.labels = np.array(labels, np.int32)
        # A million paths take a tenth of what a list of strings does, here and in every worker.
        self._paths = np.array([os.fsencode(path) for path in paths], np.bytes_)

    def __len__(self) -> int:
        return len(self._paths)

    def read(self, index: int) -> Example:
        """Return an example's encoded image and its class id.

        Raises OSError or MissingError: there is no such file; RemoteError: the bucket does not
        answer.
        """
        path = self._path(index)
        image = remote.read(path) if self.is_remote else read_file(path)
        return {"image": image, "label": int(self.labels[index])}

    def example_id(self, index: int) -> str:
        return shown(self._path(index))

    def digest(self) -> str:
        """Digest the paths below the folder; to ask for a million sizes takes minutes."""
        return digest_of(self._paths.tolist())

    def rows(self) -> list[tuple[str, str]]:
        """List the absolute path and the class of every example."""
        paths = (
            os.path.abspath(path) if not self.is_remote else path
            for path in map(self._path, range(len(self)))
        )
        names = (self.class_names[k] if k >= 0 else "" for k in self.labels)
        return list(zip(paths, names, strict=True))

    def _path(self, index: int) -> str:
        path = os.fsdecode(self._paths[index])
        if self.is_remote:  # the root is "" where addresses have no beginning in common
            return f"{self._root}/{path}".removeprefix("/")
        return str(Path(self._root, path))


def open_folder(path: str, split: str) -> FolderSource:
    """Open one split of a folder of images, with TFDS-style slices.

    Folders of classes lie in folders of splits, of any names, or, without splits, in `path` itself:
    then the splits are those of `partition`, and "whole". Class ids come from the sorted union of
    the class folders of all splits: a class missing from one split shifts no label. Names
    that mean the same, "validation" and "Val", stand for each other. Within a split, files come in
    an order that depends on their names alone but is mixed over the classes: by name,
    `train[:99%]` would lack the last. Two files of a class that differ in their suffix alone may be
    one photograph twice: a warning.

    A folder in a bucket is listed in one go.

    Raises UserError: no such folder or split, no class folders, one without an image, one that may
    not be read, or one whose name differs between splits in case alone.
    """
    path, seed = split_seed(path)
    if not path:
        raise UserError("data.name=folder: names no folder; write it as data.name=folder:DIR")
    if remote.is_remote(path):
        return _open(RemoteFolder.open(path), split, seed)
    try:
        return _open(Path(os.path.expanduser(path)), split, seed)
    except OSError as error:
        raise UserError(f"{shown(str(error.filename or path))}: {error.strerror}") from error


def _open(root: Folder, split: str, seed: int) -> FolderSource:
    where = shown(str(root) if root.is_absolute() else f"./{root}")
    layout = f"expected {where}/{{train,val}}/<class>/*.{{jpg,png,webp,...}}"
    if not root.is_dir():
        raise UserError(f"no folder {where!r}; {layout}")
    inside = _subfolders(root)
    known = [name for name in inside if name.lower() in KNOWN_SPLITS]
    splits = [name for name in known if not _has_images(root / name)]
    if not splits and any(_has_images(root / name) for name in inside):
        return _open_flat(root, where, inside, split, seed)
    splits = splits or [name for name in inside if _subfolders(root / name)]
    if not splits:
        raise UserError(f"{where} has none of the folders train, val, test; {layout}")
    check_no_seed(seed, where)
    classes = {name: _classes(root / name, layout) for name in splits}
    _check_spelling(where, classes)
    union = tuple(sorted(set().union(*classes.values())))
    split = with_known_names(split, splits)
    wanted = {name.split("[")[0].strip() for name in split.split("+")}
    files = {
        name: _files(root, f"{name}/", classes[name], layout) if name in wanted else []
        for name in splits
    }
    sizes = {name: len(found) for name, found in files.items()}
    slices = absolute_slices(split, sizes, where)
    chosen = [path for name, start, stop in slices for path in files[name][start:stop]]
    return FolderSource(_place(root), f"{where}[{split}]", union, chosen, _labels(chosen, union))


def _open_flat(root: Folder, where: str, classes: list[str], split: str, seed: int) -> FolderSource:
    """Open a folder of class folders, which has no splits of its own."""
    layout = f"expected images in every folder of {where}, or {where}/{{train,val}}/<class>"
    files = _files(root, "", classes, layout)
    union = tuple(sorted(classes))
    labels = _labels(files, union)
    members = {**partition(files, labels, seed), WHOLE: range(len(files))}
    split = with_known_names(split, list(members))
    slices = absolute_slices(split, {name: len(m) for name, m in members.items()}, where)
    chosen = [index for name, start, stop in slices for index in members[name][start:stop]]
    name = f"{where}[{split}]" + (f", split seed {seed}" if seed else "")
    paths, ids = [files[i] for i in chosen], [labels[i] for i in chosen]
    return FolderSource(_place(root), name, union, paths, ids, drawn=True)


def _labels(paths: Sequence[str], classes: tuple[str, ...]) -> list[int]:
    ids = {name: i for i, name in enumerate(classes)}
    return [ids[path.rsplit("/", 2)[-2]] for path in paths]


def _place(root: Folder) -> Path | str:
    return root if isinstance(root, Path) else str(root)


def _subfolders(folder: Folder) -> list[str]:
    if isinstance(folder, RemoteFolder):
        return sorted(name for name in folder.folders() if not name.startswith("."))
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def _has_images(folder: Folder) -> bool:
    if isinstance(folder, RemoteFolder):
        return any(name.lower().endswith(SUFFIXES) for name in folder.files())
    with os.scandir(folder) as entries:
        return any(entry.name.lower().endswith(SUFFIXES) for entry in entries)


def _classes(directory: Folder, layout: str) -> list[str]:
    names = _subfolders(directory)
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


def _files(root: Folder, before: str, classes: list[str], layout: str) -> list[str]:
    """List the images of class folders, "<before><class>/<file>"."""
    found: list[str] = []
    for name in classes:
        names = _file_names(root / before / name)
        images = [
            f"{before}{name}/{each}"
            for each in names
            if each.lower().endswith(SUFFIXES) and not each.startswith(".")
        ]
        folder = shown(str(root / before / name))
        if not images:
            raise UserError(f"class folder {folder} holds no images; {layout}")
        _tell_twins(folder, images)
        found += images
    return sorted(found, key=lambda p: hashlib.blake2b(os.fsencode(p), digest_size=8).digest())


def _file_names(folder: Folder) -> list[str]:
    if isinstance(folder, RemoteFolder):
        return folder.files()
    with os.scandir(folder) as entries:
        # Links are believed: to follow a million of them over a network takes minutes.
        return [e.name for e in entries if e.is_file(follow_symlinks=False) or e.is_symlink()]


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
