# SPDX-License-Identifier: Apache-2.0
"""What a run in a staging directory leaves in its bucket, and what a new host finds there."""

import itertools
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from tests.bucket import Bucket
from tests.refusals import refused_by
from vit_jax.checkpoints import CheckpointConfig, copies, reader
from vit_jax.checkpoints.checkpointer import Checkpointer
from vit_jax.errors import IO_ERROR, UserError
from vit_jax.process.preemption import INTERRUPTED, Preemption
from vit_jax.storage.bucket import Folder
from vit_jax.workdir import lock as bucket_lock
from vit_jax.workdir import mirror
from vit_jax.workdir.mirror import Mirror

_NUMBER = itertools.count()


@pytest.fixture
def name(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for module, limit, value in (
        (bucket_lock, "BEAT", 0.1),
        (bucket_lock, "LEASE", 0.5),
        (mirror, "_LOOK", 0.05),
        (mirror, "_SMALL", 0.2),
        (mirror, "_PAUSE", 0.1),
    ):
        monkeypatch.setattr(module, limit, value)
    yield f"bucket/mirrored/{next(_NUMBER)}"
    bucket.set()


def _save(path: Path, step: int) -> None:
    """Write what looks like a checkpoint from the outside, and a line of metrics."""
    made = path / "checkpoints" / f"{step}.orbax-checkpoint-tmp"
    (made / "state" / "d").mkdir(parents=True)
    (made / "_METADATA").write_text(str(step))
    (made / "state" / "d" / f"{step:08x}").write_bytes(bytes(step))
    with (path / "metrics.jsonl").open("a") as file:
        print(json.dumps({"step": step}), file=file)
    made.rename(made.with_name(str(step)))


def _files(path: Path) -> dict[str, bytes]:
    files = [file for file in path.rglob("*") if file.is_file()]
    named = {str(file.relative_to(path)): file.read_bytes() for file in files}
    return {name: data for name, data in named.items() if not name.startswith(".")}


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _host(tmp_path: Path, name: str) -> Path:
    (tmp_path / name).mkdir()
    return tmp_path / name


def test_a_new_host_has_what_the_first_had(bucket: Bucket, name: str, tmp_path: Path) -> None:
    one, two = _host(tmp_path, "one"), _host(tmp_path, "two")
    first = Mirror(f"gs://{name}", one)
    for step in (5, 10, 15):
        _save(one, step)
    (one / "tensorboard").mkdir()
    (one / "tensorboard" / "events").write_bytes(b"\0")
    _until(lambda: first.scalars() == {"run/bucket_lag_steps": 0.0})
    shutil.rmtree(one / "checkpoints" / "5")  # no longer kept
    (one / "finished.json").write_text("{}")
    assert first.close(10) == ""
    assert not bucket.names(f"{name}/checkpoints/5")
    second = Mirror(f"gs://{name}", two)
    assert _files(two) == _files(one)
    assert second.close(10) == ""
    assert sorted(e.name for e in (two / "checkpoints").iterdir()) == ["10", "15"]


def test_half_a_checkpoint_is_none(bucket: Bucket, name: str, tmp_path: Path) -> None:
    one, two = _host(tmp_path, "one"), _host(tmp_path, "two")
    first = Mirror(f"gs://{name}", one)
    _save(one, 5)
    _until(lambda: first.scalars()["run/bucket_lag_steps"] == 0)
    bucket.set(readonly=f"{name}/checkpoints/10.json")
    _save(one, 10)
    assert "has the checkpoint of step 5" in first.close(1.0)
    assert bucket.names(f"{name}/checkpoints/10/")
    bucket.set()
    # The lines up to the unfinished checkpoint may be there, and are dropped as after any kill.
    second = Mirror(f"gs://{name}", two)
    assert [entry.name for entry in (two / "checkpoints").iterdir()] == ["5"]
    _save(two, 10)
    (two / "checkpoints" / "10" / "_METADATA").write_text("another")
    assert second.close(10) == ""
    assert bucket.get(f"{name}/checkpoints/10/_METADATA") == b"another"


def test_what_a_killed_run_had_not_sent_goes_later(
    bucket: Bucket, name: str, tmp_path: Path
) -> None:
    one = _host(tmp_path, "one")
    first = Mirror(f"gs://{name}", one)
    bucket.set(forbidden=name)
    _save(one, 5)
    assert first.scalars() == {"run/bucket_lag_steps": 5.0}
    assert "has no checkpoint" in first.close(0.5)
    bucket.set()
    again = Mirror(f"gs://{name}", one)
    assert again.close(10) == ""
    assert bucket.get(f"{name}/checkpoints/5/_METADATA") == b"5"


def test_what_nobody_has_sent_yields_to_what_another_host_did(
    bucket: Bucket, name: str, tmp_path: Path
) -> None:
    one, two = _host(tmp_path, "one"), _host(tmp_path, "two")
    first = Mirror(f"gs://{name}", one)
    _save(one, 5)
    _until(lambda: first.scalars()["run/bucket_lag_steps"] == 0)
    bucket.set(forbidden=name)
    _save(one, 10)
    _save(one, 15)
    assert first.close(0.3)
    bucket.set()
    second = Mirror(f"gs://{name}", two)  # waits until the lock has expired
    _save(two, 8)
    assert second.close(10) == ""
    third = Mirror(f"gs://{name}", one)
    assert _files(one) == _files(two)
    assert third.close(10) == ""


def test_a_run_that_was_taken_over_ends(bucket: Bucket, name: str, tmp_path: Path) -> None:
    one = Mirror(f"gs://{name}", _host(tmp_path, "one"))
    bucket.set(forbidden=name)
    time.sleep(0.7)
    bucket.set()
    lock = bucket_lock.BucketLock(one._folder, "another")
    lock.number = 10**7  # the emulator would let the first answer before this one asks
    bucket.put(f"{name}/.lock/10000000", lock._said(held=True))
    with pytest.raises(UserError, match="was taken over by pid"):
        _until(lambda: not one.scalars())
    _save(tmp_path / "one", 5)
    assert one.close(0.3)
    assert not bucket.names(f"{name}/checkpoints")


def test_a_directory_half_filled_by_a_killed_start_is_filled_anew(
    bucket: Bucket, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = _host(tmp_path, "one"), _host(tmp_path, "two")
    first = Mirror(f"gs://{name}", one)
    _save(one, 5)
    assert first.close(10) == ""
    with monkeypatch.context() as patch:
        patch.setattr(copies, "fetch", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            Mirror(f"gs://{name}", two)
    assert not (two / "checkpoints").exists()
    second = Mirror(f"gs://{name}", two)
    assert second.close(10) == ""
    assert _files(two) == _files(one)
    assert bucket.get(f"{name}/checkpoints/5.json")


def test_what_the_bucket_has_damaged_or_lost_is_passed_over(
    bucket: Bucket, name: str, tmp_path: Path
) -> None:
    one = _host(tmp_path, "one")
    first = Mirror(f"gs://{name}", one)
    checkpoints = Checkpointer(one / "checkpoints", CheckpointConfig(keep=3), own=True)
    state = {"w": jnp.arange(4096.0)}
    for step in (1, 2, 3):
        checkpoints.save(step, jax.tree.map(lambda w, step=step: w + step, state), metadata={})
    checkpoints.wait()
    assert first.close(10) == ""
    objects = [bucket.names(f"{name}/checkpoints/{step}/state/d/")[0] for step in (2, 3)]
    data = bytearray(bucket.get(objects[0]) or b"")
    data[len(data) // 2] ^= 1
    bucket.put(objects[0], bytes(data))
    Folder("gs://bucket").remove([objects[1].removeprefix("bucket/")])
    assert reader.find(f"gs://{name}", "1").manifest.leaves["w"]
    with pytest.raises(UserError, match=r"checkpoint .*2 is unusable: w .*other steps there: 1, 3"):
        reader.load(reader.find(f"gs://{name}", "2"), ["w"])
    second = Mirror(f"gs://{name}", _host(tmp_path, "two"))
    checkpoints = Checkpointer(tmp_path / "two" / "checkpoints", CheckpointConfig(), own=True)
    restored = checkpoints.restore(jax.eval_shape(lambda: state))
    assert restored is not None
    assert restored.step == 1
    assert restored.state["w"].tolist() == (state["w"] + 1).tolist()
    assert second.close(10) == ""


def test_a_run_that_ends_while_its_bucket_is_away_says_so_and_sends_the_rest_later(
    bucket: Bucket, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "_AT_END", 0.5)
    one, steps = _host(tmp_path, "one"), itertools.count(5)

    def run(stop: Preemption) -> None:
        with mirror.mirrored(f"gs://{name}", one, stop):
            _save(one, next(steps))
            bucket.set(readonly=name)

    with pytest.raises(UserError, match=rf"gs://{name} has .*{one} has all .*same command") as no:
        run(Preemption())
    assert no.value.status == IO_ERROR
    # A SIGTERM that comes while it waits: the machine is about to be taken away.
    bucket.set()
    monkeypatch.setattr(mirror, "_AT_END", 600.0)
    monkeypatch.setattr(mirror, "GRACE", 0.5)
    told = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM))
    with Preemption() as stop:
        told.start()
        with pytest.raises(UserError, match=r"has no checkpoint, .*same command") as no:
            run(stop)
        told.join()
    assert no.value.status == INTERRUPTED
    bucket.set()
    with mirror.mirrored(f"gs://{name}", one, Preemption()):
        pass
    assert bucket.get(f"{name}/checkpoints/6.json")


def test_a_run_is_finished_after_its_last_checkpoint_is_there(
    bucket: Bucket, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, send = _host(tmp_path, "one"), copies.send

    def slow(folder: Folder, path: Path) -> copies.Files:
        if path.name == "5":  # meanwhile the run ends
            _save(one, 10)
            (one / "finished.json").write_text("{}")
            bucket.set(readonly=f"{name}/checkpoints/10")
        return send(folder, path)

    monkeypatch.setattr(copies, "send", slow)
    first = Mirror(f"gs://{name}", one)
    _save(one, 5)
    _until(lambda: bucket.get(f"{name}/checkpoints/5.json") is not None)
    _until(lambda: bool(first._away))
    assert bucket.get(f"{name}/finished.json") is None
    bucket.set()
    assert first.close(10) == ""
    assert bucket.get(f"{name}/finished.json")


def test_an_error_that_nobody_expects_is_tried_again_and_is_no_success(
    bucket: Bucket, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = _host(tmp_path, "one")
    first = Mirror(f"gs://{name}", one)
    with monkeypatch.context() as patch:
        patch.setattr(copies, "send", lambda *_: {}["can't start new thread"])
        _save(one, 5)
        _until(lambda: bool(first._away))
    _until(lambda: bucket.get(f"{name}/checkpoints/5.json") is not None)
    monkeypatch.setattr(copies, "send", lambda *_: {}["can't start new thread"])
    _save(one, 10)
    assert "step 5, " in first.close(0.3)


def test_nothing_is_sent_after_the_end(
    bucket: Bucket, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_lock, "LEASE", 20.0)
    one = _host(tmp_path, "one")
    first = Mirror(f"gs://{name}", one)
    bucket.set(latency_ms=300)
    _save(one, 5)
    for number in range(64):
        (one / "checkpoints" / "5" / f"{number}").write_bytes(b"0")
    _until(lambda: len(bucket.names(f"{name}/checkpoints/5/")) > 0)
    assert first.close(0.01)
    time.sleep(0.7)  # what was under way
    there = bucket.names(name)
    assert len(there) < 60
    time.sleep(0.7)
    assert bucket.names(name) == there
    last = json.loads(bucket.get(bucket.names(f"{name}/.lock")[0]) or b"")
    assert last["held"]  # until it expires


def test_what_a_start_that_was_killed_has_not_emptied_is_not_the_run(
    bucket: Bucket, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = _host(tmp_path, "one"), _host(tmp_path, "two")
    for host, step in ((one, 5), (two, 8)):
        mirrored = Mirror(f"gs://{name}", host)
        _save(host, step)
        assert mirrored.close(10) == ""
    with monkeypatch.context() as patch:
        patch.setattr(Mirror, "_begin", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            Mirror(f"gs://{name}", one)
    again = Mirror(f"gs://{name}", one)
    assert _files(one) == _files(two)
    assert again.close(10) == ""


def test_parts_that_several_processes_left_are_no_checkpoints_of_one(
    bucket: Bucket, name: str, tmp_path: Path
) -> None:
    one, two = _host(tmp_path, "one"), _host(tmp_path, "two")
    first = Mirror(f"gs://{name}", one)
    _save(one, 5)
    assert first.close(10) == ""
    mark = one / ".staging"
    mark.write_text(f"{mark.read_text()[:-2]} 2")
    (one / "checkpoints" / "5" / "_METADATA").write_text("a part")
    _save(one, 10)
    again = Mirror(f"gs://{name}", one)
    assert again.close(10) == ""
    assert bucket.get(f"{name}/checkpoints/5/_METADATA") == b"5"
    assert not bucket.names(f"{name}/checkpoints/10")
    assert Mirror(f"gs://{name}", two).close(10) == ""
    assert _files(one) == _files(two)


def test_a_bucket_that_was_emptied_empties_no_staging_directory(
    bucket: Bucket, name: str, tmp_path: Path
) -> None:
    one = _host(tmp_path, "one")
    first = Mirror(f"gs://{name}", one)
    _save(one, 5)
    assert first.close(10) == ""
    folder, before = Folder(f"gs://{name}"), _files(one)
    folder.remove(folder.names())
    for _ in range(2):
        with pytest.raises(UserError, match=rf"{name} is empty, and .*one has the run at step 5: "):
            Mirror(f"gs://{name}", one)
    assert _files(one) == before


def test_what_is_deleted_in_the_bucket(
    bucket: Bucket, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, steps = _host(tmp_path, "one"), tmp_path / "one" / "checkpoints"
    first = Mirror(f"gs://{name}", one)
    bucket.set(readonly=f"{name}/checkpoints/5.json")
    _save(one, 5)
    _until(lambda: bool(first._away))
    assert bucket.names(f"{name}/checkpoints/5/")
    shutil.rmtree(steps / "5")  # skipped: the bucket is slow
    bucket.set()
    for step in (6, 10):
        _save(one, step)
    _until(lambda: first.scalars() == {"run/bucket_lag_steps": 0.0})
    _until(lambda: not bucket.names(f"{name}/checkpoints/5"))
    with first._still:  # a checkpoint takes another's place
        (steps / "6").rename(steps / "6.other")
        time.sleep(0.3)
        (steps / "6.other").rename(steps / "6")
    with monkeypatch.context() as patch:
        # Another process's part of a third is still to come.
        patch.setattr(first, "_send_one", lambda *_: None)
        _save(one, 15)
        shutil.rmtree(steps / "10")
        time.sleep(0.3)
        assert bucket.get(f"{name}/checkpoints/6.json")
        assert bucket.get(f"{name}/checkpoints/10.json")
    (steps / "6").rename(steps / "6.damaged")  # the bucket's may be intact
    assert first.close(10) == ""
    assert not bucket.names(f"{name}/checkpoints/10")
    assert bucket.get(f"{name}/checkpoints/6.json")


@pytest.mark.parametrize("whole", [True, False])
def test_another_process_ends_when_the_checkpoint_is_whole(
    bucket: Bucket, name: str, tmp_path: Path, *, whole: bool
) -> None:
    one = _host(tmp_path, "one")
    second = Mirror(f"gs://{name}", one)
    second._index, second._count = 1, 2
    _save(one, 5)
    _until(lambda: bucket.get(f"{name}/checkpoints/5/part_1.json") is not None)
    if whole:  # process 0 has found all parts
        bucket.put(f"{name}/checkpoints/5.json", b"{}")
    assert (second.close(10 if whole else 0.5) == "") == whole


def test_a_reader_passes_over_what_is_deleted_meanwhile(
    bucket: Bucket, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (5, 10):
        bucket.put(f"{name}/checkpoints/{step}/_METADATA", b"5")
        bucket.put(f"{name}/checkpoints/{step}.json", b'{"files": {"_METADATA": 1}}')
    names = Folder.names
    ghosts = {"checkpoints/3.json": 1}
    monkeypatch.setattr(Folder, "names", lambda self, below="": names(self, below) | ghosts)
    Folder(f"gs://{name}").remove(["checkpoints/5/_METADATA"])
    place, _ = copies.readable(f"gs://{name}")
    assert (place / "checkpoints" / "10" / "_METADATA").exists()


def test_a_bucket_that_is_not_there_or_not_ours_is_one_line(
    bucket: Bucket, name: str, tmp_path: Path
) -> None:
    one = _host(tmp_path, "one")
    with refused_by("storage.remote.trying") as caught:
        Mirror("gs://missing/run", one)
    assert "gs://missing/run/" in str(caught.value)
    bucket.set(readonly=name)
    with refused_by("storage.remote.trying") as caught:
        Mirror(f"gs://{name}", one)
    assert f"gs://{name}/" in str(caught.value)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
