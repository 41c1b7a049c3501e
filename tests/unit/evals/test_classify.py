# SPDX-License-Identifier: Apache-2.0
"""Every example counts once, with known answers, whatever the batch size and the devices."""

import math
import shutil

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import refused_by
from vit_jax import data
from vit_jax.devices import sharding
from vit_jax.errors import UserError
from vit_jax.evals import Classify, ClassifyEval, EvalContext, create, open_splits
from vit_jax.evals.base import EvalStream
from vit_jax.evals.classify import MeanLoss
from vit_jax.evals.passes import keep_passes
from vit_jax.models.losses import Loss

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


def test_no_report_of_several_labels(tmp_path, table, capsys):
    labels = np.ones((NUM_EXAMPLES, NUM_CLASSES), np.uint8)
    evaluator(labels, 8, 1, name="val").run(LOOKUP, {"table": table}, report_dir=tmp_path / "r")
    assert "several labels" in capsys.readouterr().out
    assert not (tmp_path / "r").exists()


def context(cfg, data_cfg, mesh):
    sources, size = open_splits(cfg, data_cfg), {"image_size": (4, 4), "channels": 3}
    return EvalContext(data=data_cfg, sources=sources, mesh=mesh, **size)


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
    with refused_by("data.stream.batches.Batches._put"):
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


class Pass(list):
    """One pass over batches in memory."""

    def close(self) -> None:
        pass


def mean_loss(*masks: list[int]) -> MeanLoss:
    values = np.arange(100, dtype=np.float32).reshape(-1, 2)
    batches = [
        {"image": values[i], "mask": np.array(mask, np.float32)} for i, mask in enumerate(masks)
    ]
    stream = EvalStream.__new__(EvalStream)  # without a source: its batches are these
    stream.batches, stream.batch_size, stream.name = lambda size: Pass(batches), 2, "val"
    return MeanLoss(stream, sharding.make_mesh(sharding.MeshConfig(data=1), jax.devices()[:1]))


def twice(variables: float, batch: dict) -> jax.Array:
    return batch["image"] * variables


def run(evaluator: MeanLoss) -> dict[str, float]:
    return evaluator.run({"loss": twice}, 2.0)


def test_padding_is_left_out_of_the_mean_loss() -> None:
    assert run(mean_loss([1, 1], [1, 0])) == {"loss": 2 * (0 + 1 + 2) / 3, "num_examples": 3.0}


def test_no_mean_loss_of_an_empty_split() -> None:
    with pytest.raises(UserError, match="val has no examples"):
        run(mean_loss([0, 0]))
