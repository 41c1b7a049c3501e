# SPDX-License-Identifier: Apache-2.0
"""`probe` from the command line: its numbers are those of the files that it writes."""

import json
import re

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image

import vit_jax
from tests.photos import write_folder
from tests.unit.cli.test_probe import CLASSES, MODEL, PHOTOS, run
from tests.unit.weights.runs import save
from vit_jax.__main__ import main as verb_main
from vit_jax.data import open_source
from vit_jax.evals.probes import fewshot, logistic
from vit_jax.evals.probes.features import FeatureSet


@pytest.fixture(scope="module", autouse=True)
def undrawn() -> None:
    """Draw pictures, which tests here look at."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("probe")
    write_folder(root / "photos", {"train": 12, "val": 5}, CLASSES)
    save(root / "run", MODEL, {1: None})
    return root


def test_numbers_are_those_of_the_files(place, tmp_path, capsys):
    flags = (
        "--shots=1,4",
        "--seeds=2",
        "--k=1,3",
        "--pixels",
        "--seed=7",
        f"--out={tmp_path}/r.json",
    )
    files = (f"--features={tmp_path}/f", f"--plot={tmp_path}/p.png")
    assert run(place, *PHOTOS, *flags, *files) == 0
    out = capsys.readouterr().out
    tree = json.loads((tmp_path / "r.json").read_text())
    found = {(r["of"], r["method"], r.get("shots", r.get("k"))): r for r in tree["results"]}
    methods = [("fewshot", 1), ("fewshot", 4), ("knn", 1), ("knn", 3), ("logistic", None)]
    assert list(found) == [(of, *method) for of in ("features", "pixels") for method in methods]
    assert (tree["num_train"], tree["num_test"], tree["num_features"]) == (36, 15, 16)

    load = {n: np.load(tmp_path / "f" / f"{n}.npy") for n in ("features_train", "features_test")}
    train, test = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in load.values())
    labels = [np.load(tmp_path / "f" / f"labels_{part}.npy") for part in ("train", "test")]
    nearest = labels[0][(test @ train.T).argmax(axis=1)]
    assert found["features", "knn", 1]["top1"] == np.mean(nearest == labels[1])
    sets = [
        FeatureSet(name="", features=x, labels=y, class_names=CLASSES)
        for x, y in zip(load.values(), labels, strict=True)
    ]
    (again,) = fewshot.run(*sets, shots=(4,), seeds=(7, 8))
    assert found["features", "fewshot", 4]["top1_by_seed"] == list(again.top1)
    (again,) = logistic.run(*sets, seed=7)
    assert found["features", "logistic", None]["C"] == again.settings["C"]
    assert found["features", "logistic", None]["top1"] == again.mean
    for part, split in (("train", "train"), ("test", "val")):
        source = open_source(f"folder:{place}/photos", split=split)
        names = (tmp_path / "f" / f"names_{part}.txt").read_text().splitlines()
        assert names == [source.example_id(i) for i in range(len(source))]
        np.testing.assert_array_equal(labels[part == "test"], source.labels)
    assert (tmp_path / "f" / "class_names.txt").read_text().split() == list(CLASSES)
    with Image.open(tmp_path / "p.png") as picture:
        assert picture.format == "PNG"
        assert picture.width > 500
    for result in tree["results"]:
        assert f"{result['top1']:.2%}" in out
    assert "36 images, 3 classes" in out


def test_images_without_labels(place, tmp_path, capsys):
    assert run(place, *PHOTOS, "--methods=none", "--features=HERE/of_dataset") == 0
    names = (place / "of_dataset" / "names_train.txt").read_text().splitlines()
    expected = np.load(place / "of_dataset" / "features_train.npy")
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff no more")
    files = [*names[:11], str(broken), *names[11:]]
    # Batches of 8 on as many devices; the broken one is in the second of five.
    assert run(place, *files, f"--features={tmp_path}/f", "--batch_size=8") == 1
    told = capsys.readouterr()
    assert told.err.startswith(f"skipped {broken}: ")
    assert "16 features of 36 images" in told.out
    assert (tmp_path / "f" / "names_images.txt").read_text().splitlines() == names
    np.testing.assert_allclose(
        np.load(tmp_path / "f" / "features_images.npy"), expected, atol=1e-5, rtol=1e-5
    )
    assert not (tmp_path / "f" / "labels_images.npy").exists()
    assert run(place, str(broken), f"--features={tmp_path}/none") == 2
    assert "none of 1 images could be read" in capsys.readouterr().err
    assert list((tmp_path / "none").iterdir()) == []


def test_features_of_layers(place, tmp_path, capsys):
    flags = ("--methods=none", "--layers=-1,0,1", "--norm", f"--features={tmp_path}/tokens")
    assert run(place, *PHOTOS, *flags, "--tokens") == 0
    model, load = vit_jax.load(f"{place}/run"), lambda name: np.load(tmp_path / f"{name}.npy")
    names = (tmp_path / "tokens" / "names_test.txt").read_text().splitlines()
    views = np.stack([model.preprocess(name) for name in names])
    pairs = model.intermediates(views, [0, 1], norm=True, grid=True, prefix=True)
    for number, (patches, _) in enumerate(pairs):
        found = load(f"tokens/layer{number}_test")
        assert found.shape == (15, 2, 2, 16)
        np.testing.assert_allclose(found, patches, atol=1e-5)
    # One vector an image: the class token. The last one, normalised, is what the head sees.
    assert run(place, *names[:3], "--layers=1", "--norm", f"--features={tmp_path}/files") == 0
    np.testing.assert_allclose(load("files/layer1_images"), pairs[1][1][:3, 0], atol=1e-5)
    np.testing.assert_array_equal(load("files/layer1_images"), load("files/features_images"))
    assert "layer1_images = np.load" in (tmp_path / "files" / "FEATURES.md").read_text()
    # They are probed beside the features.
    assert run(place, *PHOTOS, "--methods=knn", "--k=1", "--layers=0", f"--out={tmp_path}/r") == 2
    assert run(place, *PHOTOS, "--methods=knn", "--k=1", "--layers=0") == 0
    assert re.search(r"layer0 +knn +k 1 ", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--methods=knn,svm",), "unknown method 'svm'; valid: fewshot, knn, logistic."),
        (("--methods=knn,none",), "unknown method 'none'; did you mean"),
        (
            ("--methods=none",),
            "nothing to do: add --methods=fewshot,knn,logistic or --features=DIR",
        ),
        (
            ("--methods=knn", "--shots=3"),
            "--shots=(3,) has no effect without fewshot among the methods",
        ),
        (("--methods=fewshot", "--k=3"), "--k=(3,) has no effect without knn among the methods"),
        (
            ("--methods=none", "--features=x", "--pixels"),
            "--pixels=True has no effect without --methods",
        ),
        (("--methods=knn", "--plot=x.png"), "--plot=x.png has no effect without fewshot"),
        (("--shots=0",), "--shots=0 must be at least 1"),
        (("--shots=",), "--shots= must be whole numbers, such as 1,5,10,25"),
        (("--l2=nan",), "--l2=nan must be finite"),
        (("--temperature=0",), "--temperature=0 must be above 0"),
        (("--k=37", "--methods=knn"), "[train] has only 36 images; choose a smaller k"),
        (("--force",), "--force=True has no effect without files to write"),
        (("--norm",), "--norm=True has no effect without --layers"),
        (("--layers=2",), "layers=(2,): the ViT has 2 layers, 0 to 1"),
        (("--layers=0", "--tokens"), "--tokens writes, and is not probed: add --methods=none"),
        (("--classes=x",), "unknown flag '--classes'"),
        (("--train_split=tain",), "unknown split of HERE/photos 'tain'; did you mean 'train'?"),
        (("--out=HERE/no/r.json",), "--out=HERE/no/r.json: HERE/no is no directory"),
        (("--out=HERE/photos",), "--out=HERE/photos must end in .json"),
        (("--out=HERE/r.csv",), "--out=HERE/r.csv must end in .json"),
        (("--plot=HERE/r.jpg",), "--plot=HERE/r.jpg must end in .png"),
        (("HERE/photos",), "images without labels cannot be probed; add --features=DIR"),
        (("HERE/photos", "--features=x"), "has no effect of image files; name images or a dataset"),
    ],
)
def test_mistakes_are_one_line(place, flags, message, capsys):
    assert run(place, *PHOTOS, *flags) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert message.replace("HERE", str(place)) in told
    assert told.count("\n") == 1


def test_what_is_not_the_runs_and_not_a_test_is_told(place, tmp_path, capsys):
    args = ("--dataset=folder:HERE/photos", "--test_split=train", "--methods=knn", "--k=1")
    assert run(place, *args, "--mean=0.25", f"--out={tmp_path}/r.json") == 0
    told = capsys.readouterr()
    warning, ended = told.err.splitlines()
    assert re.fullmatch(r"features, knn: top-1 \d+\.\d\d%", ended)
    assert warning.startswith("warning: the probes learn from ")
    assert "[train], and are tested on the same images" in warning
    assert ", step 1, with mean=(0.25,), 16 features" in told.out
    assert json.loads((tmp_path / "r.json").read_text())["changes"] == ["mean=(0.25,)"]
    assert run(place, *PHOTOS, "--methods=knn", "--k=1") == 0
    told = capsys.readouterr()
    assert "warning" not in told.err
    assert ", step 1, 16 features" in told.out


def test_titles_of_pictures_name_no_folder_of_this_machine(place, tmp_path, monkeypatch):
    titles, set_title = [], Axes.set_title

    def noting(axes, label, **settings):
        titles.append(label)
        return set_title(axes, label, **settings)

    monkeypatch.setattr(Axes, "set_title", noting)
    photos = f"--dataset=folder:{place}/photos"
    words = (*PHOTOS, "--methods=fewshot", "--shots=1", "--seeds=1", f"--plot={tmp_path}/p.png")
    assert run(place, *words) == 0
    words = ("--split=val", "--sizes=8,16", "--corruptions=contrast", "--severities=1")
    (names := tmp_path / "names.txt").write_text("\n".join(CLASSES))
    from_run = ["vit_jax", "evaluate", f"--from={place}/run", photos, f"--classes={names}"]
    assert verb_main([*from_run, *words, f"--out={tmp_path}/out"]) == 0
    assert len(titles) == 5
    assert all("photos[" in title and str(place) not in title for title in titles), titles
