# SPDX-License-Identifier: Apache-2.0
"""Metrics of several labels, equal to scikit-learn's on the golden scores, with ties."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.evals import multi_label
from vit_jax.evals.classify import Classify, Scores
from vit_jax.evals.config import ThresholdRule
from vit_jax.evals.several import MultiLabel
from vit_jax.models.losses import Loss

GOLDEN = dict(np.load(Path(__file__).parents[2] / "golden/next3/metrics.npz"))
SCORES, TRUTH = GOLDEN["in_scores"], GOLDEN["in_truth"]
EXACT = {"rtol": 1e-9, "atol": 0}


def test_golden_averages() -> None:
    each = multi_label.average_precisions(SCORES, TRUTH)
    np.testing.assert_allclose(np.nan_to_num(each, nan=-1), GOLDEN["out_ap"], **EXACT)
    found = multi_label.ranking(SCORES, TRUTH)
    np.testing.assert_allclose(found["map"], GOLDEN["out_map"], **EXACT)
    np.testing.assert_allclose(found["micro_map"], GOLDEN["out_micro_ap"], **EXACT)
    area = multi_label.auroc(SCORES[:, 0], TRUTH[:, 0] > 0)
    np.testing.assert_allclose(area, GOLDEN["out_auroc0"], **EXACT)


def test_golden_precision_and_recall() -> None:
    found = multi_label.at_threshold(SCORES > 0, TRUTH)
    pairs = {
        ("op", "or"): "out_overall_precision_recall",
        ("cp", "cr"): "out_class_precision_recall",
    }
    for names, key in pairs.items():
        np.testing.assert_allclose([found[name] for name in names], GOLDEN[key], **EXACT)
    assert found["of1"] == pytest.approx(2 / (1 / found["op"] + 1 / found["or"]))
    assert found["cf1"] == pytest.approx(2 / (1 / found["cp"] + 1 / found["cr"]))


def test_what_is_not_known_is_left_out() -> None:
    """A label of -1 counts as if the class had not been asked for of that image."""
    labels, kept = TRUTH.copy(), np.arange(7, 30)
    labels[:7, 1] = -1
    scores = 1 / (1 + np.exp(-SCORES))
    ap = multi_label.average_precisions(scores, labels)[1]
    assert ap == multi_label.average_precision(scores[kept, 1], TRUTH[kept, 1] > 0)
    hits, seen, there = (x[1] for x in multi_label.counts(scores > 0.5, labels))
    assert there == TRUTH[kept, 1].sum()
    assert seen == (scores[kept, 1] > 0.5).sum()
    assert hits == ((scores[kept, 1] > 0.5) & (TRUTH[kept, 1] > 0)).sum()
    flipped = np.where(labels < 0, 1 - scores, scores)
    for measure in (multi_label.ranking, lambda s, y: multi_label.at_threshold(s > 0.5, y)):
        assert measure(flipped, labels) == measure(scores, labels)
    np.testing.assert_array_equal(*(multi_label.choose(s, labels) for s in (flipped, scores)))


@pytest.mark.parametrize("rule", ThresholdRule)
def test_no_other_threshold_has_a_better_f1(rule: ThresholdRule) -> None:
    scores = 1 / (1 + np.exp(-SCORES))
    chosen = multi_label.choose(scores, TRUTH, rule)
    tried = np.concatenate([np.unique(scores), np.unique(scores) + 1e-9])
    if rule is ThresholdRule.GLOBAL:
        assert len({*chosen.tolist()}) == 1
        best = max(multi_label.f1(scores >= t, TRUTH)["f1"] for t in tried)
        assert multi_label.f1(scores >= chosen, TRUTH)["f1"] == pytest.approx(best)
        return
    assert chosen[4] == 0.5  # it has no positive
    for k in range(4):
        one = TRUTH[:, k : k + 1]
        best = max(multi_label.f1(scores[:, k : k + 1] >= t, one)["f1"] for t in tried)
        own = multi_label.f1(scores[:, k : k + 1] >= chosen[k], one)["f1"]
        assert own == pytest.approx(best)


def test_without_labels_there_is_no_average() -> None:
    with pytest.raises(ValueError, match="no image has a label"):
        multi_label.ranking(SCORES, np.zeros_like(TRUTH))
    assert np.isnan(multi_label.auroc(SCORES[:, 0], np.ones(30, bool)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Told(Classify):
    """A split whose probabilities are known."""

    every: Any
    hot: Any

    def scores(self, predict: Any, variables: Any) -> Scores:
        del predict, variables
        one = np.zeros(1, np.float32)
        fields = {"nll": one, "top1": one > 0, "top5": one > 0, "confidence": one}
        prediction = np.zeros(1, np.int32)
        return Scores(**fields, prediction=prediction, label=None, every=self.every, hot=self.hot)


def test_thresholds_of_another_split_measure_this_one(tmp_path: Path) -> None:
    def told(name: str, scores: list, labels: list) -> Told:
        known = {"every": np.array(scores, np.float32), "hot": np.array(labels, np.int8)}
        mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
        how = {"batches": lambda: iter(()), "batch_size": 1, "mesh": mesh, "loss": Loss.SIGMOID}
        return Told(class_names=("a",), name=name, **how, **known)

    test = told("photos[test]", [[0.6], [0.3]], [[1], [1]])
    val = told("photos[val]", [[0.4], [0.1]], [[1], [0]])
    run = MultiLabel(own=test, chosen=val, rule=ThresholdRule.GLOBAL, report=True)
    found = run.run({"logits": lambda *_: jnp.zeros(1)}, {}, tmp_path)
    assert found["threshold"] == pytest.approx(0.25)
    assert found["f1"] == 1.0
    kept = json.loads((tmp_path / "thresholds.json").read_text())
    assert kept["chosen_on"] == "photos[val]"
    without = dataclasses.replace(val, hot=np.zeros((2, 1), np.int8))
    with pytest.raises(UserError, match=r"photos\[val\] has no image with a label"):
        dataclasses.replace(run, chosen=without).run(
            {"logits": lambda *_: jnp.zeros(1)}, {}, tmp_path
        )
