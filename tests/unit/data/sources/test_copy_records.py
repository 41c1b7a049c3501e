# SPDX-License-Identifier: Apache-2.0
"""A copy in ArrayRecord is the same examples in the same order; what is finished is kept."""

import copy
import hashlib
import re
from pathlib import Path

import numpy as np
import pytest

from tests.photos import tiny
from tests.shards import write_tar
from tests.unit.data.sources.test_records import tagged  # noqa: F401  (a dataset of several labels)
from vit_jax.cli.prepare import main
from vit_jax.data import Captions, all_captions, has_captions, open_source
from vit_jax.data.sources import copy_records
from vit_jax.errors import DataError, UserError


@pytest.fixture(scope="module")
def sources(folder):
    return {split: open_source(f"folder:{folder}", split=split) for split in ("train", "val")}


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_records, "_SHARD_BYTES", 20_000)


def run(*words: str) -> int:
    return main(["prepare", *words])


def test_a_copy_is_what_it_was_made_from(
    sources, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "data" / "mine"
    words = [f"folder:{folder}", "--to=arrayrecord", f"--out={out}"]
    assert run(*words) == 0
    lines = capsys.readouterr().out.splitlines()
    ready = f"--config.data.name=mine --config.data.data_dir={tmp_path}/data"
    assert lines[-1] == f"{out}/1.0.0 is ready: {ready}"
    for split, source in sources.items():
        copy = open_source("mine", str(out.parent), split)
        assert copy.class_names == source.class_names
        assert [copy.read(i) for i in range(len(copy))] == [
            source.read(i) for i in range(len(source))
        ]
    files = {path.name: path.read_bytes() for path in (out / "1.0.0").iterdir()}
    lines = files["SHA256SUMS"].decode().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    shards = {name for name in files if "array_record" in name}
    assert sums == {name: hashlib.sha256(files[name]).hexdigest() for name in shards}
    assert len(shards) > 2
    assert str(folder) not in files["dataset_info.json"].decode()  # which may be published
    assert not list(out.glob(".*"))

    assert run(*words) == 0
    again = capsys.readouterr().out.splitlines()
    assert again[0] == f"{out}/1.0.0 is there, and its {len(shards)} shards match their checksums."
    assert again[1].startswith("Written by `vit_jax prepare` from photos")
    damaged = out / "1.0.0" / min(shards)
    damaged.write_bytes(files[min(shards)][:-1] + b"x")
    assert run(*words) == 65
    assert re.fullmatch(
        rf"error: {damaged} is gone, or not what was written; move {out}/1.0.0 away and prepare "
        "it again\n",
        capsys.readouterr().err,
    )


def test_several_labels_and_none(tagged: Path, tmp_path: Path) -> None:  # noqa: F811
    source = open_source("tagged", str(tagged), "train")
    copy_records.write(tmp_path / "tags", {"train": source}, 1, print)
    copy = open_source("tags", str(tmp_path), "train")
    assert copy.multi_label
    for i in range(len(source)):
        np.testing.assert_array_equal(copy.read(i)["label"], source.read(i)["label"])
    tar = write_tar(tmp_path / "0.tar", {f"{i}.jpg": b"x%d" % i for i in range(12)})
    source = open_source(f"tar:{tar}", split="train")
    copy_records.write(tmp_path / "plain", {"train": source}, 1, print)
    copy = open_source("plain", str(tmp_path), "train")
    assert (copy.class_names, copy.read(2)) == ((), source.read(2))


def test_captions_are_copied(tmp_path: Path) -> None:
    files = {
        f"{i}.{kind}": tiny(f"{i}") if kind == "png" else b"no. %d" % i
        for i in range(9)
        for kind in ("png", "txt")
    }
    tar = write_tar(
        tmp_path / "mine-train-0.tar",
        {**files, "x.png": tiny("x"), "3.json": b'{"captions": ["a", "b"]}'},
    )
    for words, count in ((["--captions"], 9), ([], 10)):
        out = tmp_path / f"copy{count}"
        assert run(f"{tar}", "--to=arrayrecord", f"--out={out}", *words) == 0
        found = open_source(f"copy{count}", str(tmp_path), captions=Captions.READ)
        assert len(found) == count
        assert has_captions(found) == bool(words)
        if words:
            assert all_captions(found) == [(f"no. {i}",) for i in range(9)]
            assert found.read(3) == {"image": tiny("3"), "label": -1, "captions": ("no. 3",)}


def test_an_unfinished_copy_goes_on_with_what_is_sound(sources, tmp_path: Path) -> None:
    out, said = tmp_path / "mine", []
    source = sources["train"]
    read, train = source.read, {"train": source}

    class Broken(type(source)):
        def read(self, index: int) -> dict:
            if index == 20:
                raise DataError("20.jpg is broken")
            return read(index)

    broken = Broken.__new__(Broken)
    broken.__dict__.update(source.__dict__)
    with pytest.raises(DataError, match=r"20.jpg is broken"):
        copy_records.write(out, {"train": broken}, 1, said.append)
    unfinished = out / ".1.0.0.unfinished"
    shards = sorted(unfinished.glob("*array_record*"))
    assert shards
    assert len(shards) == len(said)
    assert not (out / "1.0.0").exists()
    shards[0].write_bytes(b"damaged on the disk")
    (unfinished / ".left.1.tmp").touch()
    said.clear()
    times = [path.stat().st_mtime_ns for path in shards[1:]]
    with pytest.raises(UserError, match=r"unfinished is an unfinished copy of other data; delete"):
        copy_records.write(out, sources, 1, said.append)
    made = copy_records.write(out, train, 2, said.append)
    assert re.match(rf"{len(shards) - 1} of \d+ shards are there already", said[0])
    assert [(made / path.name).stat().st_mtime_ns for path in shards[1:]] == times
    assert not list(made.glob(".*"))
    assert copy_records.compare(made) > len(shards)
    copy = open_source("mine", str(tmp_path), "train")
    assert [copy.read(i) for i in range(24)] == [read(i) for i in range(24)]


def test_class_names_that_tfds_would_change(sources, tmp_path: Path) -> None:
    source = copy.copy(sources["train"])
    for names in (("crane", "owl", "crane"), ("owl", "crane "), ("a", "")):
        source.class_names = names
        with pytest.raises(UserError, match=r"^TFDS does not keep the class name '(crane ?|)': "):
            copy_records.write(tmp_path / "mine", {"train": source}, 1, print)


def test_mistakes_are_one_line(
    folder: Path, tfds_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = ["--to=arrayrecord", f"--out={tmp_path}/mine"]
    (tmp_path / "file").touch()
    for words, line in (
        ([f"folder:{folder}", to[0]], "--out=.: name the dataset to be by its last part"),
        ([f"folder:{folder}", to[0], "--out=A-b"], "--out=A-b: name the dataset to be by its last"),
        ([f"folder:{folder}", *to, "--splits=fit"], "unknown split of .* 'fit'; valid: train, val"),
        ([f"folder:{folder}", to[0], f"--out={tmp_path}/file/x"], "cannot write .*: Not a dir"),
        (["no_such", *to], "no dataset 'no_such' in"),
    ):
        assert run(*words) == 2
        assert re.search(line, capsys.readouterr().err)
    # Only records and rows may be broken behind a header that is read: what folders have is seen.
    table = tmp_path / "photos.csv"
    table.write_text("path,label,split\n0.jpg,cat,train\n")
    (tmp_path / "0.jpg").write_bytes(tiny("0"))
    source = open_source(str(table))
    (tmp_path / "0.jpg").unlink()
    with pytest.raises(DataError, match=r"0\.jpg: No such file or directory"):
        copy_records.write(tmp_path / "mine", {"train": source}, 1, print)
    with pytest.raises(UserError, match=r"has no SHA256SUMS, which `prepare --to=arrayrecord`"):
        copy_records.compare(tfds_dir / "digits" / "1.0.0")
    assert run(f"folder:{folder}") == 0
    assert "[val] is ready: 5 examples, 4 classes" in capsys.readouterr().out
