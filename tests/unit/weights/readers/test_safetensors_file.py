# SPDX-License-Identifier: Apache-2.0
"""The .safetensors reader: its dtypes, and headers that lie."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.refusals import refused_by
from vit_jax.errors import UserError
from vit_jax.weights import apply
from vit_jax.weights.layout import Entry, FileTensor
from vit_jax.weights.readers import safetensors_file

X = np.arange(12, dtype=np.float32).reshape(3, 4) / 8
DAMAGED = "weights.files.damaged"


def read(path: Path) -> dict[str, np.ndarray]:
    with safetensors_file.opened(str(path)) as source:
        return {key: source.read(key) for key in source.shapes}


def refused(path: Path, code: str = "") -> str:
    """Return the one line with which a file is refused, by `code` where that is of another file."""
    with refused_by(code) if code else pytest.raises(UserError) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def write(path: Path, header: Any, data: bytes) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def tensor(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_reads_every_float(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    dtypes = (np.float16, np.float32, np.float64, ml_dtypes.bfloat16)
    tensors = {np.dtype(kind).name: X.astype(kind) for kind in dtypes}
    save_file({**tensors, "scalar": np.array(0.5, np.float32)}, path, metadata={"format": "pt"})
    with safetensors_file.opened(str(path)) as source:
        assert source.name == str(path)
        assert source.shapes == {**dict.fromkeys(tensors, (3, 4)), "scalar": ()}
        for key in tensors:
            found = source.read(key)
            assert found.dtype == np.float32, key
            np.testing.assert_array_equal(found, X, err_msg=key)


def test_integers_are_listed_but_not_read(tmp_path: Path) -> None:
    save_file({"num_batches_tracked": np.array(7)}, tmp_path / "x.safetensors")
    message = refused(tmp_path / "x.safetensors")
    assert "num_batches_tracked is I64, not a tensor of floats" in message


@pytest.mark.parametrize(
    "header, data, code",
    [
        ({"a": tensor([1], 0, 4), "w": tensor([2, 3], 4, 24)}, bytes(24), DAMAGED),
        ({"w": tensor([2, 3], 0, 24)}, bytes(20), DAMAGED),
        ({"w": tensor([2**40, 2**40], 0, 24)}, bytes(24), DAMAGED),
        ({"w": tensor([2, 3], 0, 24)}, bytes(28), DAMAGED),
        ({"w": tensor([-6], 0, 24)}, bytes(24), DAMAGED),
        ({"w": tensor([6], 0, 24, "F99")}, bytes(24), DAMAGED),
        ({"w": tensor([6], 0, 24), "v": tensor([6], 0, 24)}, bytes(24), DAMAGED),
        ({"w": 1}, b"", DAMAGED),
        ([1], b"", DAMAGED),
        (b'{"w":', b"", DAMAGED),
        (b"{" * 1000, b"", DAMAGED),
        ({"a\nb": tensor([1], 0, 4)}, bytes(4), "weights.files.check_names"),
    ],
)
def test_headers_that_lie(header: Any, data: bytes, code: str, tmp_path: Path) -> None:
    refused(write(tmp_path / "x.safetensors", header, data), code)


def test_headers_longer_than_the_file_or_than_any(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for length in (100, 10**18):
        path.write_bytes(length.to_bytes(8, "little") + b"{}")
        assert f"promises a header of {length:,} bytes" in refused(path)
    write(path, b"{" + b" " * 2**24 + b"}", b"")
    assert "promises a header of 16,777,218 bytes" in refused(path)
    path.write_bytes(b"abc")
    assert "is not a .safetensors file" in refused(path)


def test_not_files_of_weights(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    refused(path, "weights.files.first_bytes")
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    refused(path, "weights.files.first_bytes")
    save_file({"w": X}, path)
    path.write_bytes(path.read_bytes()[:-1])
    assert ": w " in refused(path, DAMAGED)


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    one = Entry("params/w", (2,), False, ((FileTensor("w", (2,)),),), lambda parts: parts[0])
    for bad in (np.nan, 1e300):
        save_file({"w": np.array([0, bad])}, path)
        with (
            safetensors_file.opened(str(path)) as source,
            refused_by("weights.apply._read"),
        ):
            apply.fill([one], source)


def test_headers_of_every_length_are_headers(tmp_path: Path) -> None:
    from tests.unit.weights.test_grids import TALL, state_of
    from vit_jax import weights

    state, found = state_of(TALL), set()
    for more in range(0, 256, 8):  # one is 128 modulo 256, as a pickle begins
        file = tmp_path / "x.safetensors"
        save_file(state, file, metadata={"a": "b" * more, "vit_jax.grid": '{"img_size": [32, 16]}'})
        found.add(first := file.read_bytes()[0])
        if first == 128 or not more:
            assert weights.read(f"timm:{file}", TALL, only_check=True) == {}
    assert 128 in found
