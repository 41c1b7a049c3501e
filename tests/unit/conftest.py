# SPDX-License-Identifier: Apache-2.0
"""Unit tests start no process and compile nothing large; one that does fails with one line."""

import multiprocessing.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy.testing  # noqa: F401  (before 2.3 its import asks lscpu, which no test may start)
import pytest

_STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system")
# Lines of StableHLO. A count is the same on every machine, which seconds are not: programs of
# 500 to 800 lines compile in 0.1 s on the machine that the limit was measured on, and the smallest
# model's forward pass has more than 1,000. JAX 0.12 writes out up to a sixth more than 0.10.
LARGEST = 1_000
_running: list[str] = []  # the unit test that runs, if one does


def _on_audit(event: str, args: Any) -> None:
    if event in _STARTS and _running:
        _no_process(args[0] if args else event)


def _no_process(what: Any) -> None:
    pytest.fail(f"a unit test starts no process, and this one starts {what}", pytrace=False)


sys.addaudithook(_on_audit)


@pytest.fixture(scope="session")
def _programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # One folder: as many as there are tests take half a minute to remove from a busy disk.
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(autouse=True)
def _is_small(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, _programs: Path
) -> Iterator[None]:
    # multiprocessing starts its processes by a call that raises no audit event.
    monkeypatch.setattr(multiprocessing.util, "spawnv_passfds", lambda path, *_: _no_process(path))
    _dump_programs(_programs)
    _running.append(request.node.nodeid)
    try:
        yield
    finally:
        _running.clear()
        _dump_programs(None)
    lines = {path.name: _take(path).count(b"\n") for path in _programs.iterdir()}
    name = max(lines, key=lines.__getitem__, default="")
    if name and lines[name] > LARGEST:
        pytest.fail(
            f"a unit test compiles at most {LARGEST} lines of StableHLO, and this one compiles "
            f"{lines[name]} ({name}); it belongs to tests/integration",
            pytrace=False,
        )


def _take(path: Path) -> bytes:
    text = path.read_bytes()
    path.unlink()
    return text


def _dump_programs(folder: Path | None) -> None:
    if "jax" in sys.modules:
        config = sys.modules["jax"].config
        config.update("jax_dump_ir_to", str(folder or ""))
        # They are a half of the lines that are counted.
        config.update("jax_traceback_in_locations_limit", 10 if folder else 0)
