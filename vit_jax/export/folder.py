# SPDX-License-Identifier: Apache-2.0
"""The folder of an export: written completely or not at all, other files untouched."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from vit_jax.storage import files

MARK = "export.json"  # what an export is known by, written last
CARD = "README.md"
CLASSES = "classes.json"
WEIGHTS = {"stablehlo": "model.stablehlo", "onnx": "model.onnx", "timm": "model.safetensors"}
CONFIG = "config.json"  # timm's
ARRAYS = "weights.npz"  # what model.stablehlo takes
NAMES = (*WEIGHTS.values(), ARRAYS, CONFIG, CLASSES, CARD, MARK)


def _is_export(folder: Path) -> bool:
    try:
        return "vit_jax" in json.loads((folder / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def write(folder: Path, contents: Mapping[str, bytes], *, force: bool = False) -> None:
    """Write an export's files by name; `MARK` is among them.

    A new folder appears with all of them. In one that is there, an earlier export's files go when
    all of the new ones are on disk; until the last has its place there is no `MARK`.

    Raises UserError: it cannot be written there.
    """
    assert set(contents) <= set(NAMES), "what a later export may remove"
    files.check_folder(folder, "--to", force=force)
    folder = folder.resolve()  # "." has no name to put the temporary one beside
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    with files.refused(f"cannot write {folder}"):
        try:
            temporary.mkdir(parents=True)
            for name, data in contents.items():
                files.write(temporary / name, data)
            if not folder.exists():
                temporary.rename(folder)
                return
            was_export = _is_export(folder)
            (folder / MARK).unlink(missing_ok=True)
            for name in NAMES:
                if was_export and name not in contents:
                    (folder / name).unlink(missing_ok=True)
            for name in sorted(contents, key=lambda name: name == MARK):
                (temporary / name).replace(folder / name)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
