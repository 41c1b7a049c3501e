# SPDX-License-Identifier: Apache-2.0
"""A run on drawings and turned photographs: evaluation and predictions see the same of all."""

import contextlib
import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests.awkward import encode
from vit_jax import data, models
from vit_jax.checkpoints.config import CheckpointConfig
from vit_jax.config.tree import Config
from vit_jax.data import Crop, TransformConfig
from vit_jax.devices import sharding
from vit_jax.evals import ClassifyEval
from vit_jax.inference import evaluate
from vit_jax.inference.views import read_view

SIDE = 8
WHOLE = TransformConfig(crop=Crop.RESIZE)


def draw(folder: Path) -> None:
    """Write drawings on a transparent ground, black beneath it, and photographs that lie."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 6)):
        for name in ("drawing", "photo"):
            place = folder / split / name
            place.mkdir(parents=True)
            for i in range(count):
                if name == "drawing":
                    layers = np.zeros((20, 20, 4), np.uint8)  # strokes are black, as is the rest
                    layers[i + 2 : i + 6, 3:17, 3] = 255
                    (place / f"{i}.png").write_bytes(encode(layers, "PNG"))
                    continue
                exif = Image.Exif()
                exif[0x0112] = 6
                pixels = rng.integers(0, 99, (16, 24, 3), np.uint8)
                pixels[:8] += 150  # the sky, which lies to the left
                (place / f"{i}.jpg").write_bytes(encode(pixels, "JPEG", exif=exif))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("one")
    draw(place / "images")
    fields = {"patch": (4, 4), "image_size": (SIDE, SIDE), "dim": 8, "mlp_dim": 16}
    model = models.variant("vit_mu16", channels=3, num_classes=2, **fields)
    cfg = Config(model=model, duration="8 steps")
    cfg.data = data.DataConfig(name=f"folder:{place / 'images'}", batch_size=8, transform=WHOLE)
    cfg.evals = {"val": ClassifyEval(split="val", transform=WHOLE)}
    cfg.checkpoint = CheckpointConfig(keep=1)
    vit_jax.fit(cfg, place / "run")
    return place


@pytest.mark.parametrize("old", [False, True])
def test_a_run_evaluates_and_predicts_by_its_own_rule(place: Path, old: bool) -> None:
    """That of a run from before there were rules is the old one, for all that is done with it."""
    trained = vit_jax.load(place / "run").trained
    assert trained.reading == data.AS_SHOWN
    if old:
        trained = dataclasses.replace(trained, reading=data.Reading(data.Background.DROP, False))
    model = vit_jax.Model(trained)
    target = evaluate.open_target(trained)
    mesh = sharding.make_mesh(sharding.MeshConfig())
    measuring = evaluate.Measuring(trained, target, mesh)
    with contextlib.closing(measuring.evaluation.batches(16)) as stream:
        batch = next(stream)
    files = [place / "images" / target.source.example_id(i) for i in range(len(target.source))]
    for i, file in enumerate(files):
        seen = batch["image"][i]
        for one in (str(file), file, file.read_bytes(), io.BytesIO(file.read_bytes())):
            np.testing.assert_array_equal(model.preprocess(one), seen)
        np.testing.assert_array_equal(measuring.view(i), seen)
        opened = read_view(trained, Image.open(file))  # a JPEG by Pillow's own libjpeg
        np.testing.assert_allclose(opened, seen, atol=1 if file.suffix == ".jpg" else 0)
        if file.suffix == ".png":
            assert (seen.max() == 0) == old, "what is clear is black to the old rule"
        else:
            left, right = seen[:, :4].mean(), seen[:, 4:].mean()
            assert (abs(left - right) > 50) != old, "upright, the sky is to one side"
    scores = measuring.evaluation.scores(measuring.predict, measuring.variables)
    told = [each[0] for each in model.predict([str(file) for file in files])]
    right = [each.name == file.parent.name for each, file in zip(told, files, strict=True)]
    assert np.mean(right) == scores.summary()["top1"]
    logits = np.asarray(model(batch["image"][: len(files)]))
    assert [each.class_id for each in told] == logits.argmax(-1).tolist()


def test_the_run_records_its_rule(place: Path) -> None:
    saved = json.loads((place / "run" / "config.json").read_text())
    assert (saved["data"]["background"], saved["data"]["upright"]) == ("white", True)
