# SPDX-License-Identifier: Apache-2.0
"""`zero-shot` and `retrieval` on a pair of towers made by hand, and coloured photographs."""

import csv
import json
from pathlib import Path

import pytest

from tests import colour_pair
from tests.unit.demo import colors
from vit_jax.cli.texts import retrieval, zero_shot

# The class by its name, and what the image shows: one of six is told wrong.
SHOWN = (("red", 0), ("red", 0), ("green", 1), ("green", 1), ("blue", 2), ("blue", 1))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("photos")
    with open(place / "all.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "label", "split", "captions", "same"])
        for i, (name, channel) in enumerate(SHOWN):
            (place / f"{i}.jpg").write_bytes(colors.photo(channel))
            text = json.dumps([f"it is {name}", name])
            table.writerow([f"{i}.jpg", name, "test", text, "green"])
    return place


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "pair"
    return colour_pair.save_run(place, dataset=f"csv:{photos / 'all.csv'}")


def test_classes_are_told_by_their_names(run, photos, tmp_path, capsys):
    out = tmp_path / "found.json"
    assert zero_shot.main(["vit_jax zero-shot", f"--from={run}", f"--out={out}"]) == 0
    text = capsys.readouterr().out
    assert "6 images" in text
    assert "by the names of 3 classes, 1 template\n" in text
    assert "83.33%" in text
    assert "95 % interval 43.65% to 96.99%" in text
    found = json.loads(out.read_text())
    assert found["top1"] == pytest.approx(5 / 6)
    assert found["top5"] == 1
    assert (found["num_examples"], found["step"], found["templates"]) == (6, 1234, "plain")
    words = ["--split=test", "--templates=blue blue blue blue blue blue {}"]
    assert zero_shot.main(["vit_jax zero-shot", f"--from={run}", *words]) == 0
    assert "33.33%" in capsys.readouterr().out  # the names are cut: all are the first class


def test_a_class_may_be_called_several_things(run, tmp_path, capsys):
    names = tmp_path / "names.json"
    names.write_text('{"red": ["red", "green"], "green": ["blue", "blue"], "blue": "it is green"}')
    assert zero_shot.main(["vit_jax zero-shot", f"--from={run}", f"--names={names}"]) == 0
    text = capsys.readouterr().out
    assert "by 5 names of 3 classes, 1 template\n" in text
    assert "50.00%" in text  # the reds, and the green one of the class "blue"
    names.write_text('{"red": "red"}')
    assert zero_shot.main(["vit_jax zero-shot", f"--from={run}", f"--names={names}"]) == 2
    assert "has no name of the class 'blue'" in capsys.readouterr().err


def test_words_are_told_of_images(run, photos, tmp_path, capsys):
    files = [str(photos / "0.jpg"), str(photos / "2.jpg")]
    words = ["--words=green,red", "--templates=plain"]
    assert zero_shot.main(["vit_jax zero-shot", f"--from={run}", *words, *files]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[-1] for line in lines] == ["red", "green", "green", "red"]
    assert lines[0][:2] == [files[0], "100.00%"]
    (broken := tmp_path / "b.jpg").write_bytes(b"")
    assert zero_shot.main(["vit_jax zero-shot", f"--from={run}", *words, *files, str(broken)]) == 1


def test_captions_find_their_images(run, photos, tmp_path, capsys):
    out = tmp_path / "found.json"
    words = [f"--from={run}", "--k=1,2", f"--out={out}"]
    assert retrieval.main(["vit_jax retrieval", *words]) == 0
    found = json.loads(out.read_text())
    # The red and the green ones find a text of their own or its equal, image 5 finds green ones.
    assert found["image_to_text_r1"] == pytest.approx(5 * 0.5 / 6)
    # Of three equal green ones each is among the first two as often as not; so are those that come
    # after the one blue image.
    assert found["text_to_image_r2"] == pytest.approx((4 + 4 * 2 / 3 + 2 + 2 / 3) / 12)
    text = capsys.readouterr().out
    assert "images find a text" in text
    assert "6 images" in text
    assert f"{found['text_to_image_r2']:.2%}" in text
    # Captions of another column of the run's own table, in which nothing is told apart.
    words = [f"--from={run}", f"--dataset=csv:{photos / 'all.csv'}?captions=same"]
    assert retrieval.main(["vit_jax retrieval", *words, f"--out={out}", "--force"]) == 0
    assert json.loads(out.read_text())["image_to_text_r1"] == pytest.approx(1 / 6)


def test_what_is_wrong_is_one_line(run, photos, tmp_path, capsys, subtests):
    no_texts = colors.save_run(tmp_path / "classes")
    cases = {
        "no place": (["--templates=a photo"], "'a photo' must have {} once"),
        "words alone": (["--words=a,b"], "name both"),
        "blank word": (["--words=a, ", str(photos / "0.jpg")], "an empty word"),
        "images alone": ([str(photos / "0.jpg")], "--words are of images"),
        "a split too": (["--words=a", "--split=test", str(photos / "0.jpg")], "of a split"),
        "no split": (["--split=val"], "--split"),
        "suffix": (["--out=a.csv"], "must end in .json"),
    }
    for name, (words, message) in cases.items():
        with subtests.test(name):
            assert zero_shot.main(["vit_jax zero-shot", f"--from={run}", *words]) == 2
            err = capsys.readouterr().err
            assert message in err
            assert err.count("error") == 1
    csv_file = photos / "all.csv"
    words = [f"--from={no_texts}", f"--dataset=csv:{csv_file}"]
    assert zero_shot.main(["vit_jax zero-shot", *words]) == 2
    assert "knows no texts" in capsys.readouterr().err
    assert retrieval.main(["vit_jax retrieval", f"--from={run}", "--dataset=digits"]) == 2
    assert "digits[test] has no captions" in capsys.readouterr().err
