# SPDX-License-Identifier: Apache-2.0
"""The metadata of a TFDS dataset that somebody else made, looked through before TFDS reads them.

TFDS imports the module of every `pythonClassName` in features.json, and makes paths of names.
"""

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from vit_jax.errors import UserError, shown
from vit_jax.storage import foreign

FEATURES, INFO = "features.json", "dataset_info.json"
_CLASSES = ("pythonClassName", "python_class_name", "type")


def read(path: Path) -> dict[str, Any]:
    """Read a file of metadata; raises ValueError: it holds no object of JSON; OSError."""
    try:
        found = json.loads(foreign.read(path))
    except RecursionError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} holds no object of JSON")
    return found


def check(directory: Path) -> None:
    """Raise UserError for metadata that name another class than TFDS's own, or a foreign path.

    Raises ValueError: they are no JSON; OSError.
    """
    path = directory / FEATURES
    for key, value in _pairs(read(path)):
        if key in _CLASSES and isinstance(value, str) and value not in _classes():
            raise UserError(
                f"{path} names the class {shown(value[:200])}, whose module would run; features of "
                "TFDS's own are read, tensorflow_datasets.core.features"
            )
        if isinstance(value, dict):  # a feature's name is a part of the names of its files
            foreign.checked(key, str(path))
    path = directory / INFO
    info = read(path)
    splits = info.get("splits", [])
    if not isinstance(splits, list) or not all(isinstance(split, dict) for split in splits):
        raise ValueError(f"{path.name} has no list of splits")
    kinds = ("name", "configName", "config_name", "fileFormat", "file_format")
    names = [info.get(key, "") for key in kinds]
    for split in splits:
        names += [split.get(key, "") for key in ("name", "filepathTemplate", "filepath_template")]
    for name in names:
        if name and "/" in foreign.checked(name, str(path)):
            raise UserError(f"{path}: the name {shown(name[:200])} is of another folder's file")
    module = str(info.get("moduleName", info.get("module_name", "")))
    if not re.fullmatch(r"[\w.]*", module):
        raise UserError(f"{path} names the module {shown(module[:200])}; prepare it again")


def _pairs(tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key and value in JSON, in the texts in it that are JSON themselves, too."""
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, str) and node.lstrip()[:1] in ("{", "["):
            try:
                node = json.loads(node)
            except (ValueError, RecursionError):
                continue
        if isinstance(node, dict):
            yield from node.items()
            left += node.values()
        elif isinstance(node, list):
            left += node


@functools.cache
def _classes() -> frozenset[str]:
    """Return the names of TFDS's own features, by which it knows those that it has imported."""
    for name in tfds.features.__all__:
        getattr(tfds.features, name)
    known = tfds.features.FeatureConnector._registered_features
    return frozenset(name for name in known if name.startswith("tensorflow_datasets.core."))
