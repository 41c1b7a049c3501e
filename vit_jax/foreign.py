# SPDX-License-Identifier: Apache-2.0
"""Names and files from outside: what a name must be to become a path, and how much is read of it.

A name comes from outside where an object of a bucket, a list in a file, a member of an archive or a
repository bears it: it says which file of its own folder is meant, and never another one.
"""

import io
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from vit_jax.errors import UserError, shown

# Bytes of a file that describes others: a run's config, a manifest, a card, a list of classes.
MOST = 1 << 26
_LONGEST, _DEEPEST = 255, 64  # bytes of a part, parts of a name
_HEADER_BYTES = 10_000 + 16  # numpy's own limit of a header's length, and what comes before it


def fault(name: object) -> str:
    """Say why a name leads nowhere in its own folder; "" of one that does.

    A name is parts joined by "/": none empty, of dots alone, with a backslash or a control
    character, none that a file system cannot hold; the first is no drive.
    """
    if not isinstance(name, str) or not name:
        return "is no name"
    if name.startswith(("/", "\\", "~")) or re.match(r"[A-Za-z]:", name):
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


class Header(NamedTuple):
    """What the head of an array's file claims."""

    offset: int  # where the data begin
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype


def array_header(read: Callable[[int], bytes]) -> Header:
    """Read the header of a .npy file; raises ValueError: it has none."""
    start = io.BytesIO(read(_HEADER_BYTES))
    try:
        version = npy.read_magic(start)
        parse = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, fortran, dtype = parse(start)
    except Exception as error:  # numpy's parser raises what Python's raises on a stranger's text
        raise ValueError(f"no header of an array: {error}") from None
    return Header(start.tell(), shape, fortran, dtype)


def vectors(data: bytes, kinds: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return the arrays of one axis of an uncompressed .npz, by name and kind of dtype ("i", "S").

    Takes no more memory than `data`. Raises ValueError: an array is missing or another one.
    """
    found = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name, kind in kinds.items():
                info = archive.getinfo(f"{name}.npy")
                if info.compress_type != zipfile.ZIP_STORED or info.file_size > len(data):
                    raise ValueError(f"{name} is compressed")
                content = archive.read(info)
                header = array_header(io.BytesIO(content).read)
                if len(header.shape) != 1 or header.dtype.kind != kind:
                    raise ValueError(f"{name} is {header.dtype}{list(header.shape)}")
                found[name] = np.frombuffer(content, header.dtype, offset=header.offset)
                if found[name].shape != header.shape:
                    raise ValueError(f"{name} has another length than it says")
    except (zipfile.BadZipFile, KeyError, EOFError, OSError, RuntimeError) as error:
        raise ValueError(f"no arrays: {error}") from None
    return found
