# SPDX-License-Identifier: Apache-2.0
"""Whoever reads what a run prints may go away: a pipe, a terminal; a log may refuse a line."""

import contextlib
import errno
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.test_signals import config
from tests.integration.train.test_processes import ARGS, ROOT, start
from vit_jax.checkpoints import storage
from vit_jax.process.preemption import INTERRUPTED
from vit_jax.train.loop import fit
from vit_jax.train.report.writers import JsonlWriter, read_jsonl

LONG = ("--config.duration=100000 steps", "--config.optim.warmup=2 steps")


def steps(run: Path) -> list[int]:
    return sorted(int(e.name) for e in (run / "checkpoints").iterdir() if e.name.isdecimal())


@pytest.mark.slow
def test_a_run_outlives_the_reader_of_its_output(tmp_path: Path) -> None:
    process = start(tmp_path / "run", 1)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()  # as `| head -1` does
    assert process.wait(timeout=120) == 0
    assert (tmp_path / "run" / "finished.json").exists()
    assert steps(tmp_path / "run")[-1] == 8


@pytest.mark.slow
def test_a_run_needs_no_standard_output_and_no_room_for_its_errors(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [sys.executable, "main.py", f"--workdir={run}", *ARGS]
    shell = ["sh", "-c", 'exec "$@" >&- 2>/dev/full', "sh", *words]
    assert subprocess.run(shell, cwd=ROOT, timeout=120, check=False).returncode == 0
    assert steps(run)[-1] == 8


def descendants(process: int) -> list[int]:
    """List the processes that a process has started, and those that they have."""
    file = Path(f"/proc/{process}/task/{process}/children")
    children = [int(child) for child in file.read_text().split()]
    return children + [each for child in children for each in descendants(child)]


def training(process: subprocess.Popen, run: Path) -> None:
    deadline = time.monotonic() + 120
    while len(read_jsonl(run / "metrics.jsonl")) < 3:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)


@contextlib.contextmanager
def hangup(action: signal.Handlers) -> Iterator[None]:
    """Start processes that inherit an action, whatever these tests have inherited."""
    before = signal.signal(signal.SIGHUP, action)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
def test_a_closed_terminal_stops_a_run_unless_it_is_told_to_go_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    workers = ("--config.data.num_workers=1", "--config.evals.val.every=3 steps")
    with hangup(signal.SIG_DFL):
        process = start(run, 1, *LONG, *workers)
    training(process, run)
    for each in (*descendants(process.pid), process.pid):  # as the kernel sends it, to all
        os.kill(each, signal.SIGHUP)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == INTERRUPTED, output
    newest = steps(run)[-1]
    assert f"stopped by SIGHUP: saved step {newest:,}" in output
    with hangup(signal.SIG_IGN):  # as `nohup` does
        process = start(run, 1, *LONG)
    read = len(read_jsonl(run / "metrics.jsonl"))
    while len(read_jsonl(run / "metrics.jsonl")) <= read:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == INTERRUPTED, output
    assert "stopped by SIGTERM" in output


def test_a_log_that_cannot_be_written_leaves_the_save_under_way_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, write = storage.save_async, JsonlWriter.write

    def slow(*args: object) -> object:
        complete = save(*args)

        def later() -> None:
            time.sleep(1.0)
            complete()

        return later

    def failing(self: JsonlWriter, step: int, scalars: dict) -> None:
        if step == 3:
            raise OSError(errno.EIO, "Input/output error", "metrics.jsonl")
        write(self, step, scalars)

    monkeypatch.setattr(storage, "save_async", slow)
    monkeypatch.setattr(JsonlWriter, "write", failing)
    cfg = config()
    cfg.checkpoint.every = "2 steps"
    with pytest.raises(OSError, match="Input/output error"):
        fit(cfg, tmp_path / "run")
    assert steps(tmp_path / "run") == [2]
    monkeypatch.undo()
    assert fit(cfg, tmp_path / "run").status == 0


def test_lines_come_when_they_are_written_where_nothing_is_buffered() -> None:
    code = (
        "import sys; from vit_jax.process.output import outlive_readers\n"
        "with outlive_readers():\n"
        "    print('warning: one', file=sys.stderr); print('two')\n"
        "    sys.stdin.read()\n"
    )
    for extra in ({"PYTHONUNBUFFERED": "1"}, {}):
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        words, env = [sys.executable, "-c", code], {**environment, **extra}
        with subprocess.Popen(words, cwd=ROOT, env=env, text=True, **pipes) as process:
            assert process.stderr is not None
            assert process.stdout is not None
            assert select.select([process.stderr], [], [], 60)[0], "the line was held back"
            assert process.stderr.readline() == "warning: one\n"
            if extra:
                assert select.select([process.stdout], [], [], 60)[0], "the line was held back"
                assert process.stdout.readline() == "two\n"
            process.communicate("")
            assert process.returncode == 0
