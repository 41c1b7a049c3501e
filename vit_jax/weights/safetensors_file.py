# SPDX-License-Identifier: Apache-2.0
"""Read .safetensors files: a JSON header and raw data, mapped into memory, nothing to run."""

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from vit_jax.errors import UserError
from vit_jax.weights.files import check_names, damaged, first_bytes
from vit_jax.weights.layout import Shape

# About 100 bytes a tensor: the largest published file's has some hundred kilobytes.
_HEADER_BYTES = 2**24
_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16}


class SafeTensors:
    """A Source over an open .safetensors file."""

    def __init__(self, path: str, file: Any) -> None:
        self.name, self._file = path, file
        check_names(path, file.keys())

    def shapes(self) -> Mapping[str, Shape]:
        """Return the shape of every tensor, from the header."""
        return {
            key: tuple(self._file.get_slice(key).get_shape())
            for key in self._file.keys()  # noqa: SIM118 (not a dict)
        }

    def read(self, key: str) -> np.ndarray:
        """Return one tensor as float32; raises UserError where it holds no floats."""
        kind = self._file.get_slice(key).get_dtype()
        if kind not in _BITS:
            raise UserError(f"{self.name}: {key} is {kind}, not a tensor of floats")
        with np.errstate(over="ignore"):  # what overflows is refused as infinite
            return self._file.get_tensor(key).astype(np.float32, copy=False)


@contextlib.contextmanager
def opened(path: str) -> Iterator[SafeTensors]:
    """Open a .safetensors file as a Source.

    Raises:
        UserError: no such file, or one whose header is not the truth.
    """
    length = int.from_bytes(first_bytes(path)[:8], "little")
    if length > min(_HEADER_BYTES, os.path.getsize(path) - 8):
        raise UserError(
            f"{path} is not a .safetensors file, or a part of one: it promises a header of "
            f"{length:,} bytes"
        )
    try:
        file = safe_open(path, framework="np")
    except (SafetensorError, OSError, ValueError) as error:
        raise damaged(path, _first_lie(path, length), error) from None
    with file:
        yield SafeTensors(path, file)


def _first_lie(path: str, length: int) -> str:
    """Name a tensor whose size is not its shape's, which the library's error does not; or ""."""
    with open(path, "rb") as stream:
        header = stream.read(8 + length)[8:]
    try:
        for key, about in json.loads(header).items():
            if key == "__metadata__" or about["dtype"] not in _BITS:
                continue
            start, end = about["data_offsets"]
            size = math.prod(about["shape"]) * _BITS[about["dtype"]] // 8
            if end - start != size or 8 + length + end > os.path.getsize(path):
                return key[:200] if key.isprintable() else ""
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass  # not even a header: the library's message says so
    return ""
