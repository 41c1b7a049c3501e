# SPDX-License-Identifier: Apache-2.0
"""A look asks once for what did not change, goes on where it was cut, and survives its cache."""

import os
import threading
from pathlib import Path

import pytest

from tests.photos import tiny, write_images
from vit_jax.data.sources import look, look_cache
from vit_jax.data.sources.listing import CIRCLE, NAMELESS, NO_FILE


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names = [f"{i}.png" for i in range(40)]
    write_images(tmp_path / "data", *names)
    (tmp_path / "data" / "7.png").write_bytes(b"none")
    return look.places_of(tmp_path / "data", names)


def judged(monkeypatch: pytest.MonkeyPatch, after: int = 1000) -> list[int]:
    """Count the files whose beginning is read, and fail after a number of them."""
    sizes: list[int] = []

    def see(head: bytes, size: int, stamp: str) -> look_cache.Seen:
        sizes.append(size)
        if len(sizes) > after:
            raise KeyboardInterrupt
        return real(head, size, stamp)

    real = look._judged
    monkeypatch.setattr(look, "_judged", see)
    return sizes


def test_only_what_changed_is_looked_at_again(
    images: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = judged(monkeypatch)
    first = look.examine(images, "x")
    assert [bool(each.why) for each in first] == [i == 7 for i in range(40)]
    assert len(count) == 40
    assert look.examine(images, "x") == first
    assert len(count) == 40
    Path(images[7]).write_bytes(tiny("mended"))
    Path(images[8]).unlink()
    os.utime(images[9], (1, 1))
    after = look.examine(images, "x")
    assert len(count) == 42
    assert (after[7].why, after[8].why, after[9].why) == ("", "gone", "")
    assert look.examine(images, "another") == after
    assert len(count) == 42 + 39


def test_an_interrupted_look_goes_on(images: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "CHUNK", 5)
    monkeypatch.setattr(look, "_NEAR_THREADS", 1)
    with monkeypatch.context() as patch:
        judged(patch, after=22)
        with pytest.raises(KeyboardInterrupt):
            look.examine(images, "x")
    count = judged(monkeypatch)
    look.examine(images, "x")
    assert 18 <= len(count) < 40


def test_a_broken_cache_is_no_harm(
    images: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = look.examine(images, "x")
    (file,) = (tmp_path / "cache" / "vit_jax" / "look").iterdir()
    file.write_bytes(
        b'[1]\n\xff\n{}\n["a"]\nnull\n' + file.read_bytes()[: file.stat().st_size // 2]
    )
    assert look.examine(images, "x") == first
    # It is written anew where most of it is of files that are no more.
    monkeypatch.setattr(look_cache, "_SPARE", 0)
    few = look.examine(images[:3], "x")
    assert len(file.read_text().strip().splitlines()) == 3
    assert look.examine(images[:3], "x") == few == first[:3]
    file.unlink()
    file.mkdir()  # which can be neither read nor written
    assert look.examine(images, "x") == first


def test_inside_of_once_a_dataset_is_read_once() -> None:
    made: list[int] = []
    for _ in range(2):
        look.kept("a", lambda: made.append(1))
    with look.once(), look.once():
        for _ in range(3):
            look.kept("a", lambda: made.append(2))
    look.kept("a", lambda: made.append(3))
    assert made == [1, 1, 2, 3]


def test_reasons_are_told_by_what_they_are() -> None:
    for why, told in (
        ("the file is empty", "empty"),
        ("9000x9000 pixels, where 89 million are the limit", "of too many pixels"),
        ("more pixels than 89 million, the limit", "of too many pixels"),
        ("0x5 pixels", "without a pixel"),
        ("900x1 pixels, a strip of more than 500:1", "too long and narrow"),
        (NAMELESS, NAMELESS),
        (CIRCLE, CIRCLE),
        (NO_FILE, NO_FILE),
    ):
        assert look.in_a_word(why) == told


def test_of_two_threads_none_keeps_what_the_other_saw() -> None:
    """The second begins before the first ends, and ends after it, as two runs in a notebook do."""
    inside, leave = threading.Event(), threading.Event()

    def second() -> None:
        with look.once():
            look.kept("x", lambda: 1)
            inside.set()
            leave.wait(10)

    other = threading.Thread(target=second)
    with look.once():
        other.start()
        assert inside.wait(10)
        assert look.kept("x", lambda: 2) == 2
    leave.set()
    other.join()
    assert [look.kept("x", lambda k=k: k) for k in (3, 4)] == [3, 4]
