# SPDX-License-Identifier: Apache-2.0
"""`search` ranks a folder's images by texts, on a pair of towers made by hand."""

import csv
import io
from pathlib import Path

import pytest
from PIL import Image

from tests import colour_pair
from tests.unit.demo import colors
from vit_jax.cli.texts import search
from vit_jax.cli.texts.search import main
from vit_jax.errors import UserError
from vit_jax.figures.contact_sheet import Tile
from vit_jax.inference import image_text

ORDER = ("blue.jpg", "green.jpg", "red\x1b[2J.jpg")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colour_pair.save_run(tmp_path_factory.mktemp("runs") / "pair")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (place := tmp_path / "photos").mkdir()
    for name in ORDER:
        channel = colors.NAMES.index(name.partition("\x1b")[0].removesuffix(".jpg"))
        (place / name).write_bytes(colors.photo(channel))
    return place


def found(run: Path, photos: Path, *words: str) -> int:
    return main(["vit_jax search", f"--from={run}", f"--images={photos}", *words])


def test_each_text_is_ranked_by_itself(run, photos, tmp_path, capsys, monkeypatch):
    (photos / "broken.jpg").write_bytes(b"no image")
    drawn: list[tuple[list[list[Tile]], str]] = []
    render = lambda rows, title: drawn.append((rows, title)) or b"png"  # noqa: E731
    monkeypatch.setattr(search, "render", render)
    sheet, table = tmp_path / "a.png", tmp_path / "a.csv"
    words = ["a red\x1b[2J thing", "green", "--top=2", f"--sheet={sheet}", f"--csv={table}"]
    assert found(run, photos, *words) == 1  # one was broken
    out, err = capsys.readouterr()
    assert "broken.jpg" in err
    assert "1 of 4 images were skipped" in err
    assert "\x1b" not in out
    assert "probability" not in out
    assert "3 images" in out
    assert sheet.read_bytes() == b"png"
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [row["rank"] for row in rows] == ["1", "2"] * 2
    assert "red" in rows[0]["file"]
    assert rows[2]["file"].endswith("green.jpg")
    assert float(rows[0]["cosine"]) == pytest.approx(1, abs=1e-4)
    assert float(rows[1]["cosine"]) < 0
    ((rows, title),) = drawn
    assert next(tile.caption.splitlines()[0] for row in rows for tile in row) == "1.1: 1.000"
    captions = "".join(tile.caption for row in rows for tile in row)
    assert "\x1b" not in captions + title
    assert title.splitlines()[1] == "2. green"
    assert rows[0][0].image[0, 0].argmax() == 0
    assert rows[1][0].image[0, 0].argmax() == 1


def test_a_model_with_a_bias_tells_how_likely_a_pair_is(photos, tmp_path, capsys):
    run = colour_pair.save_run(tmp_path / "run", sigmoid=True)
    assert found(run, photos, "blue", f"--sheet={tmp_path / 'a.png'}") == 0
    lines = [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    assert ["rank", "cosine", "probability"] in lines
    assert ["1", "1.0000", "88.08%"] in lines
    assert ["2", "-0.2512", "0.00%"] in lines
    with Image.open(tmp_path / "a.png") as sheet:
        assert sheet.width > 3 * 160


def test_what_is_wrong_is_one_line(run, photos, tmp_path, capsys, subtests):
    (empty := tmp_path / "empty").mkdir()
    no_texts = colors.save_run(tmp_path / "classes")
    (there := tmp_path / "there.csv").touch()
    file = [f"--from=npz:{tmp_path / 'x.npz'}", "--model=siglip_b16", f"--images={photos}", "red"]
    cases = {
        "own words": (
            [f"--from={run}", f"--images={photos}", "red", "--tokenizer=clip"],
            "its own",
        ),
        "no words": (file, "name it by --tokenizer=REF: clip, hub:USER/NAME"),
        "bare": (
            [file[0], "--model=vit_b16", *file[2:]],
            "name the pair by --model=PAIR",
        ),
        "no text": ([f"--from={run}", f"--images={photos}"], "what to look for?"),
        "blank": ([f"--from={run}", f"--images={photos}", " "], "an empty text finds nothing"),
        "no folder": ([f"--from={run}", "red"], "where to look? add --images=DIR"),
        "no images": ([f"--from={run}", f"--images={empty}", "red"], "no images there"),
        "no tower": ([f"--from={no_texts}", f"--images={photos}", "red"], "and knows no texts"),
        "no PNG": ([f"--from={run}", f"--images={photos}", "red", "--sheet=a.jpg"], "end in .png"),
        "there": ([f"--from={run}", f"--images={photos}", "red", f"--csv={there}"], "is there"),
    }
    for name, (words, message) in cases.items():
        with subtests.test(name):
            assert main(["vit_jax search", *words]) == 2
            err = capsys.readouterr().err
            assert message in err
            assert err.count("error") == 1
    for path in photos.iterdir():
        path.write_bytes(b"no image")
    assert found(run, photos, "red") == 2
    assert "none of 3 images could be read" in capsys.readouterr().err


def test_a_text_of_blanks_is_refused():
    image_text.check_texts(["a"])
    with pytest.raises(UserError, match="an empty word"):
        image_text.check_texts(["a", "\t"], "word")
