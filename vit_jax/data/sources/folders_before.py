# SPDX-License-Identifier: Apache-2.0
"""Folders as runs read them that were begun by earlier versions, `folder:DIR?rules=1`.

Images of the class folders alone, of the suffixes that were known then, whatever is in them.
"""

import hashlib
import os
from pathlib import Path

from vit_jax.data.images.header import OLD_SUFFIXES
from vit_jax.data.names import KNOWN_SPLITS, parts_of, with_known_names
from vit_jax.data.sources.folder_layout import DRAWN, Layout
from vit_jax.data.sources.remote_folders import RemoteFolder
from vit_jax.errors import UserError, shown


def list_images(root: Path | RemoteFolder, where: str, split: str) -> Layout:
    """List what a folder holds of the splits that `split` names.

    Raises UserError: no folders of classes, or one without images; OSError.
    """
    inside = _subfolders(root)
    known = [name for name in inside if name.lower() in KNOWN_SPLITS]
    splits = [name for name in known if not _has_images(root / name)]
    if not splits and any(_has_images(root / name) for name in inside):
        classes = {DRAWN: inside}
    else:
        splits = splits or [name for name in inside if _subfolders(root / name)]
        classes = {name: _subfolders(root / name) for name in splits}
    if not any(classes.values()):
        raise UserError(f"{where} has no class folders, in folders train, val, test or in itself")
    union = tuple(sorted(set().union(*classes.values())))
    ids = {name: i for i, name in enumerate(union)}
    wanted = {name for name, _ in parts_of(with_known_names(split, splits))}
    files, labels = {}, {}
    for name, names in classes.items():
        found = _files(root, f"{name}/" if name else "", names) if name in {*wanted, DRAWN} else []
        files[name], labels[name] = found, [ids[path.rsplit("/", 2)[-2]] for path in found]
    return Layout(union, files, labels)


def _subfolders(folder: Path | RemoteFolder) -> list[str]:
    if isinstance(folder, RemoteFolder):
        return sorted(name for name in folder.folders() if not name.startswith("."))
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def _has_images(folder: Path | RemoteFolder) -> bool:
    if isinstance(folder, RemoteFolder):
        return any(name.lower().endswith(OLD_SUFFIXES) for name in folder.files())
    with os.scandir(folder) as entries:
        return any(entry.name.lower().endswith(OLD_SUFFIXES) for entry in entries)


def _files(root: Path | RemoteFolder, before: str, classes: list[str]) -> list[str]:
    found: list[str] = []
    for name in classes:
        images = [
            f"{before}{name}/{each}"
            for each in _file_names(root / before / name)
            if each.lower().endswith(OLD_SUFFIXES) and not each.startswith(".")
        ]
        if not images:
            raise UserError(f"class folder {shown(str(root / before / name))} holds no images")
        found += images
    return sorted(found, key=lambda p: hashlib.blake2b(os.fsencode(p), digest_size=8).digest())


def _file_names(folder: Path | RemoteFolder) -> list[str]:
    if isinstance(folder, RemoteFolder):
        return folder.files()
    with os.scandir(folder) as entries:
        return [e.name for e in entries if e.is_file(follow_symlinks=False) or e.is_symlink()]
