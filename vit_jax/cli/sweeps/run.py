# SPDX-License-Identifier: Apache-2.0
"""`sweep run`: workers that train what has not finished, or one point of an array job."""

import concurrent.futures
import copy
import dataclasses
import time
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any

import jax

from vit_jax.cli.parsing import options
from vit_jax.cli.parsing.options import Options, flag
from vit_jax.cli.sweeps import plan as sweep_plan
from vit_jax.cli.sweeps import status as sweep_status
from vit_jax.cli.sweeps.plan import SweepFile
from vit_jax.errors import UserError
from vit_jax.process import escapes, startup
from vit_jax.process.preemption import INTERRUPTED
from vit_jax.settings import config_files
from vit_jax.storage.bucket import address
from vit_jax.sweeps import in_bucket, point, queue, results
from vit_jax.sweeps.grid import Overrides
from vit_jax.sweeps.point import Point
from vit_jax.sweeps.queue import claim
from vit_jax.sweeps.results import State
from vit_jax.sweeps.trial import Stopping
from vit_jax.sweeps.worker import Worker


@dataclasses.dataclass(kw_only=True)
class RunSweep(Options):
    """Trains every run of FILE, or of the manifest in DIR, that has not finished.

    Start it as often and on as many machines as you like, with one shared DIR.
    --config.FIELD=VALUE sets a field of all runs of FILE. Exit status: 0 all have finished, 1 some
    failed, 75 stopped by a signal (the same command continues).
    """

    target: Path = flag(
        Path(), "a file of configs/sweeps, or a sweep", "[FILE|DIR]", ask=sweep_plan.NO_FILE
    )
    out: Path | None = flag(None, "where FILE's runs are kept", "DIR")
    workers: int = flag(1, "runs at a time on this machine", least=1)
    index: int | None = flag(None, "train line N of the manifest alone, counted from 0")
    trust_config: bool = flag(
        False,
        "run the config files that a manifest names though they lie neither in configs/ nor below "
        "the current directory, or lie in the sweep: they are programs",
    )


def run(given: RunSweep, extra: Overrides) -> int:
    """Train what has not finished; returns the exit status."""
    # The devices are the runs': a process that only looks at a GPU takes most of its memory.
    jax.config.update("jax_platforms", "cpu")
    file, place, own = _open(given.target, given.out, extra)
    search = file if file is not None and file.search is not None else None
    if search is not None and given.index is not None:
        raise UserError(f"{search.path} is a search: its points come up as it runs; drop --index")
    with Stopping() as stopping:
        workers = []
        for i in range(given.workers):
            log, gpus = _log(i, given.workers), queue.share(i, given.workers)
            workers.append(Worker(place, stopping, time.time(), gpus, log))
        if search is not None:
            _each(workers, lambda worker, i: _search(worker, i, search, extra))
        points = point.read_manifest(place)
        if search is None and not given.trust_config:
            _check_configs(place, points, own)
        if given.index is not None:
            points = [_train_one(workers[0], points, given.index)]
        elif search is None:
            _print(sweep_status.summary(results.read(place, points)))
            _each(workers, lambda worker, _: worker.run_grid(points))
    return _conclude(place, points, stopped=stopping.requested)


def _check_configs(place: Path, points: Sequence[Point], own: Set[str]) -> None:
    """Raise UserError for a config that only the manifest names, and that may be a stranger's."""
    apart = [place, startup.cache_home() / "vit_jax"]
    for config in dict.fromkeys(each.config for each in points if each.config not in own):
        if not config_files.is_trusted(config, apart):
            raise UserError(
                f"{place / point.MANIFEST} names the config {config}, a program that lies neither "
                f"in configs/ nor below {Path.cwd()} outside of the sweep; read it, and where you "
                "trust it add --trust_config, or start the sweep's own FILE"
            )


def _open(
    target: Path, out: Path | None, extra: Overrides
) -> tuple[SweepFile | None, Path, Set[str]]:
    """Read the file, where one is named, and write its manifest.

    Returns it with the directory, and the configs that it names.
    """
    if target.is_dir() or address(target):
        if out is not None or extra:
            flag = "--out" if out is not None else "--config.FIELD"
            raise UserError(f"{target} has its manifest; {flag} is for a sweep file")
        place = in_bucket.opened(target)
        point.read_manifest(place)
        return None, place, set()
    file = sweep_plan.read(target)
    if out is None:
        raise UserError(f"where to? add --out=DIR for the runs of {target}")
    place = in_bucket.opened(out)
    place.mkdir(parents=True, exist_ok=True)
    if file.search is not None:
        return file, place, set()
    made = sweep_plan.points(file, None, extra)
    sweep_plan.write(place, made)
    return file, place, {each.config for each in made}


def _each(workers: Sequence[Worker], work: Any) -> None:
    """Let every worker work, each in a thread with its share of the cores, until all have ended."""

    def begin(i: int) -> None:
        queue.keep_to_cores(i, len(workers))
        try:
            work(workers[i], i)
        except BaseException:
            workers[i].stopping.stop()  # the others' runs are saved before this error is printed
            raise

    with concurrent.futures.ThreadPoolExecutor(len(workers)) as pool:
        for future in [pool.submit(begin, i) for i in range(len(workers))]:
            future.result()


def _search(worker: Worker, i: int, file: SweepFile, extra: Overrides) -> None:
    """Train what the file's search proposes, adding each point to the manifest."""
    sampler = copy.deepcopy(file.sampler)  # its random numbers are one worker's
    drawing = {"sampler": sampler, "pruner": file.pruner, "maximize": file.maximize}
    study = queue.open_study(worker.place, **drawing)
    queue.begin_sampling(study, i)

    def propose(trial: Any) -> Point:
        overrides = sweep_plan.propose(file, trial, extra)
        name = point.names([trial.params])[0]  # what was drawn, not what all runs share
        made = sweep_plan.make(file, overrides, name, None)
        point.add_to_manifest(worker.place, made)
        return made

    worker.run_search(study, file.trials, propose, prunes=file.pruner is not None)


def _train_one(worker: Worker, points: list[Point], index: int) -> Point:
    """Train a point unless it has finished, and return it."""
    if not 0 <= index < len(points):
        raise UserError(f"--index={index}: the manifest has lines 0 to {len(points) - 1}")
    chosen = points[index]
    with claim(worker.place, chosen.run) as descriptor:
        if descriptor is None:
            busy = f"{chosen.name} ({chosen.run}) is being trained by another worker"
            refusal = UserError(f"{busy}; the same command goes on if that one does not finish it")
            refusal.status = INTERRUPTED  # a scheduler that was too quick tries again
            raise refusal
        if not results.is_finished(chosen.workdir(worker.place)):
            worker.train(chosen, descriptor)
    return chosen


def _conclude(place: Path, points: Sequence[Point], *, stopped: bool) -> int:
    """Print how the runs ended, and return the exit status."""
    in_bucket.pull(place)
    found = results.read(place, points)
    _print(sweep_status.summary(found))
    failed = [result for result in found if result.state is State.FAILED]
    for result in failed:
        log = result.point.workdir(place) / "output.txt"
        _print(f"failed: {result.point.name}: {result.note}; see {log}")
    if stopped:
        _print("stopped; the same command continues")
        return INTERRUPTED
    return 1 if failed else 0


def _print(text: str) -> None:
    print(escapes.terminal(text), flush=True)


def _log(worker: int, count: int) -> Callable[[str], None]:
    return _print if count == 1 else lambda text: _print(f"worker {worker + 1}: {text}")


main = options.verb(RunSweep, run, sweep_plan.read_options)
