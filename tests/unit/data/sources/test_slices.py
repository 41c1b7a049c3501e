# SPDX-License-Identifier: Apache-2.0
"""Splits of any name have slices, and what is wrong with one is a line without a stand-in."""

import pytest

from tests.refusals import refused_by
from vit_jax.data.sources.partition import SplitError, absolute_slices, split_of
from vit_jax.errors import UserError

SIZES = {"train": 200, "fold 1": 10, "über-all": 30, "a.b": 4, "train2": 7}


def test_slices_are_numbers_whatever_a_split_is_called() -> None:
    for split, slices in (
        ("train[:99%]", [("train", 0, 198)]),
        (" fold 1[5:] + a.b", [("fold 1", 5, 10), ("a.b", 0, 4)]),
        ("über-all[50%:50%+3]+train2", [("über-all", 15, 18), ("train2", 0, 7)]),
        ("train[90%:90%+5]+fold 1", [("train", 180, 185), ("fold 1", 0, 10)]),
    ):
        assert absolute_slices(split, SIZES, "x") == slices


def test_what_is_wrong_names_the_split_as_it_is_written() -> None:
    for split in ("fold 2", "fold 1[:y]", "fold 1[5:2]", ""):
        with refused_by("data.sources.partition.absolute_slices", kind=SplitError) as caught:
            absolute_slices(split, SIZES, "x")
        assert f" {split!r}" in str(caught.value)
        assert "split1" not in str(caught.value)


def test_the_only_split_is_cut_in_two_only_where_the_run_trains_on_it() -> None:
    cases = (True, "on which the run trains"), (False, "; choose another by evals.knn")
    for own, told in cases:
        with (
            pytest.raises(UserError) as refused,
            split_of("evals.knn.train_split", in_training=own),
        ):
            absolute_slices("train", {"val": 5}, "rays")
        assert told in str(refused.value)
        assert ("data.train_split" in str(refused.value)) == own
