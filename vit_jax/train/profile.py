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
_OWN = ".process{}"  # in it, while the trace is taken
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

    def place(self, workdir: Path) -> Path:
        """Return where the trace is kept: TensorBoard lists this folder as one run's profile."""
        name = f"steps_{self.first}_to_{self.last}"
        return workdir / FOLDER / "plugins" / "profile" / name


def read_window(text: str) -> Window:
    """Read the value of --profile.

    Raises:
        UserError: not two whole numbers, or one below 1.
    """
    try:
        first, count = (int(part) for part in text.split(","))
    except ValueError:
        raise UserError(
            f"--profile={text} must be two whole numbers STEP,COUNT, such as --profile=100,5"
        ) from None
    if first < 1 or count < 1:
        raise UserError(
            f"--profile={text}: STEP and COUNT must be at least 1 (the first step is 1)"
        )
    return Window(first, count)


def check(window: Window | None, workdir: Path, *, start: int, total: int) -> Window | None:
    """Return what is still to be traced by a run that continues after `start` of `total` steps.

    None where nothing was asked for, or the window was begun before the run was interrupted: its
    trace is written, or lost with a process that was killed.

    Raises:
        UserError: steps that this run will not do.
    """
    if window is None:
        return None
    if window.last > total:
        raise UserError(f"{window} ends with step {window.last:,}; the run ends with {total:,}")
    if window.first <= start:
        if window.place(workdir).is_dir() or any((workdir / FOLDER).glob(_OWN.format("*"))):
            return None
        raise UserError(
            f"{window} begins before step {start + 1:,}, where {workdir} continues; choose a later "
            "step or another workdir"
        )
    return window


class Profiler:
    """Traces a window of steps; with none it costs a step nothing but its annotation.

    Every process writes files of its own into `Window.place`. Use as a context manager: whatever
    ends the run inside the window, what was traced till then is written.
    """

    def __init__(
        self,
        window: Window | None,
        workdir: Path,
        *,
        wait: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        """Trace nothing yet; `wait` waits for the steps on the device, `say` tells a line."""
        self._window = window
        self._workdir = workdir
        self._wait, self._say = wait, say
        self._traced: int | None = None  # the last step in a trace that is being taken

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Do a step inside: it is traced if the window has it."""
        window = self._window
        if window is not None and number == window.first:
            self._wait()  # what the device still does is of the steps before
            shutil.rmtree(self._own_folder(), ignore_errors=True)  # a kill may have left it
            self._own_folder().mkdir(parents=True)  # tells a later process that it was begun
            jax.profiler.start_trace(self._own_folder())
            self._traced = number
        with jax.profiler.StepTraceAnnotation(_STEP, step_num=number):
            yield
        if self._traced is not None:
            self._traced = number
            if window is not None and number == window.last:
                self._wait()
                self.close()

    def close(self) -> None:
        """Write the trace that is being taken, if there is one."""
        window, traced = self._window, self._traced
        if window is None or traced is None:
            return
        self._traced = None
        jax.profiler.stop_trace()
        place = window.place(self._workdir)
        place.mkdir(parents=True, exist_ok=True)
        for file in self._own_folder().rglob("*"):
            if file.is_file():
                # Named by its host alone, one of two processes on it would be lost.
                file.replace(place / f"process{jax.process_index()}.{file.name}")
        shutil.rmtree(self._own_folder())
        self._say(
            f"profile of steps {window.first:,} to {traced:,}: "
            f"tensorboard --logdir={self._workdir / FOLDER}"
        )

    def _own_folder(self) -> Path:
        return self._workdir / FOLDER / _OWN.format(jax.process_index())
