# SPDX-License-Identifier: Apache-2.0
"""The .npz reader: every dtype and order numpy writes, and files that mean harm, by real bytes."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.refusals import Told, refused_as, refused_by
from vit_jax.errors import UserError
from vit_jax.weights import apply
from vit_jax.weights.files import is_shape
from vit_jax.weights.layout import Entry, FileTensor
from vit_jax.weights.readers import npz_file

X = np.arange(12, dtype=np.float32).reshape(3, 4) / 8
# What refuses a file before it is read as an .npz, and what refuses its parts.
START, NAMES, DAMAGED = (f"weights.files.{x}" for x in ("first_bytes", "check_names", "damaged"))


def npy(array: np.ndarray, allow_pickle: bool = False) -> bytes:
    """Return the bytes of an .npy file."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=allow_pickle)
    return stream.getvalue()


def write(path: Path, members: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> str:
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return str(path)


def read(path: str) -> dict[str, np.ndarray]:
    with npz_file.opened(path) as source:
        assert source.name == path
        return {key: source.read(key) for key in source.shapes}


def refused(path: str, code: str = "") -> str:
    """Return the one line with which a file is refused, by `code` where that is of another file."""
    with refused_by(code) if code else pytest.raises(UserError) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message
    assert path in message
    return message


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_reads_what_numpy_writes(save: Callable[..., None], tmp_path: Path) -> None:
    arrays = {
        "a/b": X,
        "fortran": np.asfortranarray(X),
        "half": X.astype(np.float16),
        "double": X.astype(np.float64),
        "big_endian": X.astype(">f4"),
        "scalar": np.float32(0.5),
        "empty": np.zeros((0, 3), np.float32),
        "bfloat16": X.astype(ml_dtypes.bfloat16),  # arrives as V2
    }
    save(tmp_path / "x.npz", **arrays)
    with npz_file.opened(str(tmp_path / "x.npz")) as source:
        assert source.shapes == {key: value.shape for key, value in arrays.items()}
        for key, value in arrays.items():
            found = source.read(key)
            assert found.dtype == np.float32, key
            np.testing.assert_array_equal(found, value.astype(np.float32), err_msg=key)


def test_integers_are_listed_but_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", step=np.int64(7), w=X)
    with npz_file.opened(str(tmp_path / "x.npz")) as source:
        assert source.shapes == {"step": (), "w": (3, 4)}
        with pytest.raises(UserError, match="step is int64, not an array of floats"):
            source.read("step")


class Bomb:
    def __reduce__(self) -> tuple:
        return (open, ("pickle_was_run", "w"))


def test_pickles_are_refused_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = npy(np.array([Bomb()], dtype=object), allow_pickle=True)
    path = write(tmp_path / "x.npz", {"good.npy": npy(X), "evil.npy": data})
    assert "evil holds Python objects" in refused(path)
    assert not Path("pickle_was_run").exists()


@pytest.mark.parametrize(
    "name", ["/etc/x.npy", "../x.npy", "a/../../x.npy", "..\\x.npy", "C:\\x.npy", "\\x.npy"]
)
def test_names_that_point_elsewhere(name: str, tmp_path: Path) -> None:
    assert "points outside" in refused(write(tmp_path / "x.npz", {name: npy(X)}))


def test_names_that_are_not_printable(tmp_path: Path) -> None:
    path = write(tmp_path / "x.npz", {"a\x1b[2J\nb.npy": npy(X)})
    refused(path, NAMES)
    path = write(tmp_path / "y.npz", {"a" * 600 + ".npy": npy(X)})
    refused(path, NAMES)


def test_what_may_be_a_shape() -> None:
    for sides in ([], [0, 5], [2**40] * 32):
        assert is_shape(sides), sides
    for sides in ([-1], [2**48], [1] * 33, ["a", 2], [2.0], [True], [None]):
        assert not is_shape(sides), sides


def test_names_twice(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("w.npy", npy(X))
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("w.npy", npy(X + 1))
    assert "w is there twice" in refused(str(tmp_path / "x.npz"))


def header(text: str, version: int = 1) -> bytes:
    size = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + text.encode()


def described(shape: str, descr: str = "'<f4'") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"


@pytest.mark.parametrize(
    "data, expected",
    [
        (header(described("(3, 4)")) + bytes(40), r"w lies: .*float32\[3, 4\]"),
        (header(described("(3, 4)")) + bytes(56), "w lies"),
        (header(described("(99999999999, 99999999999)")) + bytes(48), "w lies"),
        (header(described("(-3, -4)")) + bytes(48), r"w has the shape \[-3, -4\]"),
        (header(described("(3, 4)", "'|V999'")) + bytes(48), "w lies"),
        (header(described("(3, 4)", "[('a', '<f4')]")) + bytes(48), "not an array of floats"),
        (header(described("(3, 4)", "'<c8'")) + bytes(96), "complex64, not an array of floats"),
        (header(described("(3, 4)", "'nonsense'")) + bytes(48), (DAMAGED, "")),
        (header("(" * 9000), (DAMAGED, "")),
        (header("{[]: 1}"), (DAMAGED, "")),
        (header(described("(3, 4, [])")), (DAMAGED, "")),
        (header(described("(True, 4.5)")), (DAMAGED, "")),
        (header("__import__('os').abort()"), (DAMAGED, "")),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(100), (DAMAGED, "")),
        (header(described("(3, 4)") + " " * 20_000, version=2) + bytes(48), (DAMAGED, "")),
        (b"\x93NUMPY\x07\x00" + bytes(100), (DAMAGED, "")),
        (b"no array", (DAMAGED, "")),
        (b"", (DAMAGED, "")),
    ],
)
def test_headers_that_lie(data: bytes, expected: Told, tmp_path: Path) -> None:
    with refused_as(expected) as caught:
        read(write(tmp_path / "x.npz", {"w.npy": data}))
    assert "x.npz: w " in str(caught.value)
    assert "\n" not in str(caught.value)


def patched(path: Path, old: bytes, new: bytes) -> str:
    data = path.read_bytes()
    assert data.count(old) >= 1
    path.write_bytes(data.replace(old, new))
    return str(path)


def test_data_that_go_on_after_the_declared_size(tmp_path: Path) -> None:
    """Both directories of the zip say 176 bytes; the compressed stream holds a hundred times it."""
    path = tmp_path / "x.npz"
    data = npy(X)
    write(path, {"w.npy": data + bytes(100 * len(data))}, zipfile.ZIP_DEFLATED)
    patched(path, (101 * len(data)).to_bytes(4, "little"), len(data).to_bytes(4, "little"))
    assert ": w " in refused(str(path), DAMAGED)


def test_data_that_end_early(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    promised = header(described("(3, 1000)"))
    write(path, {"w.npy": promised + bytes(48)}, zipfile.ZIP_DEFLATED)
    real, said = len(promised) + 48, len(promised) + 12_000
    patched(path, real.to_bytes(4, "little"), said.to_bytes(4, "little"))
    assert ": w " in refused(str(path), DAMAGED)


def test_a_flipped_bit(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    write(path, {"w.npy": npy(X)})
    patched(path, X.tobytes(), X.tobytes()[:-1] + b"\x00")
    assert ": w is damaged (Bad CRC-32" in refused(str(path), DAMAGED)


def test_other_archives(tmp_path: Path) -> None:
    for how in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):  # which unpack without bound
        assert "not compressed as numpy does" in refused(
            write(tmp_path / "x.npz", {"w.npy": npy(X)}, how)
        )
    path = write(tmp_path / "model.pth", {"model/data.pkl": b"\x80\x02", "model/data/0": b""})
    assert "timm:FILE" in refused(path)
    path = write(tmp_path / "x.npz", {"readme.txt": b"hello"})
    assert "readme.txt is no array" in refused(path)
    path = tmp_path / "nameless.npz"
    write(path, {"w.npy": npy(X)})
    assert "what has no name is no array" in refused(patched(path, b"w.npy", b"\0.npy"))


def test_encrypted(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    write(path, {"w.npy": npy(X)})
    data = bytearray(path.read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + flags] |= 1
    path.write_bytes(bytes(data))
    assert "w.npy is encrypted" in refused(str(path))


def test_damaged_at_any_place(tmp_path: Path) -> None:
    """A truncated or overwritten file is read as it was, or refused in one line: never a crash."""
    np.savez_compressed(tmp_path / "x.npz", w=X, b=X[0])
    good = (tmp_path / "x.npz").read_bytes()
    path = tmp_path / "bad.npz"
    generator = np.random.default_rng(0)
    for size in range(0, len(good), 7):
        path.write_bytes(good[:size])
        refused(str(path))
    outcomes = set()
    for _ in range(200):
        data = bytearray(good)
        for at in generator.integers(0, len(good), 2):
            data[at] = generator.integers(0, 256)
        path.write_bytes(bytes(data))
        try:
            found = read(str(path))
        except UserError:
            outcomes.add(refused(str(path)).count("x"))
            continue
        for key, value in found.items():  # a damaged date, or a letter of the key
            np.testing.assert_array_equal(value, X if value.ndim == 2 else X[0], err_msg=key)
        outcomes.add("read")
    assert {"read"} < outcomes


def test_not_files_of_weights(tmp_path: Path) -> None:
    place = str(tmp_path / "x.npz")
    refused(place, START)
    (tmp_path / "ViT-B_16.npz").write_bytes(b"PK")
    assert "'ViT-B_16.npz'" in refused(str(tmp_path / "ViT-B16.npz"), START)
    refused(str(tmp_path), START)
    for content, code in {
        b"": START,
        b"version https://git-lfs.github.com/spec/v1\noid sha256:": START,
        b"<!DOCTYPE html><html><title>404</title>": START,
        b"\n <html>": START,
        b"PK\x03\x04 and no more": DAMAGED,
    }.items():
        Path(place).write_bytes(content)
        refused(place, code)
    Path(place).write_bytes(b"\x02\x00\x00\x00\x00\x00\x00\x00{}")
    assert "is not an .npz file: it is no zip archive; read it" in refused(place)
    refused("/dev/null", START)
    refused(str(tmp_path / ("a" * 300)), START)
    refused("gs://vit_models/augreg/x.npz", START)


def entry(key: str, shape: tuple[int, ...]) -> Entry:
    """Return an entry that takes a tensor as it is."""
    return Entry(
        f"params/{key}", shape, False, ((FileTensor(key, shape),),), lambda parts: parts[0]
    )


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path: Path) -> None:
    for bad in (np.nan, np.inf, 1e300):
        value = X.astype(np.float64)
        value[1, 2] = bad
        np.savez(tmp_path / "x.npz", w=value)
        with (
            npz_file.opened(str(tmp_path / "x.npz")) as source,
            refused_by("weights.apply._read"),
        ):
            apply.fill([entry("w", (3, 4))], source)
