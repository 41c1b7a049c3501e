# SPDX-License-Identifier: Apache-2.0
"""The queue of a sweep: an Optuna study in a journal file, shared by any number of workers.

The manifest and the runs' directories are the truth; the journal hands out what is to do, and
remembers the results for Optuna's samplers. A worker that dies leaves its trial RUNNING. A run that
finished is COMPLETE, one that was stopped or failed by itself PRUNED, which samplers take for a bad
one; FAIL is a trial that counts for nothing.

Workers share the points, each trained by the one that claims it, and a machine's devices.
"""

import contextlib
import fcntl
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vit_jax.errors import UserError, install
from vit_jax.storage import foreign
from vit_jax.sweeps import in_bucket
from vit_jax.sweeps.in_bucket import CLAIMS, locked
from vit_jax.sweeps.point import RUNS
from vit_jax.workdir import folder as workdir

JOURNAL = "queue.log"
_RUN = "run"  # a trial's attribute: which run of the sweep it stands for
_LOCK_SECONDS = 5  # after which the journal's lock was left by a worker that was killed
_STARTING = 120.0  # seconds, after which a trial without a run has lost its worker
_GPUS = "CUDA_VISIBLE_DEVICES"
_GLANCE = 0.2  # seconds, longer than a reader of a claim holds its lock


def optuna() -> Any:
    """Import Optuna, of which a training run has no need; raises UserError: it is not installed."""
    try:
        import optuna
    except ImportError:
        what = f"workers need optuna: {install('sweep')}"
        without = "sweep plan, status, report and run --index do without"
        raise UserError(f"{what}; {without}") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def open_study(
    place: Path, *, sampler: Any = None, pruner: Any = None, maximize: bool = False
) -> Any:
    """Open the study of the sweep in `place`, or begin it."""
    package = optuna()
    if url := workdir.address(place):
        backend = in_bucket.Journal(url)
    else:
        path = str((place / JOURNAL).absolute())  # the journal's lock is a link that names it
        journal = package.storages.journal
        lock = journal.JournalFileSymlinkLock(path, grace_period=_LOCK_SECONDS)
        backend = journal.JournalFileBackend(path, lock_obj=lock)
    storage = package.storages.JournalStorage(backend)
    settings = {"study_name": "sweep", "direction": "maximize" if maximize else "minimize"}
    settings |= {"sampler": sampler, "pruner": pruner, "load_if_exists": True}
    try:
        return package.create_study(storage=storage, **settings)
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        why = f"{type(error).__name__}: {error}"
        what = f"{url or place / JOURNAL}: the sweep's queue cannot be read ({why})"
        raise UserError(f"{what}; delete it, and runs go on as their directories tell") from None


def fill(study: Any, runs: Iterable[str]) -> None:
    """Put runs at the end of the queue, but for those that wait there already."""
    waiting = {trial.user_attrs.get(_RUN) for trial in _trials(study, "WAITING")}
    for run in runs:
        if run not in waiting:
            study.enqueue_trial({}, user_attrs={_RUN: run})


def take(study: Any) -> tuple[Any, str] | None:
    """Take the next run off the queue, with its trial; None when it is empty."""
    while _trials(study, "WAITING"):
        trial = study.ask()
        if isinstance(trial.user_attrs.get(_RUN), str):
            return trial, trial.user_attrs[_RUN]
        drop(study, trial)  # another worker was quicker: a new trial, of nothing
    return None


def begin_sampling(study: Any, worker: int) -> None:
    """Let a worker draw other numbers than those before it: a sampler's seed is for the first."""
    if worker > 0 or study.get_trials(deepcopy=False):
        study.sampler.reseed_rng()


def ask(study: Any, most: int) -> Any | None:
    """Start a trial for a search to fill in: one of a dead worker, or a new one.

    Returns None when `most` have been handed out.
    """
    trial = study.ask()
    counted = sorted(t.number for t in _trials(study, "WAITING", "RUNNING", "COMPLETE", "PRUNED"))
    if trial.number in counted[:most]:
        return trial
    drop(study, trial)
    return None


def assign(trial: Any, run: str) -> None:
    """Write into a search's trial which run it is."""
    trial.set_user_attr(_RUN, run)


def orphans(study: Any) -> list[tuple[Any, str | None]]:
    """List the trials marked RUNNING, with their runs; without a run, the old ones alone."""
    started = time.time() - _STARTING
    return [
        (trial, trial.user_attrs.get(_RUN))
        for trial in _trials(study, "RUNNING")
        if _RUN in trial.user_attrs or trial.datetime_start.timestamp() < started
    ]


def again(study: Any, trial: Any) -> None:
    """Queue the parameters of a dead worker's trial for another trial."""
    study.enqueue_trial(trial.params)
    drop(study, trial)


def drop(study: Any, trial: Any) -> None:
    """End a trial that counts for nothing: its run belongs to another one."""
    end(study, trial, None, state="FAIL")


def end(study: Any, trial: Any, value: float | None, *, state: str = "PRUNED") -> None:
    """End a trial with its run's last value, or a state: None where it stopped early or failed."""
    kind = optuna().trial.TrialState[state] if value is None else None
    with contextlib.suppress(ValueError):  # somebody else has ended it: so be it
        study.tell(trial.number, value, state=kind)


def _trials(study: Any, *states: str) -> list[Any]:
    kinds = tuple(optuna().trial.TrialState[state] for state in states)
    return study.get_trials(deepcopy=False, states=kinds)


@contextlib.contextmanager
def claim(place: Path, run: str) -> Iterator[int | None]:
    """Hold a run of the sweep in `place` alone; yields the lock's descriptor, or None if held.

    A process that inherits it holds the lock too: a run outlives its worker, and starts only once.
    """
    path = foreign.inside(place, f"{CLAIMS}/{run}", str(place))
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+", encoding="utf-8") as file:
        if not locked(file.fileno()):
            time.sleep(_GLANCE)
            if not locked(file.fileno()):
                yield None
                return
        file.truncate(0)
        file.write(f"pid {os.getpid()} on {socket.gethostname()}")
        file.flush()
        with in_bucket.claim(place, place / RUNS / run) as free:
            yield file.fileno() if free else None


def holder(place: Path, run: str, *, sure: bool = True) -> str | None:
    """Return which process has claimed a run; None where it is free; see `in_bucket.holder`."""
    path = foreign.inside(place, f"{CLAIMS}/{run}", str(place))
    with contextlib.suppress(FileNotFoundError), open(path, errors="replace") as file:
        if not locked(file.fileno(), fcntl.LOCK_SH):
            return file.read(200) or "a worker"
    return in_bucket.holder(place, run, sure=sure) or None


def share(worker: int, count: int) -> Mapping[str, str]:
    """Return the variables by which a worker's runs see its GPUs only; none without GPUs.

    Raises UserError: more workers than GPUs.
    """
    files = re.findall(r"(?m)^nvidia(\d+)$", "\n".join(os.listdir("/dev")))
    gpus = sorted(files, key=int)
    if _GPUS in os.environ:
        gpus = [gpu for gpu in os.environ[_GPUS].split(",") if gpu]
    if not gpus or count == 1:
        return {}
    if count > len(gpus):
        raise UserError(f"--workers={count}, but here are {len(gpus)} GPUs; one worker needs one")
    return {_GPUS: ",".join(gpus[worker::count])}


def keep_to_cores(worker: int, count: int) -> None:
    """Keep this thread, and what it starts, to its part of the cores: faster than turns."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []  # Linux
    if 1 < count <= len(cores):
        os.sched_setaffinity(0, cores[worker::count])
