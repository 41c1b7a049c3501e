# SPDX-License-Identifier: Apache-2.0
"""The folder that an export leaves: complete or not at all, and nobody else's files touched."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from vit_jax.errors import UserError

MARK = "export.json"  # what an export is known by, written last
CARD = "README.md"
CLASSES = "classes.json"
WEIGHTS = {"stablehlo": "model.stablehlo", "onnx": "model.onnx", "timm": "model.safetensors"}
CONFIG = "config.json"  # timm's
NAMES = (*WEIGHTS.values(), CONFIG, CLASSES, CARD, MARK)


def check(folder: Path, *, force: bool = False) -> None:
    """Refuse a folder that `write` could or should not fill.

    Raises:
        UserError: below a file, a file of that name, or other files than an export's there.
    """
    if not folder.resolve().name:
        raise UserError(f"{folder} has no name of its own; name a folder below it")
    if any(parent.exists() and not parent.is_dir() for parent in folder.parents):
        raise UserError(f"{folder.parent} is no directory; name another folder")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; name a folder")
    try:
        known = not folder.is_dir() or not any(folder.iterdir()) or _is_export(folder)
    except OSError as error:
        raise UserError(f"cannot read {folder}: {error.strerror}") from None
    if not known and not force:
        raise UserError(
            f"{folder} holds files that no export wrote; choose another folder, or add --force to "
            "write beside them (of theirs, only those of the same names are replaced)"
        )


def _is_export(folder: Path) -> bool:
    try:
        return "vit_jax" in json.loads((folder / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def write(folder: Path, files: Mapping[str, bytes], *, force: bool = False) -> None:
    """Write an export's files by name; `MARK` is among them.

    A new folder appears with all of them. In one that is there, an earlier export's files go when
    all of the new ones are on disk; until the last has its place there is no `MARK`.

    Raises:
        UserError: it cannot be written there.
    """
    assert set(files) <= set(NAMES), "what a later export may remove"
    check(folder, force=force)
    folder = folder.resolve()  # "." has no name to put the temporary one beside
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        for name, data in files.items():
            with open(temporary / name, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        if not folder.exists():
            temporary.rename(folder)
            return
        was_export = _is_export(folder)
        (folder / MARK).unlink(missing_ok=True)
        for name in NAMES:
            if was_export and name not in files:
                (folder / name).unlink(missing_ok=True)
        for name in sorted(files, key=lambda name: name == MARK):
            (temporary / name).replace(folder / name)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
