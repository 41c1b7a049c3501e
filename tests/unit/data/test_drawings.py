# SPDX-License-Identifier: Apache-2.0
"""The drawings of `benchmarks.emoji`: which there are, their splits, tables and nearest pixels."""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from benchmarks import drawings, emoji


def pack(*names: str, **aliases: str) -> dict:
    """Return a set of drawings as iconify has them."""
    icons = {name: {"body": f"<path id='{name}'/>"} for name in names}
    found = {name: {"parent": parent} for name, parent in aliases.items()}
    return {"width": 36, "height": 32, "icons": icons, "aliases": found}


def entry(code: str, label: str, *tags: str, group: int | None = 0) -> dict:
    """Return an emoji as emojibase has it."""
    place = {} if group is None else {"group": group}
    return {"hexcode": code, "label": label, "tags": list(tags), **place}


def test_svg_is_a_whole_file_and_follows_names_but_not_turned_ones() -> None:
    icons = pack("cat", kitty="cat", puss="kitty")
    icons["aliases"]["mirrored"] = {"parent": "cat", "hFlip": True}
    text = drawings.svg(icons, "puss")
    assert text.startswith("<svg ")
    assert text.endswith(f"{icons['icons']['cat']['body']}</svg>")
    assert 'width="36" height="32" viewBox="0 0 36 32"' in text
    assert drawings.svg(icons, "mirrored") == drawings.svg(icons, "dog") == ""


def test_concepts_are_what_all_four_drew_of_groups_that_count() -> None:
    entries = [
        entry("1F431", "cat face", "cat", "cat face"),
        entry("2764-FE0F", "red heart", "love"),
        entry("1F436", "dog face"),  # one artist alone has it
        entry("1F1E6", "flag", group=9),
        entry("1F1E7", "letter", group=None),
    ]
    every = pack("cat-face", "red-heart", "flag", "letter")
    icons = dict.fromkeys(drawings.ARTISTS, every)
    icons["noto"] = pack("cat-face", "red-heart", "flag", "letter", "dog-face")
    icons["noto-v1"] = pack("cat-face")
    codes = {"1f431": "cat-face", "2764": "red-heart", "1f1e6": "flag", "1f1e7": "letter"}
    codes["1f436"] = "dog-face"
    by_code = dict.fromkeys(drawings.ARTISTS, codes) | {"noto-v1": {}}
    cat, heart = drawings.concepts(entries, [9], icons, by_code)
    assert (cat.code, cat.name, cat.keywords) == ("1f431", "cat face", ("cat",))
    outlined = {"noto-outlined", "fluent-outlined", "twemoji-outlined"}
    assert set(cat.drawings) == {*drawings.ARTISTS, "noto-v1"} | outlined
    assert (heart.code, set(heart.drawings)) == ("2764-fe0f", set(drawings.ARTISTS) | outlined)
    head, line = cat.drawings["noto-outlined"].split("<g ", 1)
    assert cat.drawings["noto"].startswith(head)
    assert line.endswith(cat.drawings["noto"].removeprefix(head).replace("</svg>", "</g></svg>"))
    assert 'stroke="#000"' in line


def test_a_set_without_code_points_is_found_by_names_with_hyphens_or_without() -> None:
    icons = dict.fromkeys(drawings.ARTISTS, pack("alarm-clock")) | {"fxemoji": pack("alarmclock")}
    (clock,) = drawings.concepts([entry("23F0", "alarm clock")], [], icons, {})
    outlined = {"noto-outlined", "fluent-outlined", "twemoji-outlined"}
    assert set(clock.drawings) == set(icons) | outlined


def test_who_does_it_makes_no_other_family() -> None:
    same = ["man detective", "Woman detective", "detective", "person: detective"]
    assert {drawings.family(name) for name in same} == {"detective"}
    assert drawings.family("one o'clock") != drawings.family("one-thirty")
    assert drawings.family("man") == "man"


def test_splits_by_artist_and_concept() -> None:
    seen, unseen = "grinning face", "robot"  # by the hash of their names
    expected = {
        ("noto", seen): "train",
        ("noto", unseen): "val_concept",
        ("twemoji", seen): "test_artist",
        ("twemoji", unseen): "test_both",
        ("emojione", seen): "train",
        ("emojione", unseen): "",
        ("noto-outlined", seen): "train",
        ("noto-outlined", unseen): "",
        ("twemoji-outlined", seen): "",
    }
    found = {(a, name): drawings.split_of(a, name, "twemoji") for a, name in expected}
    assert found == expected
    assert drawings.split_of("noto-v1", seen, "twemoji") == "train"
    assert drawings.split_of("noto-v1", seen, "noto") == ""  # of the same maker


def test_a_table_comes_back_and_half_of_half_is_the_name(tmp_path: Path) -> None:
    everyone = dict.fromkeys(drawings.ARTISTS, "<svg/>")
    found = [
        drawings.Concept("1f431", 'cat, "face"', ("chat", "mouse"), everyone),
        drawings.Concept("2764", "heart", (), everyone),
    ]
    table = drawings.rows(found, "openmoji")
    drawings.write_table(table, tmp_path / "captions.csv")
    assert drawings.read_table(tmp_path / "captions.csv") == table
    cat, heart = table[0], table[-1]
    assert cat["path"] == "noto/1f431.png"
    assert json.loads(cat["captions"]) == ['cat, "face"', "chat", "mouse"]
    assert json.loads(cat["half"]).count(cat["caption"]) == 2
    assert json.loads(heart["half"]) == json.loads(heart["captions"]) == ["heart"]
    held = {row["artist"] for row in table if row["split"].startswith("test")}
    assert held == {"openmoji"}
    sets = [*drawings.ARTISTS, "emojione", "noto-outlined"]
    joining = {which: [x for x in sets if drawings.joins(x, which)] for which in drawings.SETS}
    assert joining == {"all": sets, "drawn": sets[:-1], "three": sets[:-2]}


def paint(path: Path, colour: str, shape: str, shift: int = 0) -> None:
    """Draw a shape on white."""
    image = Image.new("RGB", (drawings.SIDE, drawings.SIDE), "white")
    box = (8 + shift, 8, 40 + shift, 56)
    getattr(ImageDraw.Draw(image), shape)(box, fill=colour)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def test_a_drawing_fills_its_square_whatever_margins_it_had() -> None:
    paper = Image.new("RGB", (128, 128), "white")
    ImageDraw.Draw(paper).rectangle((10, 20, 49, 39), fill="navy")  # twice as wide as high
    stream = io.BytesIO()
    paper.save(stream, "PNG")
    pixels = np.asarray(Image.open(io.BytesIO(drawings.framed(stream.getvalue(), 32))))
    assert pixels.shape == (32, 32, 3)
    inside = (pixels[..., 0] < 64).nonzero()
    assert [(x.min(), x.max()) for x in inside] == [(8, 23), (0, 31)]
    blank = io.BytesIO()
    Image.new("RGB", (128, 128), "white").save(blank, "PNG")
    assert (np.asarray(Image.open(io.BytesIO(drawings.framed(blank.getvalue())))) == 255).all()


def test_nearest_pixels_find_the_like(tmp_path: Path) -> None:
    paint(tmp_path / "noto/a.png", "red", "rectangle")
    paint(tmp_path / "noto/b.png", "navy", "ellipse", 16)
    paint(tmp_path / "twemoji/a.png", "orangered", "rectangle", 2)
    paths = ["noto/a.png", "noto/b.png", "twemoji/a.png"]
    vectors = drawings.pixel_vectors(tmp_path / path for path in paths)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    assert vectors.shape == (3, 3 * 8 * 8)
    names = (["red", "blue"], ["red"])
    assert drawings.nearest_top1(vectors[2:], names[1], vectors[:2], names[0]) == 1
    assert drawings.nearest_top1(vectors[2:], ["blue"], vectors[:2], names[0]) == 0
    cells = dict.fromkeys(drawings.COLUMNS, "x")
    table = [
        {**cells, "path": path, "label": label, "split": split}
        for path, label, split in zip(
            paths, ("red", "blue", "red"), ("train", "train", "test_artist"), strict=True
        )
    ]
    drawings.write_table(table, tmp_path / "captions.csv")
    assert drawings.pixels_top1(tmp_path / "captions.csv") == 1


def test_without_npm_or_cairosvg_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"^error: the drawings are packages of npm; install npm"):
        drawings.fetch(tmp_path, drawings.ARTISTS)
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    with pytest.raises(SystemExit, match=r"^error: drawing needs `pip install cairosvg`"):
        drawings.rasterise([], tmp_path)


def test_commands_train_on_one_table_and_test_on_the_artist_left_out(tmp_path: Path) -> None:
    found = emoji.commands("openmoji", 1, tmp_path)
    assert [words[0] for words, _ in found] == [
        "train-tokenizer",
        "train",
        *("zero-shot", "zero-shot", "retrieval") * 3,
    ]
    tables = drawings.tables(tmp_path / "drawings", "openmoji")
    for words, out in found:
        split = out.name.partition("-")[0]
        used = tables.splits.get(split, tables.captions["all"])
        assert any(f"csv:{used}" in x for x in words), words
        assert any("names.json" in x for x in words) == out.name.endswith("-called.json")
    assert "--config.seed=1" in found[1][0]
    three = [word for words, _ in emoji.commands("three", 0, tmp_path) for word in words]
    assert sum("-three.csv" in word for word in three) == 2
    trials = [name for name, arm in emoji.ARMS.items() if arm.trial]
    for name in trials:  # these never see the artist held out
        words = [word for command, _ in emoji.commands(name, 0, tmp_path) for word in command]
        assert not any("--split=test" in word for word in words)
