# SPDX-License-Identifier: Apache-2.0
"""A name from outside stays in its folder; a file from outside is read up to a limit."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vit_jax.errors import UserError
from vit_jax.storage import foreign

REFUSED = (
    *("", ".", "..", "../x", "a/../x", "a/..", "./a", "a/./b", "a//b", "/a", "//a", "a/", "..."),
    *("a/.. /b", ". .", " ", "\\a", "a\\b", "..\\x", "a/..\\..\\x", "C:", "C:x", "c:/x", "C:\\x"),
    *("~", "~/x", "~root/x", "a\0b", "a\nb", "a/\x1b[2J", "a\x7f", "a\x85b", "a\u2028b"),
    *("\ud800", "x" * 256, "é" * 128, "/".join("a" * 65), None, 3, b"a", ["a"]),
)
FINE = (
    "a",
    "a/b.json",
    "state/d/00000001",
    ".zarray",
    "a b",
    "..a",
    "a..",
    "é" * 127,
    "1:b",
    "cc:x",
)


def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name in REFUSED:
        with subtests.test(repr(name)):
            assert foreign.fault(name)
            with pytest.raises(UserError, match=r"gs://b: the name .* is not followed") as caught:
                foreign.inside(tmp_path, name, "gs://b")
            assert str(caught.value).isprintable()


def test_a_plain_name_is_a_path_below_the_folder(tmp_path: Path) -> None:
    for name in FINE:
        assert foreign.checked(name, "x") == name
        assert foreign.inside(tmp_path, name, "x") == tmp_path / name


@given(st.text(st.sampled_from("./\\~:aC \0\n"), max_size=8) | st.text(max_size=8))
def test_what_passes_never_leaves_the_folder(name: str) -> None:
    if not foreign.fault(name):
        path = os.path.normpath(f"/folder/{name}")
        assert path == f"/folder/{name}"


def test_no_link_is_followed_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "out").symlink_to(tmp_path)
    (tmp_path / "in" / "a" / "gone").symlink_to(tmp_path / "nowhere")
    for name in ("out", "out/x", "out/in/a", "a/gone"):
        with pytest.raises(UserError, match="is a link, and is not followed"):
            foreign.inside(tmp_path / "in", name, "x")
    (tmp_path / "link").symlink_to(tmp_path / "in")  # the folder itself is the person's own
    assert foreign.inside(tmp_path / "link", "a/b", "x") == tmp_path / "link" / "a" / "b"


def test_a_link_that_leads_nowhere_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to("blobs/1")
    with pytest.raises(UserError, match=r"x is a link to blobs/1, which is not there; copy"):
        foreign.check_link(tmp_path / "x")
    foreign.check_link(tmp_path / "nothing")
    foreign.check_link(tmp_path)


def test_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert foreign.read(tmp_path / "x", 5) == b"12345"
    with pytest.raises(UserError, match="larger than 4 bytes"):
        foreign.read(tmp_path / "x", 4)
    os.mkfifo(tmp_path / "pipe")  # which would never end
    with pytest.raises(UserError, match="is no plain file"):
        foreign.read(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        foreign.read(tmp_path / "nothing")


def test_json_from_outside_is_an_object_or_refused() -> None:
    assert foreign.tree(b'{"a": 1}', "x") == {"a": 1}
    for data in (b"", b"[]", b"3", b"{", b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b"1" * 5_000):
        with pytest.raises(UserError, match="x holds no object of JSON"):
            foreign.tree(data, "x")


def test_a_hidden_name_is_told() -> None:
    assert all(map(foreign.is_hidden, (".lock", "a/.b", ".a/b")))
    assert not any(map(foreign.is_hidden, ("a", "a.b", "a/b.c")))
