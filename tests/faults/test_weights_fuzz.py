# SPDX-License-Identifier: Apache-2.0
"""Files of weights drawn at random: each reads as its header says, or is refused in one line."""

import io
import json
import math
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.numpy import save

from tests.faults.drawn import examples
from vit_jax.errors import UserError
from vit_jax.weights.readers import npz_file, safetensors_file, torch_file

ARRAYS = {"a/kernel": np.ones((3, 4), np.float32), "b": np.zeros(5, np.float16)}


def saved(save_as: Callable[..., None]) -> bytes:
    stream = io.BytesIO()
    save_as(stream, **ARRAYS)
    return stream.getvalue()


NPZ = (saved(np.savez), saved(np.savez_compressed))
SAFETENSORS = save(ARRAYS)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drawn") / "x"


def check(opened: Callable[[str], Any], place: Path, data: bytes) -> None:
    """Assert that bytes are read as promised or refused, in no more memory than they promise."""
    place.write_bytes(data)
    promised, said = 0, ""
    tracemalloc.start()
    try:
        with opened(str(place)) as source:
            for key, shape in source.shapes.items():
                promised = max(promised, math.prod(shape))
                array = source.read(key)
                assert (array.shape, array.dtype) == (shape, np.float32)
    except UserError as error:
        said = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert len(said.splitlines()) <= 1, said
    assert len(said) < 1000, said
    assert peak < 2**22 + 16 * promised, (peak, promised)


@st.composite
def mutated(draw: st.DrawFn, whole: bytes) -> bytes:
    """Change, cut out, repeat or cut off some bytes."""
    data = bytearray(whole)
    place = st.integers(0, len(whole))
    for _ in range(draw(st.integers(1, 4))):
        at, kind = draw(place), draw(st.sampled_from(["set", "delete", "repeat", "insert", "end"]))
        size = draw(st.sampled_from([1, 2, 4, 8, 16]))
        if kind == "set":
            data[at : at + size] = draw(st.sampled_from([b"\x00", b"\xff", b"\x7f", b"9"])) * size
        elif kind == "delete":
            del data[at : at + size]
        elif kind == "repeat":
            data[at:at] = data[at : at + size] * draw(st.integers(1, 4))
        elif kind == "insert":
            data[at:at] = draw(st.binary(max_size=8))
        else:
            del data[at:]
    return bytes(data)


@examples(150)
@given(data=st.one_of(*map(mutated, NPZ), st.binary(max_size=64).map(b"PK\x03\x04".__add__)))
def test_mutated_npz(place: Path, data: bytes) -> None:
    check(npz_file.opened, place, data)


@examples(150)
@given(data=mutated(SAFETENSORS) | st.binary(max_size=64))
def test_mutated_safetensors(place: Path, data: bytes) -> None:
    check(safetensors_file.opened, place, data)


@examples(150)
@given(data=mutated(NPZ[0]))
def test_mutated_archives_for_torch(place: Path, data: bytes) -> None:
    """What is looked at before PyTorch is asked to read a file, which it then must."""
    place.write_bytes(data)
    with pytest.raises(UserError) as caught, torch_file.opened(str(place)):
        pass
    assert len(str(caught.value).splitlines()) == 1


size = st.one_of(
    st.integers(0, 5), st.sampled_from([-1, 2**31, 2**63 - 1, 2**63, 2**70, 10**400, True])
)
shape = st.lists(size, max_size=5) | st.sampled_from([[1] * 70, [1] * 3000, [10**300] * 30])
words = st.text("ab/._é", min_size=1, max_size=6) | st.sampled_from(["w", "../w", "__metadata__"])


def npy(descr: str, fortran: object, shape: object, data: bytes) -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


descr = st.sampled_from(
    [
        *("'<f4'", "'>f2'", "'<f8'", "'|V2'", "'<f16'", "'|O'", "'<U9'", "'M8[ns]'", "[]", "None"),
        *("('<f4', (3,))", "[('a', '<f4')]", "'<i8'", "'|b1'", "'|V0'", "'<f4,<f4'", "'|V9999999'"),
    ]
)
array = st.builds(
    npy,
    descr,
    st.sampled_from([True, False, 1]),
    shape.map(tuple),
    st.integers(0, 80).map(bytes),
)


def archive(members: dict[str, bytes], how: int) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", how) as out:
        for name, data in members.items():
            out.writestr(f"{name}.npy", data)
    return stream.getvalue()


@examples(300)
@given(
    members=st.dictionaries(words, array, max_size=3),
    how=st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
)
@example(members={"w": npy("'<f4'", False, (10**4000, 10**4000), b"")}, how=0)
@example(members={"w": npy("'<f4'", False, (0, 2**70), b"")}, how=0)
@example(members={"w": npy("'<f4'", False, (0,) * 70, b"")}, how=0)
def test_npz_with_odd_headers(place: Path, members: dict[str, bytes], how: int) -> None:
    check(npz_file.opened, place, archive(members, how))


def tensors(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


offsets = st.lists(st.one_of(st.integers(0, 80), size), min_size=1, max_size=3)
about = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(
            ["F32", "F16", "BF16", "F64", "I64", "BOOL", "F8_E4M3", "F4", "X"]
        ),
        "shape": shape,
        "data_offsets": offsets,
    }
)
json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def truthful(draw: st.DrawFn) -> bytes:
    """Write a file whose header is nearly the truth."""
    header, at = {}, 0
    for name in draw(st.lists(words, max_size=3, unique=True)):
        sides = draw(st.lists(st.integers(0, 4), max_size=4))
        end = at + 4 * math.prod(sides) + draw(st.sampled_from([0, 0, 0, -4, 4]))
        header[name] = {"dtype": "F32", "shape": sides, "data_offsets": [at, end]}
        at = draw(st.sampled_from([end, end, end, 0]))
    return tensors(header, bytes(max(at, 0)))


@examples(300)
@given(
    data=truthful()
    | st.builds(tensors, st.dictionaries(words, about, max_size=3), st.integers(0, 80).map(bytes))
    | st.builds(tensors, json_value | st.dictionaries(words, json_value), st.just(bytes(8)))
)
@example(data=tensors({"w": {"dtype": "F32", "shape": [0, 2**62], "data_offsets": [0, 0]}}, b""))
@example(data=tensors({"w": {"dtype": "F32", "shape": [0] * 70, "data_offsets": [0, 0]}}, b""))
@example(
    data=tensors({"w": {"dtype": "F32", "shape": ["a", 2**26], "data_offsets": [0, 4]}}, bytes(4))
)
@example(data=tensors(b"[" * 5000, b""))
def test_safetensors_with_odd_headers(place: Path, data: bytes) -> None:
    check(safetensors_file.opened, place, data)
