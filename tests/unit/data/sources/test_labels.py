# SPDX-License-Identifier: Apache-2.0
"""VTAB's 19 tasks: which examples they take, and what their labels are."""

import io
import pickle
import re

import numpy as np
import pytest
from PIL import Image

from tests.refusals import refused_by
from tests.unit.data import vtab as small
from vit_jax.data import open_source
from vit_jax.data.sources import records
from vit_jax.data.sources.partition import absolute_slices
from vit_jax.errors import UserError
from vit_jax.recipes import vtab


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    place = tmp_path_factory.mktemp("vtab")
    small.prepare(place)
    return place


def expected(task, i):
    """Return the label of example i of its split by hand."""
    match task:
        case "clevr_count":
            return i % 8
        case "clevr_distance":
            return small.CLEVR_DISTANCE[i % 8]
        case "kitti_distance":
            return small.KITTI_DISTANCE[i % 5]
        case "dsprites_location":
            return i % 32 // 2
        case "dsprites_orientation":
            return [0, 0, 0, 1, 1, 2, 2, 2, 3, 3][i % 10] + 4 * (i // 10)
    return i % vtab.TASKS[task].num_classes


def pixels(example):
    return np.array(Image.open(io.BytesIO(example["image"])))


@pytest.mark.parametrize("name", vtab.TASKS)
def test_a_task_has_its_examples_classes_and_labels(name, root):
    task = vtab.TASKS[name]
    train = vtab.train_split(task).replace("800", "8").replace("200", "2")
    source = open_source(task.dataset, str(root), train)
    assert source.num_classes == task.num_classes
    start = re.search(r"(\d+)%", task.val)
    start = small.COUNT * int(start[1]) // 100 if start else 0
    taken = [*range(8), start, start + 1]
    assert [source.read(i)["label"] for i in range(len(source))] == [
        expected(name, i) for i in taken
    ]
    white = 255 if name.startswith("dsprites") else 1
    values = [i % 2 if white == 255 else i for i in taken]
    assert [pixels(source.read(i)).max() for i in range(10)] == [white * v for v in values]
    test = open_source(task.dataset, str(root), task.test)
    share = re.search(r"(\d+)%", task.test)
    first = small.COUNT * int(share[1]) // 100 if share else 0
    assert len(test) == small.COUNT - first
    assert test.read(0)["label"] == expected(name, first)
    copy = pickle.loads(pickle.dumps(source))
    assert copy.read(9)["label"] == source.read(9)["label"]


# The sizes of the published datasets, and task_adaptation's first held-out image of each.
SIZES = {
    "caltech101": ({"train": 3_059, "test": 6_084}, 2_753, (0, 6_084)),
    "cifar100": ({"train": 50_000, "test": 10_000}, 45_000, (0, 10_000)),
    "pets": ({"train": 3_680, "test": 3_669}, 2_944, (0, 3_669)),
    "svhn": ({"train": 73_257, "test": 26_032}, 65_931, (0, 26_032)),
    "eurosat": ({"train": 27_000}, 16_200, (21_600, 27_000)),
    "resisc45": ({"train": 31_500}, 18_900, (25_200, 31_500)),
    "clevr_count": ({"train": 70_000, "validation": 15_000}, 63_000, (0, 15_000)),
    "dsprites_location": ({"train": 737_280}, 589_824, (663_552, 737_280)),
    "smallnorb_azimuth": ({"train": 24_300, "test": 24_300}, 0, (12_150, 24_300)),
    "dtd": ({"train": 1_880, "validation": 1_880, "test": 1_880}, 0, (0, 1_880)),
}


@pytest.mark.parametrize("name", SIZES)
def test_splits_are_those_of_task_adaptation(name):
    sizes, start, (first, end) = SIZES[name]
    task = vtab.TASKS[name]
    train = absolute_slices(vtab.train_split(task), sizes, name)
    assert train == [("train", 0, 800), (task.val.partition("[")[0], start, start + 200)]
    assert absolute_slices(task.test, sizes, name) == [(task.test.partition("[")[0], first, end)]


def test_a_distance_lies_above_an_interval_s_lower_end():
    ends = (0.0, 8.0, 8.5)
    assert [records.interval(x, ends) for x in (-1.0, 0.0, 0.1, 8.0, 8.1, 9.0)] == [
        -1,
        -1,
        0,
        0,
        1,
        2,
    ]


def test_a_label_is_chosen_where_there_are_several(root):
    with refused_by("data.sources.records._feature_key") as caught:
        open_source("clevr", str(root), "train")
    assert "clevr?label=NAME: count, distance" in str(caught.value)
    with pytest.raises(UserError, match=r"label of smallnorb 'azimuth'; did you mean 'label_azi"):
        open_source("smallnorb?label=azimuth", str(root), "train")
    assert open_source("smallnorb", str(root), "train").num_classes == 5  # what TFDS says
    shapes = open_source("dsprites:2.0?label=label_shape", str(root), "train")
    assert (shapes.num_classes, shapes.read(5)["label"]) == (3, 2)
    assert shapes.name == "dsprites?label=label_shape[train]"
    with refused_by("data.sources.records._find") as caught:
        open_source("clevr:2?label=count", str(root), "train")
    assert "3.1.0" in str(caught.value)
