# SPDX-License-Identifier: Apache-2.0
"""Subsets of a dataset's classes."""

import numpy as np
import pytest

from vit_jax import data
from vit_jax.data.sources import base as sources
from vit_jax.data.sources.folders import FolderSource
from vit_jax.errors import UserError


def test_a_folder_is_not_read_at_opening(folder, monkeypatch):
    def refuse(self, index):
        raise AssertionError

    read = FolderSource.read
    monkeypatch.setattr(FolderSource, "read", refuse)
    subset = data.open_source(f"folder:{folder}", classes=(2, 0), cache=True)
    monkeypatch.setattr(FolderSource, "read", read)
    assert subset.class_names == ("emu", "cat")
    files = [subset.example_id(i) for i in range(len(subset))]
    assert len(files) == 8 + 9
    for i, file in enumerate(files):
        assert f"/{subset.class_names[subset.read(i)['label']]}/" in file
    monkeypatch.setattr(FolderSource, "read", refuse)  # all in memory now
    subset.read(0)


def test_a_subset_is_batched_like_any_source(folder):
    source = data.open_source(f"folder:{folder}", classes=(2, 0))
    cfg = data.DataConfig(batch_size=17)
    with data.train_batches(
        source, cfg, views=data.one_view(cfg.transform, (8, 8), 1), seed=0
    ) as batches:
        batch = next(batches)
    assert sorted(batch["index"]) == list(range(17))
    assert np.bincount(batch["label"]).tolist() == [8, 9]


@pytest.mark.parametrize(
    "classes, message",
    [
        ((1, 4), r"data\.classes=\(1, 4\): .* has no class 4; ids are 0\.\.3"),
        ((-1,), "has no class -1"),
        ((1, 2, 1), "names class 1 twice"),
        ((3,), "has no example of these classes"),  # owl is in val alone
    ],
)
def test_classes_that_are_not_there_are_one_line(folder, classes, message):
    with pytest.raises(UserError, match=message) as caught:
        data.open_source(f"folder:{folder}", classes=classes)
    assert "\n" not in str(caught.value)


def test_images_of_several_labels_have_no_subset(folder, monkeypatch):
    monkeypatch.setattr(FolderSource, "multi_label", True)
    with pytest.raises(UserError, match=r"several labels per image; leave data\.classes=\(\)"):
        data.open_source(f"folder:{folder}", classes=(0,))


def test_a_folder_knows_its_labels_cached_or_not(folder):
    for cache in (False, True):
        source = data.open_source(f"folder:{folder}", cache=cache)
        assert source.labels is not None
        assert source.labels.tolist() == [source.read(i)["label"] for i in range(len(source))]


def test_balanced_batches_hold_rare_classes_more_often(folder, monkeypatch):
    source = data.open_source(f"folder:{folder}")
    cfg = data.DataConfig(batch_size=len(source), balance=1.0)
    views = data.one_view(cfg.transform, (8, 8), 1)
    with data.train_batches(source, cfg, views=views, seed=0) as batches:
        counts = np.bincount(next(batches)["label"])
    assert counts.max() - counts[counts > 0].min() <= 1 < np.ptp(np.bincount(source.labels)[:3])

    assert sources.balance_of(source, 0.0) is None
    records = data.open_source("digits", split="train[:50]")
    assert records.labels is None  # so they are read
    found = sources.balance_of(records, 1.0)
    assert found is not None
    assert found.labels.tolist() == [records.read(i)["label"] for i in range(50)]

    monkeypatch.setattr(source, "labels", source.labels - 1)
    with pytest.raises(UserError, match=r"images without a label; set data\.balance=0"):
        sources.balance_of(source, 0.5)
    monkeypatch.setattr(FolderSource, "multi_label", True)
    with pytest.raises(UserError, match=r"several labels per image; set data\.balance=0"):
        sources.balance_of(source, 0.5)


def test_a_sample_has_some_examples(folder):
    source = data.open_source(f"folder:{folder}")
    sample = data.Sample(source, np.array([3, 0], np.int32))
    assert len(sample) == 2
    for i, index in enumerate((3, 0)):
        assert sample.example_id(i) == source.example_id(index)
        assert sample.read(i) == source.read(index)
        assert sample.labels[i] == source.labels[index] == sample.read(i)["label"]
