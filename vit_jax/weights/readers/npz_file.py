# SPDX-License-Identifier: Apache-2.0
"""Read untrusted .npz files: one array at a time, no pickle, no more memory than the array needs.

An .npz is a zip of .npy members (numpy.lib.format). Only headers are read to know the shapes; a
member is decompressed when it is read, and no byte beyond the size in its header.
"""

import contextlib
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from vit_jax.errors import UserError
from vit_jax.storage import array_files, foreign
from vit_jax.weights import files
from vit_jax.weights.layout import Shape

_CHUNK_BYTES = 2**20
_BFLOAT16 = np.dtype("V2")  # how numpy stores a type that is not its own
# bz2 and lzma streams decompress without bound before the first byte comes out; numpy writes none.
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)


class _Member(NamedTuple):
    info: zipfile.ZipInfo
    offset: int  # where the data begin
    shape: Shape
    fortran: bool
    dtype: np.dtype


class _Npz:
    """An open .npz file; all headers are checked when it is made.

    Raises UserError: not an .npz; a member that is encrypted, not an array, of Python objects, of
    another size than in its header, or a name that escapes a directory; names twice.
    """

    def __init__(self, path: str, archive: zipfile.ZipFile) -> None:
        self._path, self._zip = path, archive
        # Not `is_dir`, which before Python 3.12 fails on an empty name.
        infos = [info for info in archive.infolist() if not info.filename.endswith("/")]
        files.check_names(path, [info.filename for info in infos])
        self.members: dict[str, _Member] = {}
        for info in infos:
            key = info.filename.removesuffix(".npy")
            self._check_member(info)
            if key in self.members:
                raise UserError(f"{path}: {key} is there twice; which one counts is not known")
            with self._named(key), archive.open(info) as stream:
                member = _Member(info, *array_files.array_header(stream.read))
            self._check_header(key, member)
            self.members[key] = member

    def read(self, key: str) -> np.ndarray:
        member = self.members[key]
        floats = member.dtype.kind == "f" and member.dtype.itemsize in (2, 4, 8)
        if not floats and member.dtype != _BFLOAT16:
            kind = str(member.dtype)[:80]
            raise UserError(f"{self._path}: {key} is {kind}, not an array of floats")
        flat = np.empty(math.prod(member.shape), member.dtype)
        with self._named(key), self._zip.open(member.info) as stream:
            stream.read(member.offset)
            _fill(flat.view(np.uint8).data, stream.read)
        return _float32(flat).reshape(member.shape, order="F" if member.fortran else "C")

    @contextlib.contextmanager
    def _named(self, key: str) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except _DAMAGE as error:
            raise files.damaged(self._path, key, error) from None

    def _check_member(self, info: zipfile.ZipInfo) -> None:
        name = info.filename
        if name and (why := foreign.fault(name)):
            raise UserError(f"{self._path}: {name} points outside of the file: it {why}; not read")
        if info.flag_bits & 1:
            raise UserError(f"{self._path}: {name} is encrypted; save it without a password")
        if info.compress_type not in _COMPRESSIONS:
            raise UserError(f"{self._path}: {name} is not compressed as numpy does it")
        if not name.endswith(".npy"):
            pytorch = " (PyTorch's? those are read as timm:FILE)" if "data" in name else ""
            raise UserError(
                f"{self._path} is not an .npz: {name or 'what has no name'} is no array{pytorch}"
            )

    def _check_header(self, key: str, member: _Member) -> None:
        if member.dtype.hasobject:
            raise UserError(f"{self._path}: {key} holds Python objects, which could run code")
        shape = member.shape
        if not files.is_shape(shape):
            shown = ", ".join(
                str(side) if abs(side) < files.MAX_SIDE else "..." for side in shape[:8]
            )
            raise UserError(f"{self._path}: {key} has the shape [{shown}], which no array has")
        promised = member.offset + math.prod(shape) * member.dtype.itemsize
        if promised != member.info.file_size:
            claim = f"{str(member.dtype)[:80]}{list(shape)}"
            raise UserError(
                f"{self._path}: {key} lies: its header claims {claim}, "
                f"{promised:,} bytes, and it holds {member.info.file_size:,}"
            )


def _fill(view: memoryview, read: Callable[[int], bytes]) -> None:
    filled = 0
    while filled < len(view):
        chunk = read(min(_CHUNK_BYTES, len(view) - filled))
        if not chunk:
            raise EOFError("it ends early")
        view[filled : filled + len(chunk)] = chunk
        filled += len(chunk)  # at the last byte, zipfile compares the checksum


def _float32(flat: np.ndarray) -> np.ndarray:
    if flat.dtype != _BFLOAT16:
        with np.errstate(over="ignore"):  # what overflows is refused as infinite
            return flat.astype(np.float32, copy=False)
    bits = flat.view("<u2").astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


@contextlib.contextmanager
def opened(path: str) -> Iterator[files.WeightsFile]:
    """Open an .npz file as a WeightsFile; raises UserError: no such file, or no .npz."""
    start = files.first_bytes(path)
    if not start.startswith(b"PK"):
        hint = "; read it as timm:FILE" if start[8:9] == b"{" else ""
        raise UserError(f"{path} is not an .npz file: it is no zip archive{hint}")
    try:
        archive = zipfile.ZipFile(path)
    except _DAMAGE as error:
        raise files.damaged(path, "", error) from None
    with archive:
        npz = _Npz(path, archive)
        shapes = {key: member.shape for key, member in npz.members.items()}
        yield files.WeightsFile(path, shapes, npz.read)
