# SPDX-License-Identifier: Apache-2.0
"""Read .safetensors files: a JSON header and raw data, mapped into memory, nothing to run."""

import contextlib
import functools
import json
import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from vit_jax.errors import UserError
from vit_jax.weights.files import WeightsFile, check_names, damaged, first_bytes, is_shape

# About 100 bytes a tensor: the largest published file's has some hundred kilobytes.
_HEADER_BYTES = 2**23
# A damaged header up to this size is parsed to name a tensor; Python takes twenty times its size.
_TOLD_BYTES = 2**20
_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16}


def _read(path: str, file: Any, key: str) -> np.ndarray:
    kind = file.get_slice(key).get_dtype()
    if kind not in _BITS:
        raise UserError(f"{path}: {key} is {kind}, not a tensor of floats")
    try:
        value = file.get_tensor(key)
    except ValueError as error:  # a shape that no array has
        raise damaged(path, key, error) from None
    with np.errstate(over="ignore"):  # what overflows is refused as infinite
        return value.astype(np.float32, copy=False)


@contextlib.contextmanager
def opened(path: str) -> Iterator[WeightsFile]:
    """Open a .safetensors file as a WeightsFile; raises UserError: no such file, a false header."""
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
        names = file.keys()
        check_names(path, names)
        shapes = {key: tuple(file.get_slice(key).get_shape()) for key in names}
        read = functools.partial(_read, path, file)
        yield WeightsFile(path, shapes, read, file.metadata() or {})


def _first_lie(path: str, length: int) -> str:
    """Name a tensor that is not as large as its shape or not where the one before it ends; or "".

    The library's error does not.
    """
    if length > _TOLD_BYTES:
        return ""
    with open(path, "rb") as stream:
        header = stream.read(8 + length)[8:]
    try:
        tensors = {key: x for key, x in json.loads(header).items() if key != "__metadata__"}
        expected = 0
        for key, about in sorted(tensors.items(), key=lambda item: item[1]["data_offsets"]):
            start, end = about["data_offsets"]
            lies = start != expected or 8 + length + end > os.path.getsize(path)
            if not lies and about["dtype"] in _BITS:
                size = math.prod(about["shape"]) if is_shape(about["shape"]) else -1
                lies = end - start != size * _BITS[about["dtype"]] // 8
            if lies:
                return key[:200] if key.isprintable() else ""
            expected = end
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass  # no header: the library's message names it
    return ""
