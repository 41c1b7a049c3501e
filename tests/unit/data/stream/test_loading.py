# SPDX-License-Identifier: Apache-2.0
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vit_jax.data import TransformConfig, one_view
from vit_jax.data.sources.base import Labelled
from vit_jax.data.stream import batches
from vit_jax.devices import hardware
from vit_jax.errors import DataError

VIEWS = one_view(TransformConfig(), (224, 224), 3)
TINY = one_view(TransformConfig(), (8, 8), 1)


class Slow(Labelled):
    """A source whose reads take a while."""

    name, class_names, labels = "slow", ("a",), None

    def __init__(self, seconds: float, is_remote: bool = True, count: int = 9) -> None:
        self.seconds, self.is_remote, self.reads, self.count = seconds, is_remote, 0, count

    def __len__(self) -> int:
        return self.count

    def read(self, index: int) -> dict[str, Any]:
        self.reads += 1
        time.sleep(self.seconds)
        if not index:
            raise DataError("broken")
        return {}

    def example_id(self, index: int) -> str:
        return str(index)

    def digest(self) -> str:
        return ""


def choose(source: Slow, views: Any = VIEWS, rows: int = 128, **given: int) -> batches.Loading:
    given = {"num_threads": 0, "num_workers": 0, "prefetch": 2} | given
    return batches.choose(source, views, rows, **given)


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    found = SimpleNamespace(count=2)
    monkeypatch.setattr(hardware, "num_cores", lambda: found.count)
    return found


def test_files_of_this_machine_are_loaded_as_ever(cores: SimpleNamespace) -> None:
    near = Slow(0, is_remote=False)
    assert choose(near) == (2, 0, 0, 2, 2)
    assert choose(near, prefetch=1) == (2, 0, 0, 1, 1)
    assert choose(near, TINY) == (1, 0, 0, 2, 2)
    cores.count = 64
    assert choose(near, num_workers=4) == (16, 0, 4, 2, 2)
    assert not near.reads


def test_a_bucket_of_20_ms_has_64_reads_in_flight(cores: SimpleNamespace) -> None:
    assert 64 <= choose(Slow(0.02)).num_readers <= 96
    assert 64 <= choose(Slow(0.02), TINY).num_readers <= 96
    assert choose(Slow(0.1)).num_readers == 96
    assert choose(Slow(0)).num_readers == 16
    # One batch is decoded while the next is read. Four rows a batch: enough for all readers.
    wide = choose(Slow(0.02))
    assert (wide.at_once, wide.prefetch) == (3, 3)
    few = choose(Slow(0.1), rows=4)
    assert (few.at_once, few.prefetch) == (26, 26)


def test_what_is_given_is_taken(cores: SimpleNamespace) -> None:
    assert choose(Slow(0.02), num_threads=7).num_threads == 7
    cores.count = 16
    assert choose(Slow(0.02)).num_workers == 2
    assert choose(Slow(0.02), num_threads=7).num_workers == 0
    assert choose(Slow(0.02), num_workers=1).num_workers == 1


class Counted:
    """Counts the threads that decode at once, while reads take 10 ms."""

    def __init__(self) -> None:
        self.lock, self.now, self.most = threading.Lock(), 0, 0

    def read(self, index: int) -> dict[str, Any]:
        time.sleep(0.01)
        return {"image": b"", "label": index % 2}

    def view(self, *_: Any) -> np.ndarray:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.005)
        with self.lock:
            self.now -= 1
        return np.zeros((224, 224, 3), np.uint8)


@pytest.mark.parametrize(("threads", "at_once"), [(2, 5), (4, 5), (4, 2), (4, 1)])
def test_so_many_threads_decode_however_many_batches_are_read(
    threads: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, source = Counted(), Slow(0, count=160)
    source.read = counted.read  # type: ignore[method-assign]
    monkeypatch.setattr("vit_jax.data.stream.transform.Transform.load", lambda *_: np.zeros(3))
    monkeypatch.setattr("vit_jax.data.stream.transform.Transform.view", counted.view)
    given = {"num_threads": threads, "at_once": at_once, "num_readers": 16}
    made = batches.Batches(
        source=source,
        views=VIEWS,
        fields=("label",),
        batch_size=16,
        rows=np.arange(16),
        length=10,
        seed=None,
        **given,
    )
    loading = batches.Loading(**given, num_workers=0, prefetch=at_once)
    with batches.BatchIterator(made, loading) as stream:
        for _ in range(10):
            next(stream)
    assert counted.most == threads
