# SPDX-License-Identifier: Apache-2.0
"""A copy to ArrayRecord that is killed, or that a full disk ends, goes on where it was."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import disks
from tests.photos import write_folder
from vit_jax.cli.prepare import main
from vit_jax.data import open_source
from vit_jax.data.sources import copy_records

KILLED = """
import os, signal, sys, time
from vit_jax.data import copy_records, open_source
from pathlib import Path

copy_records._SHARD_BYTES = 4000
write_shard = copy_records._write_shard
told = []

def last_is_slow(folder, shard, source, stop):
    if shard.stop == len(source):
        time.sleep(60)
    return write_shard(folder, shard, source, stop)

copy_records._write_shard = last_is_slow

def say(line):
    told.append(line)
    if len(told) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

source = open_source(sys.argv[1], split="train")
copy_records.write(Path(sys.argv[2]), {"train": source}, 2, say)
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    write_folder(root, {"train": 12}, ("bird", "cat"))
    return root


def same(photos: Path, out: Path) -> bool:
    source = open_source(f"folder:{photos}", split="train")
    copy = open_source(out.name, str(out.parent), "train")
    return all(source.read(i) == copy.read(i) for i in range(len(source))) and len(copy) == 24


def test_a_killed_copy_goes_on(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "mine"
    words = [sys.executable, "-c", KILLED, f"folder:{photos}", str(out)]
    assert subprocess.run(words, check=False, timeout=120).returncode == -signal.SIGKILL
    assert [path.name for path in out.iterdir()] == [".1.0.0.unfinished"]
    kept = {p: p.stat().st_mtime_ns for p in (out / ".1.0.0.unfinished").glob("mine-*")}
    assert len(kept) >= 2
    listed = (out / ".1.0.0.unfinished" / "SHA256SUMS").read_text()
    monkeypatch.setattr(copy_records, "_SHARD_BYTES", 4000)
    assert main(["prepare", f"folder:{photos}", "--to=arrayrecord", f"--out={out}"]) == 0
    assert copy_records.compare(out / "1.0.0") > len(kept)
    for path, time in kept.items():
        if path.name in listed:
            assert (out / "1.0.0" / path.name).stat().st_mtime_ns == time
    assert not list((out / "1.0.0").glob(".*"))
    assert same(photos, out)


def test_a_full_disk_is_one_line_and_nothing_half_made_counts(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with disks.small(tmp_path / "disk") as disk:
        if disk is None:
            pytest.skip("no disk can be mounted here")
        out = disk / "mine"
        words = ["prepare", f"folder:{photos}", "--to=arrayrecord", f"--out={out}"]
        out.mkdir()
        with disks.full(disk):
            assert main(words) == 2
            lines = capsys.readouterr().err.splitlines()
            assert len(lines) == 1
            assert "cannot write" in lines[0]
            assert "No space left on device" in lines[0]
            assert not (out / "1.0.0").exists()
        assert main(words) == 0
        assert same(photos, out)
