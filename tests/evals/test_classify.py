# SPDX-License-Identifier: Apache-2.0
"""Every example counts once, with known answers, whatever the batch size and the devices."""

import math
import shutil

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import data, sharding
from vit_jax.errors import UserError
from vit_jax.evals import Classify, ClassifyEval, Context, create, open_splits
from vit_jax.evals.passes import keep_passes
from vit_jax.losses import Loss

NUM_EXAMPLES, NUM_CLASSES = 37, 7


def lookup(variables, batch):
    """Predict example i's logits from a table: pixel (0, 0) of its image holds i."""
    return variables["table"][batch["image"][:, 0, 0, 0]]


LOOKUP = {"logits": lookup}


@pytest.fixture
def table():
    return np.random.default_rng(0).normal(0, 2, (NUM_EXAMPLES, NUM_CLASSES)).astype(np.float32)


@pytest.fixture
def labels():
    return np.random.default_rng(1).integers(0, NUM_CLASSES, NUM_EXAMPLES).astype(np.int32)


def mesh_of(num_devices):
    shape = sharding.MeshConfig(data=-1, fsdp=2 if num_devices > 1 else 1)
    return sharding.make_mesh(shape, jax.devices()[:num_devices])


def batches(labels, batch_size):
    """Yield full batches; the last one's padding holds an image and a label that would count."""
    for start in range(0, len(labels), batch_size):
        index = np.arange(start, start + batch_size)
        mask = (index < len(labels)).astype(np.float32)
        index = np.minimum(index, len(labels) - 1)
        image = np.zeros((batch_size, 2, 2, 3), np.uint8)
        image[:, 0, 0, 0] = index
        yield {"image": image, "label": labels[index], "index": index, "mask": mask}


def evaluator(labels, batch_size, num_devices, **kwargs):
    return Classify(
        batches=lambda size: batches(labels, size),
        batch_size=batch_size,
        mesh=mesh_of(num_devices),
        class_names=[f"c{i}" for i in range(NUM_CLASSES)],
        **kwargs,
    )


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


def test_softmax_of_multi_hot_sums_over_labels(table):
    labels = np.zeros((NUM_EXAMPLES, NUM_CLASSES), np.uint8)
    labels[:, :2] = 1
    logits = table.astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    metrics = evaluator(labels, 8, 1).run(LOOKUP, {"table": table})
    assert metrics["loss"] == pytest.approx(-log_p[:, :2].sum() / NUM_EXAMPLES, rel=1e-6)


def test_sigmoid_of_class_ids(table, labels):
    hot = np.eye(NUM_CLASSES, dtype=np.uint8)[labels]
    by_id = evaluator(labels, 8, 1, loss=Loss.SIGMOID).run(LOOKUP, {"table": table})
    by_row = evaluator(hot, 8, 1, loss=Loss.SIGMOID).run(LOOKUP, {"table": table})
    assert by_id == by_row


def test_fewer_than_five_classes(labels):
    table = np.tile(np.float32([3, 2, 1]), (NUM_EXAMPLES, 1))
    metrics = evaluator(labels % 3, 8, 1).run(LOOKUP, {"table": table})
    assert metrics["top5"] == 1
    assert metrics["top1"] == (labels % 3 == 0).sum() / NUM_EXAMPLES


def test_bitwise_repeatable(table, labels):
    runs = [evaluator(labels, 5, 8).run(LOOKUP, {"table": table}) for _ in range(2)]
    assert runs[0] == runs[1]


def test_compiles_once_per_predict_function(table, labels):
    traces = []

    def predict(variables, batch):
        traces.append(batch["image"].shape)
        return lookup(variables, batch)

    evaluation = evaluator(labels, 3, 8)
    evaluation.run({"logits": predict}, {"table": table})
    evaluation.run({"logits": predict}, {"table": table + 1})
    assert traces == [(8, 2, 2, 3)]  # 3 does not divide over 8 devices, 8 does


def test_results_are_fetched_late_but_not_hoarded(table, labels, monkeypatch):
    """The loop never has more than a few batches in flight, and never waits for the newest."""
    events = []
    fetch = Classify._fetch

    def spy(self, result):
        events.append("fetch")
        return fetch(self, result)

    def stream(size):
        for batch in batches(labels, size):
            events.append("batch")
            yield batch

    monkeypatch.setattr(Classify, "_fetch", spy)
    Classify(batches=stream, batch_size=4, mesh=mesh_of(1), class_names=[]).run(
        LOOKUP, {"table": table}
    )
    assert events[:6] == ["batch"] * 4 + ["fetch", "batch"]
    assert events.count("fetch") == events.count("batch") == 10


@pytest.mark.parametrize("bad", [-1, NUM_CLASSES])
def test_refuses_labels_without_an_output(table, labels, bad):
    labels[5] = bad
    with pytest.raises(UserError, match="no output"):
        evaluator(labels, 8, 1, name="test").run(LOOKUP, {"table": table})


def test_ignores_labels_of_padding(table, labels):
    def stream(size):
        for batch in batches(labels, size):
            batch["label"] = np.where(batch["mask"] > 0, batch["label"], -1).astype(np.int32)
            yield batch

    evaluation = Classify(batches=stream, batch_size=8, mesh=mesh_of(8), class_names=[])
    plain = evaluator(labels, 8, 8).run(LOOKUP, {"table": table})
    assert evaluation.run(LOOKUP, {"table": table}) == plain


def test_closes_the_stream_when_something_fails(table, labels):
    streams = []  # held, so that nothing but close() ends them

    def stream(size):
        streams.append(batches(labels, size))
        return streams[-1]

    labels[0] = -1
    evaluation = Classify(batches=stream, batch_size=1, mesh=mesh_of(1), class_names=[])
    with pytest.raises(UserError):
        evaluation.run(LOOKUP, {"table": table})
    assert streams[0].gi_frame is None  # closed before its end


def test_refuses_multi_hot_of_another_width(table):
    with pytest.raises(UserError, match=r"model\.num_classes"):
        evaluator(np.ones((3, 4), np.uint8), 8, 1).run(LOOKUP, {"table": table})


def test_refuses_an_empty_split(table):
    with pytest.raises(UserError, match="no examples"):
        evaluator(np.zeros(0, np.int32), 8, 1).run(LOOKUP, {"table": table})


def test_loss_is_summed_in_double_precision(labels):
    """A float32 running sum of these losses would lose the small ones."""
    table = np.zeros((NUM_EXAMPLES, NUM_CLASSES), np.float32)
    table[0, labels[0]] = -1e8
    metrics = evaluator(labels, 1, 1).run(LOOKUP, {"table": table})
    small = float(jnp.float32(math.log(NUM_CLASSES)))
    wanted = (1e8 + (NUM_EXAMPLES - 1) * small) / NUM_EXAMPLES
    assert metrics["loss"] == pytest.approx(wanted, rel=1e-11)


def test_report_covers_outputs_beyond_the_splits_classes(tmp_path, labels):
    table = np.zeros((NUM_EXAMPLES, 12), np.float32)
    table[:, 11] = 1
    evaluator(labels, 8, 1).run(LOOKUP, {"table": table}, report_dir=tmp_path / "val")
    lines = (tmp_path / "val" / "per_class.csv").read_text().splitlines()
    assert lines[1].split(",")[0] == "c0"
    assert lines[1].split(",")[-2] == "class 11"
    assert len(lines) == 1 + 12


def test_no_report_of_several_labels(tmp_path, table, capsys):
    labels = np.ones((NUM_EXAMPLES, NUM_CLASSES), np.uint8)
    evaluator(labels, 8, 1, name="val").run(LOOKUP, {"table": table}, report_dir=tmp_path / "r")
    assert "several labels" in capsys.readouterr().out
    assert not (tmp_path / "r").exists()


def context(cfg, data_cfg, mesh):
    sources, size = open_splits(cfg, data_cfg), {"image_size": (4, 4), "channels": 3}
    return Context(data=data_cfg, sources=sources, mesh=mesh, **size)


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


def test_a_split_too_large_for_memory_is_read_anew(tmp_path, monkeypatch):
    (tmp_path / "val" / "dog").mkdir(parents=True)
    cv2.imwrite(str(tmp_path / "val" / "dog" / "0.png"), np.zeros((6, 6, 3), np.uint8))
    monkeypatch.setattr(data, "MAX_CACHED_BYTES", 4 * 4 * 3 - 1)
    cfg = ClassifyEval(split="val", transform=data.TransformConfig(crop=data.Crop.RESIZE))
    data_cfg = data.DataConfig(name=f"folder:{tmp_path}", batch_size=1)
    evaluation = create(cfg, context(cfg, data_cfg, mesh_of(1)))

    def predict(variables, batch):
        return jax.nn.one_hot(batch["image"][:, 0, 0, 0], 1)

    evaluation.run({"logits": predict}, {})
    shutil.rmtree(tmp_path / "val")
    with pytest.raises(UserError, match="not a readable image"):
        evaluation.run({"logits": predict}, {})


class Shared(np.ndarray):
    """Like the arrays of Grain's workers, each of which holds an open file."""


def test_a_pass_that_was_left_is_not_kept(labels):
    starts = []

    def start(size):
        starts.append(size)
        for batch in batches(labels, size):
            yield {key: value.view(Shared) for key, value in batch.items()}

    passes = keep_passes(start)
    left = passes(8)
    next(iter(left))
    left.close()
    first, second = list(passes(8)), list(passes(8))
    assert starts == [8, 8]
    assert len(first) == len(second) == 5
    for one, two in zip(first, second, strict=True):
        assert all(type(value) is np.ndarray for value in two.values())
        jax.tree.map(np.testing.assert_array_equal, one, two)
    assert len(list(passes(16))) == 3
