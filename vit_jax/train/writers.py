# SPDX-License-Identifier: Apache-2.0
"""Where metrics go: a JSON-lines file always, TensorBoard and Weights & Biases when asked."""

import contextlib
import hashlib
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, SupportsFloat, runtime_checkable

import jax

from vit_jax import files
from vit_jax.config import LogConfig
from vit_jax.errors import UserError
from vit_jax.train import workdir as workdir_lib


@runtime_checkable
class MetricWriter(Protocol):
    """Takes scalars by name, such as `train/loss`, at increasing steps."""

    def write(self, step: int, scalars: Mapping[str, SupportsFloat]) -> None:
        """Add the scalars of a step."""
        ...

    def close(self) -> None:
        """Write what is left and release; nothing may be written after."""
        ...


class JsonlWriter:
    """One line a call: `{"step": 50, "train/loss": 1.2, ...}`; a non-finite value is null."""

    def __init__(self, path: Path, *, step: int = 0) -> None:
        """Open `path` for a run that continues after `step`, dropping all that came later."""
        self._path = path
        _drop_after(path, step)
        # What is repeated at the step where the run goes on: the evaluations that end a run.
        self._again = step
        # Not the times, which are of another process each time.
        self._written = {
            name
            for row in read_jsonl(path)
            if row["step"] == step
            for name in row
            if not name.startswith("perf/")
        }
        self._file = path.open("a", encoding="utf-8")

    def write(self, step: int, scalars: Mapping[str, SupportsFloat]) -> None:
        """Write the line out at once: a kill loses nothing."""
        known = self._written if step == self._again else ()
        values = {name: float(value) for name, value in scalars.items() if name not in known}
        if not values:
            return
        finite = {n: value if math.isfinite(value) else None for n, value in values.items()}
        with self._named():
            self._file.write(json.dumps({"step": step, **finite}) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        with self._named():
            self._file.close()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # a full disk does not say of which file
            error.filename = str(self._path)
            raise


class TensorBoardWriter:
    """TensorBoard event files, through tensorboardX."""

    def __init__(self, directory: Path, *, step: int = 0) -> None:
        """Open a new event file, at which TensorBoard forgets what came after `step`."""
        with _hidden("torch"):  # which it imports where it is, seconds of a start, to log tensors
            from tensorboardX import SummaryWriter

        # TensorBoard reads files in the order of their names, which else have whole seconds only.
        suffix = f".{time.time_ns()}"
        # Its thread writes to disk every second: a kill loses no more.
        self._writer = SummaryWriter(
            str(directory), purge_step=step + 1, filename_suffix=suffix, flush_secs=1
        )

    def write(self, step: int, scalars: Mapping[str, SupportsFloat]) -> None:
        """Queue the events."""
        for name, value in scalars.items():
            self._writer.add_scalar(name, float(value), step)

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


@contextlib.contextmanager
def _hidden(package: str) -> Iterator[None]:
    """Let imports inside take a package that is not imported yet for one that is not installed."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # pyright: ignore[reportArgumentType]  (Python's own convention)
    try:
        yield
    finally:
        del sys.modules[package]


class WandbWriter:
    """Weights & Biases; a workdir is one run there, however often it is resumed."""

    def __init__(self, project: str, directory: Path, *, run_config: Mapping[str, Any]) -> None:
        """Start or continue the run.

        Raises:
            UserError: the package wandb is not installed.
        """
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise UserError(
                f"log.wandb_project={project!r} needs the package wandb: "
                "pip install wandb, or leave log.wandb_project empty"
            ) from None
        self._run = wandb.init(
            project=project,
            dir=str(directory),
            name=directory.name,
            id=hashlib.sha256(str(directory.absolute()).encode()).hexdigest()[:16],
            resume="allow",
            config=dict(run_config),
        )

    def write(self, step: int, scalars: Mapping[str, SupportsFloat]) -> None:
        """Send the scalars; wandb itself ignores steps that it already has."""
        self._run.log({name: float(value) for name, value in scalars.items()}, step=step)

    def close(self) -> None:
        """End the run there."""
        self._run.finish()


class _Multi:
    def __init__(self, writers: Sequence[MetricWriter]) -> None:
        self._writers = tuple(writers)

    def write(self, step: int, scalars: Mapping[str, SupportsFloat]) -> None:
        for writer in self._writers:
            writer.write(step, scalars)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


def multi(writers: Sequence[MetricWriter]) -> MetricWriter:
    """Write to all of them, in order; to none, silently, if there are none."""
    return _Multi(writers)


def make_writer(
    cfg: LogConfig, workdir: Path, *, step: int = 0, run_config: Mapping[str, Any] | None = None
) -> MetricWriter:
    """Open every writer that `cfg` asks for, for a run that continues after `step`.

    Only process 0 of a run writes. `run_config` is shown by Weights & Biases.

    Raises:
        UserError: `cfg` asks for wandb and it is not installed.
    """
    if jax.process_index() != 0:
        return multi([])
    workdir.mkdir(parents=True, exist_ok=True)
    writers: list[MetricWriter] = []
    if cfg.wandb_project:  # first, as it may refuse
        writers.append(WandbWriter(cfg.wandb_project, workdir, run_config=run_config or {}))
    writers.append(JsonlWriter(workdir / workdir_lib.METRICS, step=step))
    if cfg.tensorboard:
        writers.append(TensorBoardWriter(workdir / workdir_lib.TENSORBOARD, step=step))
    return multi(writers)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read the whole lines of a metrics file; what a kill or a full disk tore is left out.

    A non-finite value is None. A file that does not exist holds nothing.
    """
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    return rows


def _drop_after(path: Path, step: int) -> None:
    """Keep whole lines up to `step`."""
    if not path.exists():
        return
    kept = [json.dumps(row) + "\n" for row in read_jsonl(path) if row["step"] <= step]
    files.write(path, "".join(kept))
