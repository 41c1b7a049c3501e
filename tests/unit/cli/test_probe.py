# SPDX-License-Identifier: Apache-2.0
"""`probe` from the command line: its numbers are those of the files that it writes."""

import dataclasses
import os

import pytest

from tests.photos import write_folder
from tests.unit.models.tiny import TINY
from tests.unit.weights.runs import save
from vit_jax import data
from vit_jax.__main__ import main as verb_main
from vit_jax.cli.parsing.probe_options import Probe
from vit_jax.data import open_source

MODEL = dataclasses.replace(TINY["vit"], image_size=(8, 8), channels=3, patch=(4, 4))
CLASSES = ("china", "flower", "sky")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("probe")
    write_folder(root / "photos", {"train": 12, "val": 5}, CLASSES)
    save(root / "run", MODEL, {1: None})
    return root


def run(place, *args):
    words = [word.replace("HERE", str(place)) for word in args]
    return verb_main(["vit_jax", "probe", f"--from={place}/run", *words])


PHOTOS = ("--dataset=folder:HERE/photos", "--test_split=val")


def test_several_labels_are_refused_before_any_image_is_read(place, monkeypatch, capsys):
    def several(*args, **kwargs):
        source = open_source(*args, **kwargs)
        source.multi_label = True
        return source

    monkeypatch.setattr(data, "open_source", several)
    assert run(place, *PHOTOS) == 2
    told = capsys.readouterr()
    assert "photos[train] has several labels per image" in told.err
    assert "--methods=none and --features=DIR" in told.err
    assert told.out == ""


def test_a_folder_that_may_not_be_written_to_is_told_before_the_work(place, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may always
    assert run(place, *PHOTOS, f"--out={place}/r.json") == 2
    assert f"{place} may not be written to" in capsys.readouterr().err


def test_a_published_file_needs_a_dataset(capsys):
    assert verb_main(["vit_jax", "probe", "--from=timm:w.safetensors", "--model=vit_ti16"]) == 2
    assert "names no dataset to probe on; add --dataset=NAME" in capsys.readouterr().err


def test_help_names_every_flag(capsys):
    assert verb_main(["vit_jax", "probe", "--help"]) == 0
    text = capsys.readouterr().out
    names = [field.name.removesuffix("_") for field in dataclasses.fields(Probe)]
    assert len(names) > 20
    assert [n for n in names if n != "images" and f"--{n}" not in text] == []


def test_a_split_that_is_not_there_names_its_flag(place, capsys):
    assert run(place, "--dataset=folder:HERE/photos") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("'test'; valid: train, val; choose another by --test_split=SPLIT")
    assert run(place, *PHOTOS, "--train_split=trian") == 2
    assert "did you mean 'train'?; choose another by --train_split=SPLIT" in capsys.readouterr().err
    assert (
        verb_main(
            ["vit_jax", "evaluate", f"--from={place}/run", f"--dataset=folder:{place}/photos"]
        )
        == 2
    )
    assert "'test'; valid: train, val; choose another by --split=SPLIT" in capsys.readouterr().err
