# SPDX-License-Identifier: Apache-2.0
"""Heads of a stranger's .npy and .npz files: no pickle, no more memory than the file has bytes."""

import io
import zipfile
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.lib import format as npy

_HEADER_BYTES = 10_000 + 16  # numpy's own limit of a header's length, and what comes before it


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
