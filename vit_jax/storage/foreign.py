# SPDX-License-Identifier: Apache-2.0
"""Names and files from outside: what a name must be to become a path, and how much is read of it.

A name comes from outside where an object of a bucket, a list in a file, a member of an archive or a
repository bears it: it says which file of its own folder is meant, and never another one.
"""

import json
import re
from pathlib import Path
from typing import Any

from vit_jax.errors import UserError, shown

# Bytes of a file that describes others: a run's config, a manifest, a card, a list of classes.
MOST = 1 << 26
_LONGEST, _DEEPEST = 255, 64  # bytes of a part, parts of a name


def fault(name: object) -> str:
    """Return why a name cannot be a file's inside its own folder; "" if it can.

    A name is parts joined by "/". No part may be empty, consist of dots, be a drive's, hold a
    backslash or a control character, or be one that a file system cannot store.
    """
    if not isinstance(name, str) or not name:
        return "is no name"
    if name.startswith(("/", "\\", "~")) or re.search(r"(^|/)[A-Za-z]:", name):
        return "names a place of its own"
    parts = name.split("/")
    if any(not part.strip(". ") for part in parts):
        return "has a part that is empty or of dots"
    if "\\" in name or re.search(r"[\0-\x1f\x7f-\x9f\u2028\u2029]", name):
        return "holds a backslash or a control character"
    try:
        longest = max(len(part.encode()) for part in parts)
    except UnicodeEncodeError:
        return "is no text"
    return "is too long" if longest > _LONGEST or len(parts) > _DEEPEST else ""


def checked(name: object, where: str) -> str:
    """Return a name that comes from `where`; raises UserError: it leads nowhere in its folder."""
    if why := fault(name):
        told = shown(str(name)[:200])
        raise UserError(
            f"{where}: the name {told} {why}, and is not followed; names there must stay in their "
            "folder, as a/b.json does. Do not use it, or delete that name there"
        )
    assert isinstance(name, str)
    return name


def is_hidden(name: str) -> bool:
    """Return whether a name, or a folder in it, begins with a dot."""
    return "/." in f"/{name}"


def inside(folder: Path, name: object, where: str) -> Path:
    """Return the path of a name that comes from `where` in a folder of this machine.

    Raises UserError: it leads out of the folder, by its parts or by a link on the way.
    """
    path = folder
    for part in checked(name, where).split("/"):
        path /= part
        if path.is_symlink():
            raise UserError(f"{where}: {path} is a link, and is not followed; put the file there")
    return path


def check_link(path: Path) -> None:
    """Raise UserError for a link that leads nowhere, as those of a cache that is copied by half."""
    if path.is_symlink() and not path.exists():
        raise UserError(
            f"{path} is a link to {path.readlink()}, which is not there; copy what it leads to, "
            "such as by cp -rL"
        )


def read(path: Path, most: int = MOST) -> bytes:
    """Read a whole file of at most so many bytes.

    Raises UserError: it is larger, or no plain file; OSError.
    """
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is no plain file")
    with path.open("rb") as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise UserError(f"{path} is larger than {most:,} bytes, which is all that is read of it")
    return data


def tree(data: bytes, where: str) -> dict[str, Any]:
    """Parse an object of JSON that comes from `where`; raises UserError: it is none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{where} holds no object of JSON; it is damaged, or something else")
    return found
