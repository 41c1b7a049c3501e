# SPDX-License-Identifier: Apache-2.0
import gc
import pickle

import numpy as np
import pytest

from vit_jax.data.stream import shared

pytestmark = pytest.mark.skipif(not shared.available(), reason="memory without a name is Linux's")
SHAPES = [((3, 5, 5, 3), np.dtype(np.uint8)), ((3, 7), np.dtype(np.float32))]


@pytest.fixture
def places() -> shared.Slots:
    return shared.Slots(0, shared.size_of(SHAPES), 2)


def sent(places: shared.Slots, seed: int = 0) -> dict:
    """Do what a worker does, up to the queue."""
    own = pickle.loads(pickle.dumps(places))
    with own.taken() as room:
        assert room is not None
        batch = {}
        for name, (shape, dtype) in zip("ab", SHAPES, strict=True):
            batch[name] = shared.empty(shape, dtype)
            batch[name][:] = np.random.default_rng(seed).integers(0, 255, shape)
        batch["label"] = np.arange(3)
        return pickle.loads(pickle.dumps(own.packed(room, batch)))


def test_a_batch_comes_back_as_it_was_made(places: shared.Slots) -> None:
    message = sent(places)
    assert len(pickle.dumps(message)) < 1000  # the images stay where they are
    batch = shared.opened([places], message)
    for name, (shape, dtype) in zip("ab", SHAPES, strict=True):
        assert (batch[name].shape, batch[name].dtype) == (shape, dtype)
        np.testing.assert_array_equal(batch[name], np.random.default_rng(0).integers(0, 255, shape))
        assert batch[name].ctypes.data % 64 == 0
    np.testing.assert_array_equal(batch["label"], np.arange(3))


def test_a_place_is_used_again_when_no_view_is_left(places: shared.Slots) -> None:
    first = shared.opened([places], sent(places))
    view = first["b"][1:, ::2]
    kept = view.copy()
    del first
    gc.collect()
    second = shared.opened([places], sent(places, seed=1))
    with places.taken() as room:
        assert room is None
    np.testing.assert_array_equal(view, kept)
    del view
    gc.collect()
    with places.taken() as room:
        assert room is not None
        assert room.number == 0
    del second


def fail(places: shared.Slots) -> None:
    with places.taken() as room:
        assert room is not None
        raise ValueError("broken")


def test_a_batch_that_fails_gives_its_place_back(places: shared.Slots) -> None:
    for _ in range(5):
        with pytest.raises(ValueError, match="broken"):
            fail(places)


def test_a_worker_that_may_not_open_it_has_no_place(
    places: shared.Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: str, flags: int) -> int:
        raise PermissionError(path)

    monkeypatch.setattr(shared.os, "open", refused)
    with pickle.loads(pickle.dumps(places)).taken() as room:
        assert room is None


def test_what_does_not_fit_travels_as_ever(places: shared.Slots) -> None:
    for _ in range(5):
        with places.taken() as room:
            assert room is not None
            batch = {"a": shared.empty((99, 99, 99), np.dtype(np.uint8))}
            assert places.packed(room, batch)["a"] is batch["a"]
    assert shared.empty((2,), np.dtype(np.uint8)).base is None
