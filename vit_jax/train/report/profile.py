# SPDX-License-Identifier: Apache-2.0
"""A trace of some steps of a run, for TensorBoard's profile page (XProf)."""

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from vit_jax.errors import UserError

FOLDER = "profile"  # in the workdir
_OWN = ".process{}"  # in it, while the trace is written
_STEP = "train"  # what XProf groups by, with the step's number


@dataclasses.dataclass(frozen=True)
class Window:
    """`count` steps from step `first` on, numbered as in the log: a run begins with step 1."""

    first: int
    count: int

    @property
    def last(self) -> int:
        """The last step of the trace."""
        return self.first + self.count - 1

    def __str__(self) -> str:
        """Write it as the command line does."""
        return f"--profile={self.first},{self.count}"

    def folder(self, workdir: Path) -> Path:
        """Return the folder of the trace, which TensorBoard lists as one run's profile."""
        return workdir / FOLDER / f"plugins/profile/steps_{self.first}_to_{self.last}"


def read_window(text: str) -> Window:
    """Read the value of --profile; raises UserError: not two whole numbers, or one below 1."""
    try:
        first, count = map(int, text.split(","))
    except ValueError:
        form = "two whole numbers STEP,COUNT, such as --profile=100,5"
        raise UserError(f"--profile={text} must be {form}") from None
    if first < 1 or count < 1:
        must = "STEP and COUNT must be at least 1 (the first step is 1)"
        raise UserError(f"--profile={text}: {must}")
    return Window(first, count)


def check(window: Window | None, workdir: Path, *, start: int, total: int) -> Window | None:
    """Return the window that a run still has to trace if it continues after `start` steps.

    None without a window, or if the window had begun before the run was interrupted: its trace is
    on disk, or was lost with a killed process.

    Raises UserError: steps that this run will not execute.
    """
    if window is None:
        return None
    if window.last > total:
        raise UserError(f"{window} ends with step {window.last:,}; the run ends with {total:,}")
    if window.first <= start:
        if window.folder(workdir).is_dir() or any((workdir / FOLDER).glob(_OWN.format("*"))):
            return None
        raise UserError(
            f"{window} begins before step {start + 1:,}, where {workdir} continues; choose a later "
            "step or another workdir"
        )
    return window


class Profiler:
    """Traces a window of steps; without one a step costs only its annotation.

    Every process writes its own files into `Window.folder`. However the run ends, `close` writes
    the steps traced so far.
    """

    def __init__(
        self,
        window: Window | None,
        workdir: Path,
        *,
        wait: Callable[[], None],
        log: Callable[[str], None],
    ) -> None:
        """Start no trace; `wait` waits for the steps on the device, `log` prints a line."""
        self._window, self._wait, self._log = window, wait, log
        self._folder = workdir / FOLDER
        self._own_folder = self._folder / _OWN.format(jax.process_index())
        self._traced: int | None = None  # the last step of the open trace

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Trace the step inside if the window contains it."""
        window = self._window
        if window is not None and number == window.first:
            self._wait()  # the device still executes earlier steps
            shutil.rmtree(self._own_folder, ignore_errors=True)  # of a killed process
            self._own_folder.mkdir(parents=True)  # a later process sees that the trace was begun
            jax.profiler.start_trace(self._own_folder)
            self._traced = number
        with jax.profiler.StepTraceAnnotation(_STEP, step_num=number):
            yield
        if self._traced is not None:
            self._traced = number
            if window is not None and number == window.last:
                self._wait()
                self.close()

    def close(self) -> None:
        """Write the open trace, if there is one."""
        window, traced = self._window, self._traced
        if window is None or traced is None:
            return
        self._traced = None
        jax.profiler.stop_trace()
        folder = window.folder(self._folder.parent)
        folder.mkdir(parents=True, exist_ok=True)
        for file in self._own_folder.rglob("*"):
            if file.is_file():
                # By the host's name alone, two processes of one host would overwrite each other.
                file.replace(folder / f"process{jax.process_index()}.{file.name}")
        shutil.rmtree(self._own_folder)
        steps = f"{window.first:,} to {traced:,}"
        self._log(f"profile of steps {steps}: tensorboard --logdir={self._folder}")
