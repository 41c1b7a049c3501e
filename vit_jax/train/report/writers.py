# SPDX-License-Identifier: Apache-2.0
"""Writers of metrics: JSON lines always; TensorBoard, Weights & Biases, Trackio on request."""

import contextlib
import hashlib
import importlib
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, SupportsFloat, runtime_checkable

import jax

from vit_jax.config.tree import LogConfig
from vit_jax.errors import UserError
from vit_jax.process import escapes
from vit_jax.storage import files, foreign
from vit_jax.workdir import folder as workdir_lib

_MOST = 1 << 30  # bytes of a metrics file


@runtime_checkable
class MetricWriter(Protocol):
    """Writes scalars by name, such as `train/loss`, at increasing steps."""

    def write(self, step: int, scalars: Mapping[str, SupportsFloat]) -> None:
        """Add the scalars of a step."""

    def close(self) -> None:
        """Write what is left and release; nothing may be written after."""


class JsonlWriter:
    """Writes a line a call: `{"step": 50, "train/loss": 1.2, ...}`; a non-finite value is null."""

    def __init__(self, path: Path, *, step: int = 0) -> None:
        """Open `path` for a run that continues after `step`; drops later lines."""
        self._path = path
        if path.exists():  # drop incomplete lines too
            kept = [json.dumps(row) + "\n" for row in read_jsonl(path) if row["step"] <= step]
            files.write(path, "".join(kept))
        # At this step the final evaluations may repeat; times differ in each process.
        self._resumed = step
        names = {name for row in read_jsonl(path) if row["step"] == step for name in row}
        self._written = {name for name in names if not name.startswith("perf/")}
        self._file = path.open("a", encoding="utf-8")

    def write(self, step: int, scalars: Mapping[str, SupportsFloat]) -> None:
        """Write and flush a line, so that a kill loses nothing."""
        written = self._written if step == self._resumed else ()
        values = {name: float(value) for name, value in scalars.items() if name not in written}
        if not values:
            return
        finite = {n: value if math.isfinite(value) else None for n, value in values.items()}
        with self._named():
            self._file.write(json.dumps({"step": step, **finite}) + "\n")
            self._file.flush()

    def close(self) -> None:
        with self._named():
            self._file.close()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # a full disk does not name the file
            error.filename = str(self._path)
            raise


class TensorBoardWriter:
    """TensorBoard event files, through tensorboardX."""

    def __init__(self, directory: Path, *, step: int = 0) -> None:
        """Open a new event file, which makes TensorBoard drop events after `step`."""
        # tensorboardX imports torch if that is installed, which takes seconds; None forbids it.
        torch = sys.modules.setdefault("torch", None)  # pyright: ignore[reportArgumentType]
        try:
            from tensorboardX import SummaryWriter
        finally:
            if torch is None:
                del sys.modules["torch"]
        # TensorBoard reads files in the order of their names, which have whole seconds only.
        suffix = f".{time.time_ns()}"
        # Its thread writes to disk every second, so that a kill loses no more.
        self._writer = SummaryWriter(
            str(directory), purge_step=step + 1, filename_suffix=suffix, flush_secs=1
        )

    def write(self, step: int, scalars: Mapping[str, SupportsFloat]) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(escapes.terminal(name), float(value), step)

    def close(self) -> None:
        self._writer.close()


class WandbWriter:
    """Writes to Weights & Biases; a workdir is one run there, however often it is resumed."""

    def __init__(self, project: str, directory: Path, *, run_config: Mapping[str, Any]) -> None:
        """Start or continue the run; raises UserError: the package wandb is not installed."""
        wandb = _imported("wandb", project)
        self._run = wandb.init(
            project=project,
            dir=str(directory),
            name=directory.name,
            id=_identity(directory),
            resume="allow",
            config=dict(run_config),
        )

    def write(self, step: int, scalars: Mapping[str, SupportsFloat]) -> None:
        """Send the scalars; wandb itself ignores steps that it already has."""
        self._run.log({name: float(value) for name, value in scalars.items()}, step=step)

    def close(self) -> None:
        self._run.finish()


class TrackioWriter:
    """Writes to Trackio on this machine; a workdir is one run there, however often it is resumed.

    `trackio show` opens its page. TRACKIO_DIR is where it keeps its files.
    """

    def __init__(
        self, project: str, directory: Path, *, run_config: Mapping[str, Any], sent: int = 0
    ) -> None:
        """Start or continue the run, which has the lines up to step `sent`.

        Raises UserError: the package trackio is not installed.
        """
        trackio = _imported("trackio", project)
        self._sent = sent
        self._run = trackio.init(
            project=project,
            # All that tells runs apart.
            name=f"{directory.name}-{_identity(directory)[:6]}",
            resume="allow",
            config=dict(run_config),
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def write(self, step: int, scalars: Mapping[str, SupportsFloat]) -> None:
        """Send the scalars, unless a killed process did before its run was continued."""
        if step > self._sent:
            self._run.log({name: float(value) for name, value in scalars.items()}, step=step)

    def close(self) -> None:
        self._run.finish()


def _imported(package: str, project: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        field = f"log.{package}_project"
        raise UserError(
            f"{field}={project!r} needs the package {package}: "
            f"pip install {package}, or leave {field} empty"
        ) from None


def _identity(directory: Path) -> str:
    """Return 16 characters that stand for a workdir, wherever it is named from."""
    return hashlib.sha256(str(directory.absolute()).encode()).hexdigest()[:16]


class Writers:
    """Writes to several writers, in order, or to none."""

    def __init__(self, writers: Sequence[MetricWriter]) -> None:
        self._writers = tuple(writers)

    def write(self, step: int, scalars: Mapping[str, SupportsFloat]) -> None:
        for writer in self._writers:
            writer.write(step, scalars)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


def make_writer(
    cfg: LogConfig, workdir: Path, *, step: int = 0, run_config: Mapping[str, Any] | None = None
) -> MetricWriter:
    """Open the writers that `cfg` names for a run that continues after `step`.

    Only process 0 of a run writes. `run_config` is shown by Weights & Biases and Trackio.

    Raises UserError: `cfg` asks for a package that is not installed.
    """
    if jax.process_index() != 0:
        return Writers(())
    workdir.mkdir(parents=True, exist_ok=True)
    writers: list[MetricWriter] = []
    lines, own = workdir / workdir_lib.METRICS, run_config or {}
    if cfg.wandb_project:  # these first: they may raise
        writers.append(WandbWriter(cfg.wandb_project, workdir, run_config=own))
    if cfg.trackio_project:
        sent = max((row["step"] for row in read_jsonl(lines)), default=0)
        project = cfg.trackio_project
        writers.append(TrackioWriter(project, workdir, run_config=own, sent=sent))
    writers.append(JsonlWriter(lines, step=step))
    if cfg.tensorboard:
        writers.append(TensorBoardWriter(workdir / workdir_lib.TENSORBOARD, step=step))
    return Writers(writers)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read the whole rows of a metrics file, if there is one; None is a non-finite value."""
    if not path.exists():
        return []
    rows = []
    for line in foreign.read(path, _MOST).decode(errors="replace").split("\n"):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    return rows
