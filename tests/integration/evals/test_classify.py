# SPDX-License-Identifier: Apache-2.0
"""Every example counts once, with known answers, whatever the batch size and the devices."""

import shutil

import cv2
import jax
import numpy as np
import pytest

from tests.unit.evals.test_classify import (
    LOOKUP,
    NUM_CLASSES,
    NUM_EXAMPLES,
    context,
    evaluator,
    lookup,
    mesh_of,
)
from vit_jax import data
from vit_jax.evals import ClassifyEval, create
from vit_jax.models.losses import Loss


@pytest.fixture
def table():
    return np.random.default_rng(0).normal(0, 2, (NUM_EXAMPLES, NUM_CLASSES)).astype(np.float32)


@pytest.fixture
def labels():
    return np.random.default_rng(1).integers(0, NUM_CLASSES, NUM_EXAMPLES).astype(np.int32)


@pytest.mark.parametrize("num_devices", [1, 8])
@pytest.mark.parametrize("batch_size", [1, 3, 8, 64])
def test_known_answers(table, labels, batch_size, num_devices):
    logits = table.astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    order = np.argsort(-logits, axis=1)
    metrics = evaluator(labels, batch_size, num_devices).run(LOOKUP, {"table": table})
    assert metrics["num_examples"] == NUM_EXAMPLES
    assert metrics["top1"] == sum(order[i, 0] == y for i, y in enumerate(labels)) / NUM_EXAMPLES
    assert metrics["top5"] == sum(y in order[i, :5] for i, y in enumerate(labels)) / NUM_EXAMPLES
    loss = -sum(log_p[i, y] for i, y in enumerate(labels)) / NUM_EXAMPLES
    assert metrics["loss"] == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("num_devices", [1, 8])
def test_multi_hot_and_sigmoid(table, num_devices):
    labels = (np.random.default_rng(2).random((NUM_EXAMPLES, NUM_CLASSES)) < 0.3).astype(np.uint8)
    order = np.argsort(-table, axis=1)
    p = 1 / (1 + np.exp(-table.astype(np.float64)))
    metrics = evaluator(labels, 8, num_devices, loss=Loss.SIGMOID).run(LOOKUP, {"table": table})
    rows = [i for i in range(NUM_EXAMPLES) if labels[i].any()]
    assert 0 < NUM_EXAMPLES - len(rows) == NUM_EXAMPLES - metrics["num_examples"]
    assert metrics["top1"] == sum(labels[i, order[i, 0]] for i in rows) / len(rows)
    assert metrics["top5"] == sum(labels[i, order[i, :5]].any() for i in rows) / len(rows)
    binary = -np.where(labels, np.log(p), np.log(1 - p))[rows].sum() / len(rows)
    assert metrics["loss"] == pytest.approx(binary, rel=1e-6)
    mean = evaluator(labels, 8, num_devices, loss=Loss.BCE).run(LOOKUP, {"table": table})
    assert mean["loss"] == pytest.approx(binary / NUM_CLASSES, rel=1e-6)


@pytest.mark.parametrize("loss", Loss)
def test_confidence_is_of_the_first_guess(table, labels, loss):
    scores = evaluator(labels, 8, 8, loss=loss).scores(lookup, {"table": table})
    odds = np.exp(table.astype(np.float64))
    shares = odds / odds.sum(axis=1, keepdims=True) if loss is Loss.SOFTMAX else odds / (1 + odds)
    np.testing.assert_allclose(scores.confidence, shares.max(axis=1), rtol=1e-5)


def test_compiles_once_per_predict_function(table, labels):
    traces = []

    def predict(variables, batch):
        traces.append(batch["image"].shape)
        return lookup(variables, batch)

    evaluation = evaluator(labels, 3, 8)
    evaluation.run({"logits": predict}, {"table": table})
    evaluation.run({"logits": predict}, {"table": table + 1})
    assert traces == [(8, 2, 2, 3)]  # 3 does not divide over 8 devices, 8 does


def test_report_covers_outputs_beyond_the_splits_classes(tmp_path, labels):
    table = np.zeros((NUM_EXAMPLES, 12), np.float32)
    table[:, 11] = 1
    evaluator(labels, 8, 1).run(LOOKUP, {"table": table}, report_dir=tmp_path / "val")
    lines = (tmp_path / "val" / "per_class.csv").read_text().splitlines()
    assert lines[1].split(",")[0] == "c0"
    assert lines[1].split(",")[-2] == "class 11"
    assert len(lines) == 1 + 12


@pytest.mark.parametrize("batch_size", [0, 5, 64])
def test_real_images_from_a_folder(tmp_path, batch_size):
    """The whole path from files to metrics; an image's brightness is its class."""
    for k in range(3):
        for i in range(4):
            file = tmp_path / "val" / f"shade{k}" / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(file), np.full((6, 6, 3), 100 * k, np.uint8))
    transform = data.TransformConfig(crop=data.Crop.RESIZE)
    cfg = ClassifyEval(split="val", batch_size=batch_size, transform=transform, report=True)
    data_cfg = data.DataConfig(name=f"folder:{tmp_path}", batch_size=4)
    evaluation = create(cfg, context(cfg, data_cfg, mesh_of(8)))

    def predict(variables, batch):
        return jax.nn.one_hot(batch["image"][:, 0, 0, 0] // 100 // variables["wrong_from"], 3)

    metrics = evaluation.run({"logits": predict}, {"wrong_from": 2}, tmp_path / "report")
    # Classes 0, 1, 2 are predicted as 0, 0, 1.
    assert (metrics["num_examples"], metrics["top1"], metrics["top5"]) == (12, 1 / 3, 1)
    rows = (tmp_path / "report" / "per_class.csv").read_text().splitlines()
    assert rows[2].startswith("shade1,4,0.0000")
    assert rows[2].endswith("shade0,4")
    shutil.rmtree(tmp_path / "val")  # a small split is read and decoded once
    assert evaluation.run({"logits": predict}, {"wrong_from": 2}) == metrics
