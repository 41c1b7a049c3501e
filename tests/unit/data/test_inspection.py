# SPDX-License-Identifier: Apache-2.0
"""`prepare --check` decodes every image of any source, and lists what is amiss."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.photos import tiny, write_images
from tests.shards import write_tar
from vit_jax.cli.prepare import main


def check(*words: str) -> int:
    return main(["prepare", *words, "--check"])


def cut_off(seed: int) -> bytes:
    """Return a JPEG with a good header, and not all of its pixels."""
    out = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(pixels).save(out, "JPEG")
    return out.getvalue()[:-2000]


def test_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "data"
    name = write_images(root, *(f"{s}/a/{i}.png" for s in ("train", "val") for i in range(5)))
    assert check(name) == 0
    out = capsys.readouterr().out
    assert "1 class in 2 splits (train 5, val 5); all 10 files used" in out
    assert out.endswith("10 of 10 images can be decoded, and nothing is left out or there twice\n")
    (root / "val" / "a" / "half.jpg").write_bytes(cut_off(0))
    (root / "val" / "a" / "notes.txt").touch()
    table = tmp_path / "amiss.csv"
    assert check(name, f"--out={table}") == 65
    out = capsys.readouterr().out
    assert f"  {root}/val/a/half.jpg [val]: " in out
    assert "  val/a/notes.txt: not an image\n" in out
    assert out.endswith("10 of 11 images can be decoded\n")
    with table.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["split"] for row in rows] == ["val", ""]
    assert check(name, "--splits=train") == 65
    assert "5 of 5 images" in capsys.readouterr().out


def test_a_tar_with_copies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def members(*images: tuple[str, bytes, str]) -> dict[str, bytes]:
        files = {}
        for key, data, label in images:
            files |= {f"{key}.jpg": data, f"{key}.cls": label.encode()}
        return files

    train = members(("1", tiny("a"), "cat"), ("2", tiny("b"), "dog"), ("3", tiny("b"), "cat"))
    write_tar(tmp_path / "train.tar", train)
    write_tar(tmp_path / "val.tar", members(("9", tiny("a"), "cat"), ("8", cut_off(1), "dog")))
    assert check(f"tar:{tmp_path}/*.tar") == 65
    out = capsys.readouterr().out
    assert "1 image lies in train and in val (by content), first: " in out
    assert "1 image has two classes or more (by content), first: " in out
    assert f"  {tmp_path}/val.tar: 8.jpg [val]: " in out
    assert "4 of 5 images can be decoded" in out


def test_what_does_not_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = write_images(tmp_path / "data", "a/1.png", "a/2.png", "a/3.png")
    assert check(name, "--to=arrayrecord", f"--out={tmp_path}/x") == 2
    assert "--check reads and --to writes" in capsys.readouterr().err
    assert check(name, f"--out={tmp_path}/x.txt") == 2
    assert "must end in .csv" in capsys.readouterr().err
