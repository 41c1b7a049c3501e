# SPDX-License-Identifier: Apache-2.0
"""What cannot be a file of weights is refused by what it is."""

from pathlib import Path

import pytest

from vit_jax.errors import UserError
from vit_jax.weights.files import NoSuchFile, check_names, damaged, first_bytes, is_shape


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git-LFS pointer"),
        (b"  <!DOCTYPE html>", "is a web page"),
    ],
)
def test_a_file_of_something_else_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "w.npz").write_bytes(content)
    with pytest.raises(UserError, match=message):
        first_bytes(str(tmp_path / "w.npz"))


def test_the_beginning_of_a_file_is_returned(tmp_path: Path) -> None:
    (tmp_path / "w.npz").write_bytes(b"PK\x03\x04" + bytes(100))
    assert first_bytes(str(tmp_path / "w.npz"), 4) == b"PK\x03\x04"


def test_a_missing_file_is_told_from_one_of_a_similar_name(tmp_path: Path) -> None:
    (tmp_path / "weights.npz").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"did you mean 'weights.npz'\?") as error:
        first_bytes(str(tmp_path / "weigths.npz"))
    assert not isinstance(error.value, NoSuchFile)
    with pytest.raises(NoSuchFile, match="no such file"):
        first_bytes(str(tmp_path / "zzz"))
    with pytest.raises(UserError, match="is a directory; give the file of weights in it"):
        first_bytes(str(tmp_path))
    with pytest.raises(UserError, match=r"/dev/null is not a plain file"):
        first_bytes("/dev/null")
    with pytest.raises(UserError, match="a: cannot be read: File name too long"):
        first_bytes(str(tmp_path / ("a" * 300)))


def test_an_address_is_to_be_downloaded() -> None:
    with pytest.raises(UserError, match=r"curl -O https://storage.googleapis.com/b/x.npz"):
        first_bytes("gs://b/x.npz")


def test_shapes_that_no_array_has_are_refused() -> None:
    assert is_shape((3, 0, 2**40))
    for sides in ((-1,), (2**48,), (1.0,), (True,), (1,) * 33):
        assert not is_shape(sides), sides


def test_names_fit_a_line() -> None:
    check_names("f", ["a/b", "é"])
    with pytest.raises(UserError, match="is not the name of a parameter"):
        check_names("f", ["a\x1b[2J"])
    with pytest.raises(UserError, match="holds 65,537 tensors"):
        check_names("f", [""] * (2**16 + 1))


def test_damage_is_one_line() -> None:
    assert str(damaged("f", "k", ValueError("a\n  b"))) == (
        "f: k is damaged (a b); download the file again"
    )
    assert "f is damaged (EOFError)" in str(damaged("f", "", EOFError()))
