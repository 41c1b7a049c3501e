# SPDX-License-Identifier: Apache-2.0
"""`check-data` decodes every image of any source, and lists what is amiss."""

import csv
import io
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.photos import tiny, write_images
from tests.shards import write_tar
from vit_jax.__main__ import main
from vit_jax.data import inspection


def check(*words: str) -> int:
    return main(["vit_jax", "check-data", *words])


def cut_off(seed: int) -> bytes:
    """Return a JPEG with a good header, and not all of its pixels."""
    return encoded(np.random.default_rng(seed).integers(0, 256, (64, 64, 3), np.uint8))[:-2000]


def encoded(pixels: np.ndarray, form: str = "JPEG", **options) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, form, **options)
    return out.getvalue()


def found(name: str) -> dict[str, list[str]]:
    """Return the names of what is found, by its kind."""
    kinds: dict[str, list[str]] = {}
    for each in inspection.inspect(inspection.open_splits(name), 2).findings:
        kinds.setdefault(each.found, []).append(each.name.rpartition("/")[2])
    return kinds


def test_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "data"
    name = write_images(root, *(f"{s}/a/{i}.png" for s in ("train", "val") for i in range(5)))
    assert check(name) == 0
    out = capsys.readouterr().out
    assert "1 class in 2 splits (train 5, val 5); all 10 files used" in out
    assert out.endswith("10 of 10 images can be decoded, and nothing is amiss\n")
    (root / "val" / "a" / "half.jpg").write_bytes(cut_off(0))
    (root / "val" / "a" / "notes.txt").touch()
    (root / "val" / "a" / ".DS_Store").touch()  # which nobody needs to mend
    table = tmp_path / "amiss.csv"
    assert check(name, f"--csv={table}") == 65
    out = capsys.readouterr().out
    assert "  cut off: val/a/half.jpg [a of val]: " in out
    assert "  not an image: val/a/notes.txt\n" in out
    assert ".DS_Store: " not in out
    assert out.endswith("10 of 11 images can be decoded\n")
    with table.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["found"], row["split"]) for row in rows] == [
        ("cut off", "val"),
        ("not an image", ""),
    ]
    assert check(name, "--splits=train") == 65
    assert "5 of 5 images" in capsys.readouterr().out
    assert main(["vit_jax", "prepare", name, "--check", f"--out={table}"]) == 65


def test_copies_by_their_pixels(tmp_path: Path) -> None:
    """The bytes of each pair differ: another compression of the same pixels."""
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (5, 4, 3), np.uint8) for _ in range(4)]
    for pixels, one, two in zip(
        images,
        ("train/a/1.png", "train/a/2.png", "train/a/3.png", "train/b/4.png"),
        ("train/a/11.png", "val/a/12.png", "val/b/13.png", "val/b/14.jpg"),
        strict=True,
    ):
        for path, level in ((tmp_path / "data" / one, 0), (tmp_path / "data" / two, 9)):
            path.parent.mkdir(parents=True, exist_ok=True)
            form = "JPEG" if path.suffix == ".jpg" else "PNG"  # whose pixels are others
            path.write_bytes(encoded(pixels, form, compress_level=level))
    kinds = found(f"folder:{tmp_path}/data")
    assert sorted(kinds[inspection.TWICE]) == ["1.png", "11.png"]
    assert sorted(kinds[inspection.TWO_SPLITS]) == ["12.png", "13.png", "2.png", "3.png"]
    assert sorted(kinds[inspection.TWO_CLASSES]) == ["13.png", "3.png"]
    assert len(kinds) == 3


def test_images_that_show_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "data"
    name = write_images(root, "a/1.png", "a/2.png", "b/3.png")
    side = np.ones((9, 8, 4), np.uint8)
    (root / "a" / "black.jpg").write_bytes(encoded(0 * side[..., :3]))
    (root / "b" / "black.png").write_bytes(encoded(0 * side[..., :3], "PNG"))
    (root / "b" / "white.png").write_bytes(encoded(255 * side[..., :3], "PNG"))
    (root / "b" / "clear.png").write_bytes(encoded(0 * side, "PNG"))
    (root / "b" / "red.png").write_bytes(
        encoded(np.array(side[..., :3] * [200, 0, 0], np.uint8), "PNG")
    )
    dot = 0 * side[..., 0]
    dot[4, 4] = 255  # it shows something
    (root / "b" / "dot.png").write_bytes(encoded(dot, "PNG"))
    assert check(name, f"--sheet={tmp_path}/sheet.png") == 65
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines() if "wholly" in line]
    whys = {words[3].rstrip(":"): words[-1] for words in lines}
    assert whys == {
        "a/black.jpg": "black",
        "b/black.png": "black",
        "b/white.png": "white",
        "b/clear.png": "transparent",
        "b/red.png": "#c80000",
    }
    assert "in two classes" not in out  # two black images say nothing about their classes
    width, height = Image.open(tmp_path / "sheet.png").size
    assert width > 5 * 48
    assert height > 48


def test_a_tar_with_copies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def members(*images: tuple[str, bytes, str]) -> dict[str, bytes]:
        files = {}
        for key, data, label in images:
            files |= {f"{key}.jpg": data, f"{key}.cls": label.encode()}
        return files

    train = members(("1", tiny("a"), "cat"), ("2", tiny("b"), "dog"), ("3", tiny("b"), "cat"))
    write_tar(tmp_path / "train.tar", train)
    write_tar(tmp_path / "val.tar", members(("9", tiny("a"), "cat"), ("8", cut_off(1), "dog")))
    assert check(f"tar:{tmp_path}/*.tar", f"--sheet={tmp_path}/sheet.png") == 65
    out = capsys.readouterr().out
    lines = Counter(x.strip().partition(":")[0] for x in out.splitlines() if "jpg [" in x)
    assert lines == {"in two splits": 2, "in two classes": 2, "cut off": 1}
    assert "val.tar: 8.jpg [dog of val]: " in out
    assert "4 of 5 images can be decoded" in out
    assert (tmp_path / "sheet.png").is_file()


def test_what_does_not_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = write_images(tmp_path / "data", "a/1.png", "a/2.png", "a/3.png")
    words = ["vit_jax", "prepare", name, "--check", "--to=arrayrecord", f"--out={tmp_path}/x"]
    assert main(words) == 2
    assert "--check reads and --to writes" in capsys.readouterr().err
    for flag in (f"--csv={tmp_path}/x.txt", f"--sheet={tmp_path}/x.jpg"):
        assert check(name, flag) == 2
        assert "must end in ." in capsys.readouterr().err
    assert check(name, "--splits=vla") == 2
    assert "did you mean 'val'?" in capsys.readouterr().err
    assert main(["vit_jax", "check_data", name]) == 0  # the other spelling


def test_captions_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_images(tmp_path, *(f"{i}.png" for i in range(3)))
    (tmp_path / "mine.csv").write_text('path,captions\n0.png,"[""ab"", ""a""]"\n1.png,xyz\n2.png\n')
    assert check(f"{tmp_path}/mine.csv") == 0
    out = capsys.readouterr().out
    said = "3 captions of 2 images, 2.0 characters long on average; 1 images have no caption\n"
    assert said in out
    assert "all 3 images used" in out
    tar = write_tar(tmp_path / "0.tar", {"a.jpg": tiny("a"), "a.txt": b"four", "a.cls": b"1"})
    assert check(f"{tar}") == 0
    said = "1 captions of 1 images, 4.0 characters long on average\n"
    assert said in capsys.readouterr().out
    assert check(write_images(tmp_path / "plain", "x/0.png", "y/1.png")) == 0
    assert "captions of" not in capsys.readouterr().out
