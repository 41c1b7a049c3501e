# SPDX-License-Identifier: Apache-2.0
"""A run that finds no room to save goes on and tries again; what it must save ends it, told.

The system refuses the writes: files may not grow beyond a size. On a disk that is truly full
tests/integration/checkpoints/test_checkpointer.py and tests/faults/soak.py try the same.
"""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.painted import get_config, paint
from tests.unit.train.test_early_stop import digests, scores
from vit_jax.checkpoints.checkpointer import Checkpointer, SaveFailed
from vit_jax.cli.parsing import flags as cli_flags
from vit_jax.config.tree import Config
from vit_jax.train.loop import Result, fit

ROOM = 20_000  # bytes: more than the log takes, less than a checkpoint's arrays


@contextlib.contextmanager
def no_room(but: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (but, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def full_while_saving(first: int, but: int = ROOM) -> Iterator[None]:
    """Have no room from the save of a step on, until the next one or the end of the block."""
    save = Checkpointer.save
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as full:

        def between(self: Checkpointer, step: int, *args: Any, **kwargs: Any) -> bool:
            if step >= first and self._pending is not None:
                self._pending.join()  # the save before this one
            full.close()
            if step == first:
                full.enter_context(no_room(but))
            return save(self, step, *args, **kwargs)

        patch.setattr(Checkpointer, "save", between)
        yield


def saved(run: Path) -> list[str]:
    # What a failed save's threads still write after its removal goes at the next save or start:
    # tests/integration/checkpoints/test_checkpointer.py.
    names = (entry.name for entry in (run / "checkpoints").iterdir())
    return sorted(name for name in names if name.isdecimal())


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Path, Result]:
    root = tmp_path_factory.mktemp("full")
    for name, level in (("a", 0), ("b", 255)):
        paint(root / "train" / name, [level] * 4)
    cfg = get_config(str(root))
    return cfg, root / "run", fit(cfg, root / "run")


@pytest.mark.parametrize("step", [2, 5])
def test_training_goes_on_and_the_next_save_is_tried(
    reference: tuple[Config, Path, Result],
    step: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cfg, whole, result = reference
    with full_while_saving(step):
        again = fit(cfg, tmp_path / "run")
    assert again.status == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("warning: could")]
    place = tmp_path / "run" / "checkpoints"
    told = f"warning: could not save the checkpoint of step {step} to {place} (needs up to 0.1 MB, "
    assert line.startswith(told)
    assert f" MB free; newest intact: step {step - 1}): File too large" in line
    assert saved(tmp_path / "run") == [str(i) for i in range(1, 7) if i != step]
    assert digests(again) == digests(result)
    assert scores(tmp_path / "run") == scores(whole)


def test_what_must_be_saved_ends_the_run_and_the_same_command_goes_on(
    reference: tuple[Config, Path, Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg, whole, result = reference

    def command() -> None:
        with full_while_saving(6):
            fit(cfg, tmp_path / "run")

    assert cli_flags.run(command, ["main.py"]) == SaveFailed.status == 74
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: could not save the checkpoint of step 6 to ")
    assert "newest intact: step 5" in line
    assert saved(tmp_path / "run") == ["1", "2", "3", "4", "5"]
    assert not (tmp_path / "run" / "finished.json").exists()
    assert digests(fit(cfg, tmp_path / "run")) == digests(result)
    assert saved(tmp_path / "run") == ["1", "2", "3", "4", "5", "6"]
    assert scores(tmp_path / "run") == scores(whole)


def test_a_log_without_room_ends_the_run_and_the_same_command_goes_on(
    reference: tuple[Config, Path, Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg, whole, result = reference
    log = tmp_path / "run" / "metrics.jsonl"

    def command() -> None:
        with full_while_saving(2, but=10):
            fit(cfg, tmp_path / "run")

    assert cli_flags.run(command, ["main.py"]) == 74
    expected = f"error: {log}: File too large; make room, then start the same command again\n"
    assert capsys.readouterr().err == expected
    assert digests(fit(cfg, tmp_path / "run")) == digests(result)
    assert scores(tmp_path / "run") == scores(whole)


def test_a_last_save_that_cannot_begin_ends_the_run_too(
    reference: tuple[Config, Path, Result],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cfg, _, result = reference
    place, away = tmp_path / "run" / "checkpoints", tmp_path / "away"
    save = Checkpointer.save

    def gone(self: Checkpointer, step: int, *args: Any, **kwargs: Any) -> bool:
        if step == 6:
            self.wait()
            place.rename(away)
            place.write_text("")  # no folder can be made in it
        return save(self, step, *args, **kwargs)

    monkeypatch.setattr(Checkpointer, "save", gone)
    assert cli_flags.run(lambda: fit(cfg, tmp_path / "run").status, ["main.py"]) == 74
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: could not save the checkpoint of step 6 to ")
    assert line.endswith(": Not a directory")
    assert not (tmp_path / "run" / "finished.json").exists()
    monkeypatch.undo()
    place.unlink()
    away.rename(place)
    assert digests(fit(cfg, tmp_path / "run")) == digests(result)
