# SPDX-License-Identifier: Apache-2.0
"""A run whose checkpoints were damaged while it was down goes on from an intact one, or not at all.

What each kind of damage to each file does: tests/integration/checkpoints/test_checkpointer.py; a
flipped bit: tests/smoke/test_runs.py.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import painted
from tests.unit.train import test_early_stop
from tests.unit.train.test_early_stop import digests, scores
from vit_jax.cli.train import main
from vit_jax.config.tree import Config
from vit_jax.train.loop import Result, fit

STOPPED = 4  # of 6 steps: what was saved later is taken away


def config(images: Path) -> Config:
    cfg = painted.get_config(str(images))
    cfg.log.every = "4 steps"  # so that a run going on has some of a line behind it
    return cfg


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Result]:
    """Return the images, the directory of a whole run, and what it ended with."""
    root = tmp_path_factory.mktemp("damaged")
    for name, level in (("a", 0), ("b", 255)):
        painted.paint(root / "images" / "train" / name, [level] * 4)
    return root / "images", root / "run", fit(config(root / "images"), root / "run")


def stopped(whole: Path, place: Path, step: int = STOPPED) -> Path:
    """Copy a run, as if it had been killed after a step; returns the newest checkpoint."""
    shutil.copytree(whole, place)
    (place / "finished.json").unlink()
    steps = [entry for entry in (place / "checkpoints").iterdir() if int(entry.name) > step]
    for entry in steps:
        shutil.rmtree(entry)
    return place / "checkpoints" / str(step)


def flip(checkpoint: Path) -> None:
    """Flip a bit in the middle of the file that holds the arrays."""
    file = max(checkpoint.rglob("d/*"), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def cut(checkpoint: Path) -> None:
    for file in checkpoint.rglob("*"):
        if file.is_file():
            os.truncate(file, file.stat().st_size // 2)


def without_metadata(checkpoint: Path) -> None:
    (checkpoint / "_CHECKPOINT_METADATA").unlink()


def emptied(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()


@pytest.mark.parametrize("damage", [cut, without_metadata, emptied])
def test_the_one_before_is_used_and_the_bits_are_the_same(
    reference: tuple[Path, Path, Result],
    damage: Callable[[Path], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    images, whole, result = reference
    damage(stopped(whole, tmp_path / "run"))
    capsys.readouterr()
    again = fit(config(images), tmp_path / "run")
    assert again.status == 0
    assert f"at step {STOPPED - 1} of 6" in capsys.readouterr().out
    assert digests(again) == digests(result)
    assert scores(tmp_path / "run") == scores(whole)


def test_where_all_are_bad_nothing_starts_anew(
    reference: tuple[Path, Path, Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, whole, _ = reference
    newest = stopped(whole, tmp_path / "run")
    for entry in newest.parent.iterdir():
        (without_metadata if entry == newest else flip)(entry)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    command = ["main.py", f"--config={painted.__file__}:{images}", f"--workdir={tmp_path / 'run'}"]
    capsys.readouterr()
    assert main(command) == 66
    *warnings, line = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: no checkpoint in {newest.parent} is usable (step {STOPPED}: ")
    for step in range(1, STOPPED):
        assert f"step {step}: " in line
    assert line.endswith("bring back a copy, or choose another workdir to start from step 0")
    assert not any("Traceback" in text for text in warnings)
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    assert {p for p in after if before.get(p) != after[p]} <= {tmp_path / "run" / ".lock"}
    assert before.keys() == after.keys()


def test_patience_counts_from_the_checkpoint_that_is_used(tmp_path: Path) -> None:
    """The newest says that the run is to end, the one before that an evaluation is missing."""
    cfg = test_early_stop.config()
    cfg.checkpoint.keep = 2
    del cfg.evals["test"]
    whole = fit(cfg, tmp_path / "whole")
    assert whole.step == 9
    flip(stopped(tmp_path / "whole", tmp_path / "run", 9))
    again = fit(cfg, tmp_path / "run")
    assert (again.step, again.status) == (9, 0)
    assert digests(again) == digests(whole)
    assert scores(tmp_path / "run") == scores(tmp_path / "whole")
