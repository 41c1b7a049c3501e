# SPDX-License-Identifier: Apache-2.0
"""Subsets of a dataset's classes."""

import pickle

import numpy as np
import pytest
from sklearn.datasets import load_digits

from vit_jax import data, evals
from vit_jax.config.tree import Config
from vit_jax.data.sources.base import CachedSource
from vit_jax.data.sources.records import TfdsSource
from vit_jax.models import ViTConfig
from vit_jax.train import build


@pytest.fixture
def reads(monkeypatch):
    """Count how often the records of a TFDS dataset are read, by index."""
    counts: dict[int, int] = {}
    read = TfdsSource.read

    def counted(self, index):
        counts[index] = counts.get(index, 0) + 1
        return read(self, index)

    monkeypatch.setattr(TfdsSource, "read", counted)
    return counts


@pytest.mark.parametrize("cache", [False, True])
def test_records_are_read_once_at_opening_and_what_is_cached_never_again(tfds_dir, reads, cache):
    subset = data.open_source(
        "digits", str(tfds_dir), "train[:200]", classes=(7, 2, 5), cache=cache
    )
    assert reads == dict.fromkeys(range(200), 1)
    digits = load_digits().target[:200]
    kept = np.flatnonzero(np.isin(digits, (7, 2, 5)))  # in the stored order
    assert len(subset) == len(kept)
    assert (subset.num_classes, subset.class_names) == (3, ("7", "2", "5"))
    assert not subset.multi_label
    whole = data.open_source("digits", str(tfds_dir), "train[:200]")
    wanted = [whole.read(int(i))["image"] for i in kept]
    reads.clear()
    found = [subset.read(i) for i in range(len(subset))]
    assert reads == ({} if cache else dict.fromkeys(kept.tolist(), 1))
    assert [example["image"] for example in found] == wanted
    assert [(7, 2, 5)[x["label"]] for x in found] == digits[kept].tolist()
    assert subset.example_id(3) == f"digits[train[:200]] record {kept[3]}"
    assert subset.name == "digits[train[:200]], 3 of 10 classes"
    copy = pickle.loads(pickle.dumps(subset))
    assert [copy.read(i) for i in range(len(copy))] == found


def test_training_and_evaluations_on_the_same_dataset_keep_the_same_classes(tfds_dir, folder):
    cfg = Config(
        model=ViTConfig(num_classes=5),
        data=data.DataConfig(data_dir=str(tfds_dir), classes=(9, 1, 3, 5, 7)),
        evals={
            "test": evals.ClassifyEval(split="test"),
            "named": evals.ClassifyEval(split="test[:50]", dataset="digits"),
        },
    )
    train = build.open_train(cfg)
    assert train.class_names == ("9", "1", "3", "5", "7")
    sources = build.open_evals(cfg, train)  # refuses other classes
    assert len(sources["test"][""]) == np.isin(load_digits().target[1437:], cfg.data.classes).sum()
    assert sources["named"][""].class_names == train.class_names
    other = evals.ClassifyEval(split="train", dataset=f"folder:{folder}")
    assert evals.open_splits(other, cfg.data)[""].num_classes == 4
    cfg.data.cache = True
    cached = build.open_train(cfg)
    assert isinstance(cached._source, CachedSource)
