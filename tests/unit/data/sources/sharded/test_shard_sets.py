# SPDX-License-Identifier: Apache-2.0
"""A set of shards is whole, of one generation, each once; or a line says what it is not."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import refused_by
from vit_jax.data.sources.sharded import shards
from vit_jax.errors import DataError
from vit_jax.storage.remote import FileInfo, info


def made(folder: Path, *names: str) -> list[FileInfo]:
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(b"x" * (4 if "other" in name else 3))
    return [info(str(folder / name)) for name in sorted(names)]


def names(files: list[FileInfo]) -> list[str]:
    return [file.path.rpartition("/")[2] for file in files]


def test_a_copy_of_a_shard_counts_once(tmp_path: Path) -> None:
    copies = ("a (1)", "a(2)", "a copy", "a copy 2", "a - Copy", "a - Copy (3)", "Copy of a")
    for number, copy in enumerate((*copies, "a_copy", "a-COPY")):
        files = made(tmp_path / str(number), "a.tar", f"{copy}.tar", "b (1).tar")
        found = shards.complete(files, "x", exact=False)
        assert names(found.files) == ["a.tar", "b (1).tar"]
        assert f"{copy}.tar looks like a copy of a.tar" in found.notes[0]
    files = made(tmp_path / "other", "a.tar", "a (1).tar")
    files[0] = files[0]._replace(size=9)
    with pytest.raises(DataError, match=r"x: a \(1\).tar looks like a copy of a.tar, but has anot"):
        shards.complete(files, "x", exact=False)


def test_two_generations_are_refused(tmp_path: Path) -> None:
    files = made(
        tmp_path / "a", *(f"t-{i:05}-of-00002.tar" for i in range(2)), "t-00000-of-00003.tar"
    )
    with pytest.raises(DataError, match=r"t-\*.tar has shards of two generations, -of-00002 and -"):
        shards.complete(files, "x", exact=False)
    hashed = [f"t-00000-of-00001-{digit * 16}.parquet" for digit in "ab"]
    with pytest.raises(DataError, match="are one shard of two generations; delete those of one"):
        shards.complete(made(tmp_path / "b", *hashed), "x", exact=False)
    other = [f"t-{i:05}-of-00002-{digit * 16}.parquet" for i, digit in enumerate("ab")]
    assert shards.complete(made(tmp_path / "c", *other), "x", exact=False).notes == ()


def test_a_file_that_is_not_finished(tmp_path: Path) -> None:
    files = made(tmp_path / "a", "a.tar", "b.tar", "b.tar.part", "b.tar.md5")[:2]
    (note,) = shards.complete(files, "x", exact=False).notes
    assert "b.tar.part is no finished file" in note
    (tmp_path / "a" / "c.tar.crdownload").touch()
    with pytest.raises(DataError, match=r"x is not complete: .*c.tar.crdownload is no finished"):
        shards.complete(files, "x", exact=False)
    assert shards.complete(files, "x", exact=True).notes == ()


def test_gaps_are_told_and_dates_are_no_sequence(tmp_path: Path) -> None:
    for number, (some, said) in enumerate(
        (
            (("t-000", "t-001", "t-003"), "there is no t-002.tar"),
            (("t8", "t11"), "there is no t9.tar; t10.tar"),
            (("20230101", "20240101"), ""),
            (("1", "99999999999999999999"), ""),
            (("t-000", "v-002"), ""),
        )
    ):
        files = made(tmp_path / str(number), *(f"{name}.tar" for name in some))
        notes = shards.complete(files, "x", exact=False).notes
        assert notes == ((f"the numbers of the files have gaps: {said}",) if said else ())


SETS = st.integers(1, 6).flatmap(
    lambda total: st.tuples(
        st.just(total),
        st.sets(st.integers(0, total - 1), min_size=1),
        st.sampled_from((0, 1)),
        st.sampled_from((".tar", ".parquet", "-0123456789abcdef.parquet", ".img.tar")),
    )
)


@settings(max_examples=60, deadline=None)
@given(SETS)
def test_some_of_a_set_are_whole_or_refused_by_name(tmp_path_factory, drawn) -> None:
    total, have, first, end = drawn
    folder = tmp_path_factory.mktemp("set") / "a"
    files = made(folder, *(f"t-{i + first:05}-of-{total:05}{end}" for i in have))
    lacking = {*range(total)} - have
    if not lacking:
        assert shards.complete(files, "x", exact=False) == (files, ())
        return
    with refused_by("data.sources.sharded.shards._check_numbers", kind=DataError):
        shards.complete(files, "x", exact=False)
    (note,) = shards.complete(files, "x", exact=True).notes  # who names them knows
    assert note.startswith(f"{len(have)} of the {total} shards")
    if not first or total - 1 in have:
        for i in lacking:  # a pattern that leaves them out
            (folder / f"t-{i + first:05}-of-{total:05}{end}").write_bytes(b"x")
        (note,) = shards.complete(files, "x", exact=False).notes
        assert note.startswith(f"{len(have)} of the {total} shards")


def test_counts_are_those_of_the_card() -> None:
    compare = shards.compare
    assert compare({"train": 5, "Validation": 2}, {"train": 5, "validation": 2}, "x") == []
    assert compare({}, {"train": 5}, "x") == []
    (note,) = compare({"train": 5, "test": 2}, {"train": 5}, "x")
    assert note == "the card lists the split test (2), of which no file is here"
    with refused_by("data.sources.sharded.shards.compare", kind=DataError):
        compare({"train": 1005}, {"train": 5}, "x")
