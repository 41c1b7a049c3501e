# SPDX-License-Identifier: Apache-2.0
"""From nothing to the first batch, and the memory that loading takes, beside other loaders.

    python -m benchmarks.first_batch

Each trial is a process of its own, with the images in the page cache and without (their files'
pages are dropped, those of the libraries are not). It starts, imports, opens the dataset and takes
a batch of 64; then it opens it again, now without imports; then it takes batches until all buffers
are full, and the memory of it and of its workers is counted: PSS, in which what processes share
counts once.
"""

import argparse
import json
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import photos, pipeline_ours, record, stored_pipeline, turns

_SIZES = {"batch_size": 64, "batches": 8}
_STARTS = ("files in memory", "files on the disk")


class Trial(NamedTuple):
    """Seconds of a cold start and of a second one in the same process, and MiB of memory."""

    start: float
    again: float
    main: float
    worker: float


def sides(folder: str) -> dict[str, tuple[turns.Make, dict[str, Any]]]:
    """Return by name what each loader does: ours in each format, and the peers."""
    ours: dict[str, tuple[turns.Make, dict[str, Any]]] = {}
    for kind, settings in stored_pipeline.names(folder).items():
        for workers in (0, record.num_cores()):
            how = f"{workers} workers" if workers else "threads"
            ours[f"{kind}, {how}"] = pipeline_ours.make, {**settings, "workers": workers}
    return ours | stored_pipeline.peers(folder)


def run(folder: str, name: str) -> Trial:
    """Start a process that takes its first batch by a loader; raises RuntimeError: it failed."""
    command = [sys.executable, "-m", "benchmarks.first_batch", "--child", name, "--data", folder]
    begin = time.time()
    done = subprocess.run(
        [*command, "--begin", str(begin)], capture_output=True, text=True, timeout=120
    )
    told = re.search(r"^told (.*)$", done.stdout, re.MULTILINE)
    if told is None:
        raise RuntimeError(f"{name}: {done.stderr[-500:]}")
    return Trial(*json.loads(told[1]))


def child(folder: str, name: str, begin: float) -> None:
    """Do what a trial does; prints the numbers."""
    make, settings = sides(folder)[name]
    make(**settings, **_SIZES)
    start = time.time() - begin
    before = time.perf_counter()
    _, turn = make(**settings, **_SIZES)
    again = time.perf_counter() - before
    turn()
    # The workers of the second opening, whose numbers are higher than those of the first.
    children = [each.pid for each in multiprocessing.active_children() if each.pid]
    newest = sorted(children)[-record.num_cores() :]
    workers = [_memory(pid) for pid in newest]
    print("told", json.dumps([start, again, _memory(os.getpid()), max(workers, default=0.0)]))
    sys.stdout.flush()
    for each in multiprocessing.active_children():
        each.kill()
    os._exit(0)  # some loaders wait for their workers


def _memory(pid: int) -> float:
    """Return the proportional set size of a process in MiB."""
    told = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(r"^Pss:\s+(\d+) kB", told, re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def forget(folder: Path) -> None:
    """Drop the pages of all files of a folder from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def measure(folder: Path, rounds: int, chosen: Sequence[str]) -> list[record.Row]:
    """Let all loaders start in turns."""
    load = os.getloadavg()[0]
    trials: dict[tuple[str, str], list[Trial]] = {}
    for cold in _STARTS:
        for _ in range(rounds):
            for name in chosen:
                if cold == _STARTS[1]:
                    forget(folder)
                try:
                    trials.setdefault((cold, name), []).append(run(str(folder), name))
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    print(str(error)[:300])
    rows = []
    for cold in _STARTS:
        got = {name: each for (start, name), each in trials.items() if start == cold}
        rows += _rows(cold, got, stored_pipeline.peers(""), load)
    return rows


def _rows(
    cold: str, got: dict[str, list[Trial]], peers: dict[str, Any], load: float
) -> list[record.Row]:
    rows = []
    parts: list[tuple[str, str, Callable[[Trial], float]]] = [
        (f"command to the first batch, {cold}", "s", lambda trial: trial.start),
        (f"opening to the first batch, {cold}", "s", lambda trial: trial.again),
    ]
    if cold == _STARTS[0]:
        parts += [
            ("memory of the main process", "MiB", lambda trial: trial.main),
            ("memory of a worker", "MiB", lambda trial: trial.worker),
        ]
    for what, unit, of in parts:
        values = {
            name: statistics.median(map(of, each))
            for name, each in got.items()
            if all(of(trial) for trial in each)
        }
        theirs = {name: value for name, value in values.items() if name in peers}
        for name, value in values.items():
            if name in peers:
                continue
            best = min(theirs, key=lambda each: theirs[each], default=None)
            rows.append(
                record.Row(
                    work=f"{name}: {what}",
                    unit=unit,
                    ours=value,
                    peer=best,
                    peer_value=None if best is None else theirs[best],
                    ratio=None if best is None else value / theirs[best],
                    peer_settings="; ".join(f"{key} {each:.3g}" for key, each in theirs.items()),
                    load=load,
                )
            )
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_batch")
    parser.add_argument("--images", type=int, default=1500, help="files made for it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", help="what a trial's own process takes a batch by")
    parser.add_argument("--data", type=Path, help="images that were made before")
    parser.add_argument("--begin", type=float, default=0.0)
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    args = parser.parse_args(argv)
    if args.child:
        child(str(args.data), args.child, args.begin)
        return
    with tempfile.TemporaryDirectory() as made:
        folder = args.data or Path(made)
        if not args.data:
            photos.write_photos(folder, args.images)
            stored_pipeline.write(folder)
        chosen = list(sides(str(folder)))
        for name in chosen:  # writes what is mapped or of TFRecord, and fills caches
            try:
                print(name, run(str(folder), name), flush=True)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(str(error)[:300])
        rows = measure(folder, args.rounds, chosen)
    peers = ("tensorflow", "tensorflow-cpu", "webdataset", "torch", "datasets")
    record.report(rows, args.out, turns.installed(*peers))


if __name__ == "__main__":
    main()
