# SPDX-License-Identifier: Apache-2.0
"""A signal in any phase of a run is heeded at the next step's end, and nothing is lost.

Between steps, and to processes of their own, tests/smoke/test_runs.py sends it.
"""

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from tests.unit.train import test_early_stop
from tests.unit.train.test_early_stop import digests, scores
from vit_jax.config.tree import Config
from vit_jax.process.preemption import INTERRUPTED
from vit_jax.train.loop import Result, fit

STEPS = 4


def config(every: int = 2) -> Config:
    cfg = test_early_stop.config(patience=0)
    cfg.duration, cfg.evals["val"].every = f"{STEPS} steps", f"{every} steps"
    cfg.log.every = "3 steps"  # each stop is between two lines of the log, or at the end
    return cfg


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    workdir = tmp_path_factory.mktemp("reference") / "run"
    return fit(config(), workdir), workdir


class Sender(logging.Handler):
    """Sends SIGTERM to this process while jax compiles a function."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._told = f"Compiling jit({name})"
        self.sent = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self.sent and self._told in record.getMessage():
            self.sent = True
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def _spared() -> Iterator[None]:
    """Let a signal that a run does not take end a test, not all of them."""

    def refuse(*_: object) -> None:
        raise AssertionError("nobody took the signal")

    before = signal.signal(signal.SIGTERM, refuse)
    jax.config.update("jax_log_compiles", True)
    yield
    jax.config.update("jax_log_compiles", False)
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("_spared")
@pytest.mark.parametrize(
    "compiled, every, step, told",
    [
        ("init", 2, 0, "nothing to save"),
        ("train_step", 2, 1, "saved step 1"),
        ("score_batch", 2, 2, "saved step 2"),
        ("score_batch", STEPS, STEPS, f"saved step {STEPS}"),
    ],
    ids=["before the first step", "first compilation", "evaluation", "last evaluation"],
)
def test_the_run_stops_and_goes_on_with_the_same_bits(
    reference: tuple[Result, Path],
    compiled: str,
    every: int,
    step: int,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sender = Sender(compiled)
    logging.getLogger("jax").addHandler(sender)
    try:
        stopped = fit(config(every), tmp_path / "run")
    finally:
        logging.getLogger("jax").removeHandler(sender)
    assert sender.sent
    assert (stopped.status, stopped.step) == (INTERRUPTED, step)
    assert told in capsys.readouterr().out
    whole, where = reference
    again = fit(config(every), tmp_path / "run")
    assert again.status == 0
    assert digests(again) == digests(whole)
    due = [row for row in scores(where) if not (row[1].startswith("val") and row[0] % every)]
    assert scores(tmp_path / "run") == due
