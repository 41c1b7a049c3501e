# SPDX-License-Identifier: Apache-2.0

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from vit_jax import data
from vit_jax.errors import DataError
from vit_jax.train.health.unreadable import Unreadable, counted_in


def batch(*broken: int, reason: str = "no image") -> data.Batch:
    told = [reason.encode() if index >= 0 else b"" for index in broken]
    return {"broken": np.array(broken, np.int32), "reason": np.array(told, "S200")}


def name(index: int) -> str:
    return f"{index}.jpg"


def test_each_is_told_and_counted_once():
    said = []
    broken = Unreadable(3, name, log=said.append)
    for one in (batch(-1, -1), batch(-1, 7, 7), batch(4, -1), batch(7, 4)):
        broken.add(one)
    assert [line.split(": ")[:3] for line in said] == [
        [
            "warning",
            "7.jpg",
            "no image; the next example that can be read takes its place (1 of data.max_broken=3)",
        ],
        [
            "warning",
            "4.jpg",
            "no image; the next example that can be read takes its place (2 of data.max_broken=3)",
        ],
    ]
    assert broken.scalars() == {"data/broken": 2.0}
    assert broken.to_json() == {"unreadable": [4, 7]}


def test_a_checkpoint_of_an_older_version_is_read():
    assert counted_in({"unreadable": [4, 7]}) == counted_in({"broken": [4, 7]}) == [4, 7]
    assert counted_in({"config": {}}) == []


def test_one_too_many_ends_the_run_with_the_first_few_names():
    broken = Unreadable(4, name, counted=[9, 3], log=lambda _: None)
    broken.add(batch(3, 9, 1, 2))
    with pytest.raises(DataError) as caught:
        broken.add(batch(5, 6))
    assert str(caught.value) == (
        "6 training examples cannot be read, more than data.max_broken=4: 9.jpg; 3.jpg; 1.jpg; and "
        "3 more; repair them, or continue with a larger data.max_broken"
    )
    assert caught.value.status == 65


def test_nothing_is_said_of_a_run_that_allows_none():
    broken = Unreadable(0, name)
    broken.add(batch(-1, -1))
    assert broken.scalars() == broken.to_json() == {}


def test_processes_count_what_each_of_them_met(monkeypatch):
    broken = Unreadable(3, name, counted=[4], log=lambda _: None)
    broken.agree()  # there is but one
    assert broken.to_json() == {"unreadable": [4]}
    others = [np.array([4, 7, -1, -1]), np.array([8, 9, -1, -1])]
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(
        multihost_utils, "process_allgather", lambda mine: np.stack([mine, others.pop(0)])
    )
    broken.agree()
    assert broken.to_json() == {"unreadable": [4, 7]}
    with pytest.raises(DataError, match=r"4 training examples cannot be read"):
        broken.agree()
    Unreadable(0, name).agree()  # gathers nothing
