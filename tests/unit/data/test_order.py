# SPDX-License-Identifier: Apache-2.0
import concurrent.futures
import threading
import time

import numpy as np
import pytest

from vit_jax.data import order as stream
from vit_jax.data.order import ClassBalance, ExampleRng, epoch_order, stream_indices


@pytest.mark.parametrize("num_examples", [1293, 50_000])
def test_orders_are_permutations_without_structure(num_examples):
    places = np.arange(num_examples)
    for seed in range(3):
        order = epoch_order(num_examples, seed, 0)
        assert (np.bincount(order) == 1).all()
        tests = [np.corrcoef(order[:-lag], order[lag:])[0, 1] for lag in (1, 2, 3, 4)]
        tests += [np.corrcoef(order, places)[0, 1]]
        assert np.abs(tests).max() * np.sqrt(num_examples) < 4.5  # standard errors


def test_the_quick_generator_is_a_fresh_philox():
    quick = ExampleRng(7)
    for index in (0, 3, 2**40, 3):
        fresh = np.random.Generator(np.random.Philox(key=np.array([7, index], np.uint64)))
        drawn = quick(index)
        for generator in (drawn, fresh):
            generator.integers(10)  # leaves half a word behind, which must not leak
        assert drawn.random() == fresh.random()
        assert drawn.integers(1000) == fresh.integers(1000)


@pytest.mark.parametrize("count", [1, 4, 5, 9])
def test_uniforms_of_many_positions_are_each_generators_own(count):
    positions = np.array([0, 3, 2**31, 2**40 + 5])
    for seed in (0, 7, 2**63 + 11, -1):
        rng = ExampleRng(seed)
        expected = np.stack([rng(position).random(count) for position in positions.tolist()])
        np.testing.assert_array_equal(stream.uniforms(seed, positions, count), expected)


def test_indices_over_the_end_of_an_epoch_and_of_a_pass():
    orders = np.concatenate([epoch_order(5, 3, epoch) for epoch in range(4)])
    for start in (0, 3, 5):
        positions = np.arange(start, start + 12)
        np.testing.assert_array_equal(stream_indices(positions, 5, 3), orders[positions])
    np.testing.assert_array_equal(stream_indices(np.arange(3, 7), 5, None), [3, 4, -1, -1])


def test_repeats_are_copies_in_a_row_of_as_many_examples_as_an_epoch_has_room_for():
    epochs = [np.repeat(epoch_order(10, 3, epoch), 3)[:10] for epoch in range(4)]
    for start in (0, 4, 17):
        positions = np.arange(start, start + 20)
        found = stream_indices(positions, 10, 3, repeats=3)
        np.testing.assert_array_equal(found, np.concatenate(epochs)[positions])


@pytest.mark.parametrize(
    ("power", "expected"), [(0.0, [90, 9, 0, 1]), (0.5, [70, 23, 0, 7]), (1.0, [33, 34, 0, 33])]
)
def test_balanced_classes_come_as_often_as_the_power_says(power, expected):
    labels = np.repeat([0, 1, 3], [90, 9, 1]).astype(np.int32)
    balance = ClassBalance(labels, power)
    for epoch in range(3):
        order = epoch_order(100, 7, epoch, balance)
        assert np.bincount(labels[order]).tolist() == expected
        for k in (0, 1, 3):  # no example of a class a second time more than another
            times = np.bincount(order, minlength=100)[labels == k]
            assert times.max() - times.min() <= 1
        assert not np.array_equal(order, epoch_order(100, 7, epoch + 1, balance))
        assert np.array_equal(
            order, stream_indices(np.arange(100) + 100 * epoch, 100, 7, 1, balance)
        )
        # The classes are mixed: in each quarter of the epoch the first has about its share.
        shares = (labels[order].reshape(4, 25) == 0).mean(1)
        assert np.abs(shares - expected[0] / 100).max() < 0.35


def test_threads_that_need_the_same_order_wait_for_one_computation(monkeypatch):
    real, calls, start = np.argsort, [], threading.Barrier(4)

    def slow(*args, **kwargs):
        calls.append(1)
        time.sleep(0.1)
        return real(*args, **kwargs)

    def ask(_):
        start.wait()
        return stream.epoch_order(11, 123, 4)

    monkeypatch.setattr(np, "argsort", slow)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        orders = list(pool.map(ask, range(4)))
    assert len(calls) == 1
    assert all(order is orders[0] for order in orders)
