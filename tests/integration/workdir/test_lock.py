# SPDX-License-Identifier: Apache-2.0
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.bucket import Bucket
from vit_jax.errors import UserError
from vit_jax.storage.bucket import Folder
from vit_jax.workdir import lock as bucket_lock
from vit_jax.workdir.lock import BucketLock

BEAT, LEASE = 0.1, 0.6


@pytest.fixture
def folder(
    bucket: Bucket, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Folder]:
    monkeypatch.setattr(bucket_lock, "BEAT", BEAT)
    monkeypatch.setattr(bucket_lock, "LEASE", LEASE)
    yield Folder(f"gs://bucket/{request.node.name}")
    bucket.set()


def _die(lock: BucketLock) -> None:
    """Let a lock's owner do nothing more, as SIGKILL does."""
    lock._over.set()
    lock._thread.join()


def test_of_two_the_second_is_refused_while_the_first_lives(folder: Folder) -> None:
    first = BucketLock(folder, "place 1")
    assert not first.acquire()
    with pytest.raises(UserError, match=rf"{folder.url} is in use by pid \d+ on .*; wait for it"):
        BucketLock(folder, "place 2").acquire()
    assert first.is_held()
    first.release()
    assert not first.is_held()
    second, began = BucketLock(folder, "place 2"), time.monotonic()
    assert not second.acquire()  # another place had it last
    assert time.monotonic() - began < LEASE
    second.release()
    assert len(folder.names(bucket_lock.NAME)) == 1


def test_a_dead_owner_is_waited_for_but_at_its_own_place(folder: Folder) -> None:
    dead = BucketLock(folder, "place 1")
    dead.acquire()
    _die(dead)
    same, began = BucketLock(folder, "place 1"), time.monotonic()
    assert same.acquire()
    assert time.monotonic() - began < LEASE
    _die(same)
    other, began = BucketLock(folder, "place 2"), time.monotonic()
    assert not other.acquire()
    assert time.monotonic() - began >= LEASE
    other.release()


def test_of_several_at_one_instant_one_alone_gets_a_dead_owners_lock(folder: Folder) -> None:
    dead = BucketLock(folder, "dead")
    dead.acquire()
    _die(dead)
    locks = [BucketLock(folder, f"place {i}") for i in range(4)]

    def won(lock: BucketLock) -> bool:
        try:
            lock.acquire()
        except UserError:
            return False
        return True

    with ThreadPoolExecutor(len(locks)) as pool:
        assert sorted(pool.map(won, locks)) == [False, False, False, True]
    for lock in locks:
        lock.release()


def test_an_owner_whose_bucket_was_away_learns_that_it_is_no_owner_any_more(
    folder: Folder, bucket: Bucket
) -> None:
    first = BucketLock(folder, "place 1")
    first.acquire()
    bucket.set(forbidden="bucket/test_an_owner")
    time.sleep(LEASE + BEAT)
    assert not first.is_held()
    assert not first.lost
    bucket.set()
    _die(first)
    second = BucketLock(folder, "place 2")
    second.acquire()
    first._confirm()
    assert first.lost.startswith("pid ")
    first.release()  # changes nothing
    assert second.is_held()
    second.release()


def test_a_late_answer_does_not_make_an_owner_look_dead(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_lock, "BEAT", 5 * BEAT)
    first, second = BucketLock(folder, "place 1"), BucketLock(folder, "place 2")
    first.acquire()
    newest, pauses = second._newest, [0.0, 1.5 * LEASE, 0.0]

    def late() -> object:
        found = newest()
        time.sleep(pauses.pop(0) if pauses else 0.0)
        return found

    monkeypatch.setattr(second, "_newest", late)
    with pytest.raises(UserError, match="is in use by"):
        second.acquire()
    first.release()


def test_a_copy_of_a_dead_owner_s_place_on_another_host_waits(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = BucketLock(folder, "place 1")
    dead.acquire()
    _die(dead)
    monkeypatch.setattr(socket, "gethostname", lambda: "a clone")
    copy, began = BucketLock(folder, "place 1"), time.monotonic()
    assert copy.acquire()
    assert time.monotonic() - began >= LEASE
    copy.release()


def test_a_place_killed_before_it_has_what_the_bucket_has_is_no_owner_afterwards(
    folder: Folder,
) -> None:
    for place in ("place 1", "place 2"):
        lock = BucketLock(folder, place)
        lock.acquire()
        lock.release()
    killed = BucketLock(folder, "place 1")
    assert not killed.acquire()
    _die(killed)
    again = BucketLock(folder, "place 1")
    assert not again.acquire()
    again.release()


def test_the_other_processes_of_a_run_learn_that_it_is_taken_over(folder: Folder) -> None:
    first, other = BucketLock(folder, "place 1"), BucketLock(folder, "")
    first.acquire()
    other.follow(first.number)
    assert other.is_held()
    first.release()
    second = BucketLock(folder, "place 2")
    second.acquire()
    before = folder.names(bucket_lock.NAME)
    time.sleep(LEASE / 2 + BEAT)
    assert not other.is_held()
    assert other.lost.startswith("pid ")
    assert folder.names(bucket_lock.NAME) == before
    second.release()


def test_a_request_without_an_answer_does_not_hold_the_end_up(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, stuck, end = BucketLock(folder, "place 1"), threading.Event(), threading.Event()
    lock.acquire()
    monkeypatch.setattr(lock, "_confirm", lambda: (stuck.set(), end.wait(10)))
    assert stuck.wait(10)
    began = time.monotonic()
    lock.release()
    assert time.monotonic() - began < 5
    end.set()
    last = lock._newest()
    assert last is not None
    assert last.said["held"]  # whatever the request does, nobody has the lock before it expires
