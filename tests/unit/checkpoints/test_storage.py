# SPDX-License-Identifier: Apache-2.0
"""A save counts when it can be read; what the system does not let be read is not damaged."""

import contextlib
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import refused_by
from vit_jax.checkpoints import CheckpointConfig, reader, storage
from vit_jax.checkpoints.checkpointer import Checkpointer, SaveFailed
from vit_jax.checkpoints.manifest import Inaccessible, Manifest
from vit_jax.errors import IO_ERROR

STATE = {"params": {"kernel": jnp.arange(4096.0).reshape(64, 64), "bias": jnp.ones(4)}}


def abstract() -> dict:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), STATE)


def saved(directory: Path, steps: tuple[int, ...] = (1, 2), keep: int = 9) -> Checkpointer:
    checkpoints = Checkpointer(directory, CheckpointConfig(keep=keep))
    for step in steps:
        checkpoints.save(step, STATE, metadata={"at": step})
    checkpoints.wait()
    return checkpoints


def restored_step(directory: Path, **settings: int) -> int:
    restored = Checkpointer(directory, CheckpointConfig(**settings)).restore(abstract())
    assert restored is not None
    np.testing.assert_array_equal(restored.state["params"]["kernel"], STATE["params"]["kernel"])
    return restored.step


def listing(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_a_path_that_is_no_text_is_refused(tmp_path: Path) -> None:
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff/checkpoints"))
    with refused_by("checkpoints.config.check_path"):
        saved(place, (1,))


def test_a_save_that_cannot_be_read_back_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where Orbax ends without merging what its processes wrote."""
    save = storage.save_async

    def lossy(path: Path, *args: object) -> object:
        complete = save(path, *args)

        def without_manifest() -> None:
            complete()
            (path / "state" / "manifest.ocdbt").unlink()

        return without_manifest

    checkpoints = saved(tmp_path, (1,))
    monkeypatch.setattr(storage, "save_async", lossy)
    checkpoints.save(2, STATE, metadata={})
    with pytest.raises(SaveFailed, match=r"step 2 .*newest intact: step 1.*cannot be read back"):
        checkpoints.wait()
    assert checkpoints.steps() == [1]
    monkeypatch.undo()
    checkpoints.save(3, STATE, metadata={})
    checkpoints.wait()
    assert checkpoints.steps() == [1, 3]


def test_a_list_of_arrays_that_cannot_be_decoded_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_RETRIES", ())
    saved(tmp_path, (1,))
    manifest = storage.read_manifest(tmp_path / "1")
    storage.read_back(tmp_path / "1", manifest)
    (tmp_path / "1" / "state" / "manifest.ocdbt").write_bytes(b"none")
    with pytest.raises(storage.Damaged):
        storage.read_back(tmp_path / "1", manifest)


def test_a_record_is_of_the_moment_and_may_hold_what_is_not_finite(tmp_path: Path) -> None:
    checkpoints = Checkpointer(tmp_path, CheckpointConfig())
    metadata: dict = {"losses": [1.0, float("nan")]}
    checkpoints.save(1, STATE, metadata=metadata, metrics={"val/loss": float("nan")})
    metadata["losses"].append(2.0)
    checkpoints.wait()
    assert len(checkpoints.metadata(1)["losses"]) == 2


def test_a_record_that_is_not_what_was_saved_is_a_failed_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "read_manifest", lambda path: Manifest({}, {"at": 2}, {}))
    with pytest.raises(SaveFailed, match="its metadata is not what was saved"):
        saved(tmp_path, (1,))


def loop(file: Path) -> None:
    """Make a file one that the system does not open, for root neither: a link to itself."""
    file.unlink()
    file.symlink_to(file.name)


@pytest.mark.parametrize("file", ["_CHECKPOINT_METADATA", "state/manifest.ocdbt"])
def test_what_cannot_be_opened_is_neither_damaged_nor_removed(tmp_path: Path, file: str) -> None:
    saved(tmp_path)
    shutil.copy(tmp_path / "2" / file, tmp_path / "copy")
    loop(tmp_path / "2" / file)
    before = listing(tmp_path)
    with pytest.raises(Inaccessible, match=r"checkpoint .*/2: .* \(errno 40\)") as error:
        Checkpointer(tmp_path, CheckpointConfig(keep=1)).restore(abstract())
    assert error.value.status == IO_ERROR
    with pytest.raises(Inaccessible, match="errno 40"):
        reader.load(reader.find(tmp_path, "2"), ["params/bias"])
    assert listing(tmp_path) == before
    (tmp_path / "2" / file).unlink()
    shutil.move(tmp_path / "copy", tmp_path / "2" / file)
    assert restored_step(tmp_path) == 2


@contextlib.contextmanager
def no_file_to_open() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_process_without_files_to_open_finds_no_damage(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path)
    before = listing(tmp_path)
    with no_file_to_open(), pytest.raises(Inaccessible, match=r"Too many open files \(errno 24\)"):
        checkpoints.restore(abstract())
    assert checkpoints.steps() == [1, 2]
    assert listing(tmp_path) == before


def test_a_failure_of_a_moment_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path)
    load, failures = storage.ocp.load, [ValueError("as if a file were missing")]

    def once(*args: object) -> object:
        if failures:
            raise failures.pop()
        return load(*args)

    monkeypatch.setattr(storage.ocp, "load", once)
    assert restored_step(tmp_path) == 2


@pytest.mark.parametrize(
    "error, told",
    [
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory"), "out of memory"),
        (TimeoutError("the barrier"), "the barrier"),
        (RuntimeError("can't start new thread"), "errno 11"),
        (MemoryError(), "errno 12"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_what_the_machine_lacks_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    saved(tmp_path)
    before = listing(tmp_path)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(storage.ocp, "load", fail)
    checkpoints = Checkpointer(tmp_path, CheckpointConfig(keep=1))
    with pytest.raises(Inaccessible, match=told):
        checkpoints.restore(abstract())
    assert checkpoints.steps() == [1, 2]
    assert listing(tmp_path) == before


def test_a_save_that_cannot_be_opened_is_neither_counted_nor_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = saved(tmp_path, (1,))

    def fail(*_: object) -> None:
        raise Inaccessible("errno 24")

    monkeypatch.setattr(storage, "read_back", fail)
    checkpoints.save(2, STATE, metadata={})
    with pytest.raises(SaveFailed, match=r"step 2 .*newest intact: step 1.*errno 24"):
        checkpoints.wait()
    monkeypatch.undo()
    assert checkpoints.steps() == [1]
    checkpoints.save(3, STATE, metadata={})
    checkpoints.wait()
    assert Checkpointer(tmp_path, CheckpointConfig()).steps() == [1, 2, 3]


def test_opening_a_run_changes_nothing_in_it(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "3.orbax-checkpoint-tmp" / "state").mkdir(parents=True)  # another's save
    before = listing(tmp_path)
    checkpoints = Checkpointer(tmp_path, CheckpointConfig())
    assert checkpoints.restore(abstract()).step == 2
    assert listing(tmp_path) == before


def test_a_disk_that_is_gone_is_a_failed_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = saved(tmp_path / "run", (1,))
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(SaveFailed, match=r"unknown MB free"):
        checkpoints.save(2, STATE, metadata={})


def test_a_damaged_checkpoint_is_set_aside_under_a_free_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "2.damaged").mkdir()
    saved(tmp_path)
    (tmp_path / "2" / "state" / "manifest.ocdbt").write_bytes(b"none")
    checkpoints = Checkpointer(tmp_path, CheckpointConfig(keep=1))
    checkpoints.restore(abstract())
    checkpoints.save(3, STATE, metadata={})
    checkpoints.wait()
    assert (tmp_path / "2.damaged2" / "state" / "manifest.ocdbt").read_bytes() == b"none"
    assert [m for m in caplog.messages if "kept as" in m] == [
        f"checkpoint 2 is damaged and kept as {tmp_path / '2.damaged2'}"
    ]
    assert not (tmp_path / "1").exists()  # intact, and not to be kept: deleted
