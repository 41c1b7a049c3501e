# SPDX-License-Identifier: Apache-2.0
"""Arrays of a stranger's .npz: as they were written, or ValueError; no more memory than bytes."""

import io
import zipfile

import numpy as np
import pytest

from vit_jax.storage import array_files

KINDS = {"starts": "i", "names": "S"}
ARRAYS = {"starts": np.arange(3), "names": np.array([b"a", b"bb", b"c"])}


def npz(arrays: dict[str, np.ndarray], write=np.savez) -> bytes:
    write(file := io.BytesIO(), **arrays)
    return file.getvalue()


def test_arrays_come_back() -> None:
    found = array_files.vectors(npz(ARRAYS), KINDS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)


def _lying() -> bytes:
    """An array whose header claims more than the file has."""
    np.save(file := io.BytesIO(), np.arange(3))
    return _zipped({"starts.npy": file.getvalue().replace(b"'shape': (3,)", b"'shape': (9,)")})


def _zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    with zipfile.ZipFile(file := io.BytesIO(), "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04",
        npz({"starts": np.arange(3)}),
        npz(ARRAYS, np.savez_compressed),  # which may be a bomb
        npz({**ARRAYS, "names": np.array(["text"])}),
        npz({**ARRAYS, "starts": np.zeros((2, 2), int)}),
        npz({**ARRAYS, "starts": np.array([{}], object)}),
        npz(ARRAYS)[:-40],
        _zipped({"starts.npy": b"\x93NUMPY\x01\x00v\x00{"}),
        _zipped({"starts.npy": b"\0" * 100}),
        _lying(),
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        array_files.vectors(data, KINDS)
