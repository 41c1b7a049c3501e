# SPDX-License-Identifier: Apache-2.0
"""Test top-1 of learning without labels and then from a few, on digits and on drawn letters.

    python -m benchmarks.self_supervised [digits glyphs] [--seeds 0 1 2] [--root runs/unlabelled]

A seed pretrains once with every objective and fine-tunes from it. Only commands that a user types
are run, two side by side, each on a core of its own. Finished runs stay below --root and are not
run again, so that a second call goes on where the first was stopped.
"""

import argparse
import concurrent.futures
import json
import os
import queue
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from benchmarks import digits, glyphs, record
from benchmarks.digits import Row

OBJECTIVES = {"mpp": "MPP", "mae": "MAE", "dino": "DINO", "dinov2": "DINOv2"}
SCRATCH = "scratch"

T = TypeVar("T")


class Study(NamedTuple):
    """A dataset, what learns on it without labels, and the runs that start from that.

    Attributes:
        config: of the objectives, each its argument.
        objectives: the longest first, so that two cores end together.
        tuned: the configs that are fine-tuned by, and what the table calls each.
        scratch: whether these are run without pretraining too.
        num_train: images with labels.
    """

    config: str
    objectives: tuple[str, ...]
    tuned: dict[str, str]
    scratch: bool
    num_train: int


STUDIES = {
    "digits": Study(
        "unlabelled_digits",
        ("dinov2", "dino", "mae", "mpp"),
        {"tenth_digits:plain": "not augmented", "tenth_digits:augmented": "augmented"},
        scratch=False,
        num_train=144,
    ),
    "glyphs": Study(
        "unlabelled_glyphs",
        ("dino", "mpp", "mae"),
        {"unlabelled_glyphs:labelled": "augmented"},
        scratch=True,
        num_train=400,
    ),
}
# Rows of `benchmarks.recipes` that stand beside those on digits.
BESIDE = ("tenth_digits:plain", "tenth_digits:augmented", "tenth_digits:distilled")


def chains(name: str, seeds: Sequence[int]) -> list[tuple[str, int]]:
    """List what is independent: an objective, or no pretraining, and a seed."""
    study = STUDIES[name]
    firsts = [*study.objectives, *([SCRATCH] if study.scratch else [])]
    return [(first, seed) for first in firsts for seed in seeds]


def commands(name: str, first: str, seed: int, root: Path) -> list[list[str]]:
    """Return the words of each command of a chain, the last of which is --workdir."""
    study = STUDIES[name]
    place = root / name / f"{first}-{seed}"
    shared = [f"--config.seed={seed}"]
    if name == "glyphs":
        # By the splits that the published numbers are of.
        shared.append(f"--config.data.name=folder:{root / 'glyphs' / 'images'}?rules=1")
    words = []
    start = []
    if first != SCRATCH:
        workdir = f"--workdir={place / 'pretrained'}"
        words.append(["train", f"--config={study.config}:{first}", *shared, workdir])
        start = [f"--config.init.weights=ckpt:{place / 'pretrained'}"]
    for config in study.tuned:
        workdir = f"--workdir={place / config.rpartition(':')[2]}"
        words.append(["train", f"--config={config}", *shared, *start, workdir])
    return words


def run(words: Sequence[str]) -> None:
    """Run `vit_jax` with these words to its end, unless its workdir holds a finished run.

    Raises CalledProcessError: it failed; its output is in WORKDIR.log.
    """
    workdir = Path(words[-1].removeprefix("--workdir="))
    if (workdir / "finished.json").exists():
        return
    workdir.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{workdir}.log").open("a") as log:
        command = [sys.executable, "-m", "vit_jax", *words]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    with _cpu(workdir).open("a") as file:
        file.write(f"{used.ru_utime + used.ru_stime:.1f}\n")
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    print(f"done: {' '.join(words)}", flush=True)


def train(name: str, seeds: Sequence[int], root: Path) -> None:
    """Run all commands of a study, one chain on each core."""
    images = root / "glyphs" / "images"
    if name == "glyphs" and not images.exists():
        glyphs.main([str(images)])

    def work(chain: tuple[str, int]) -> None:
        for words in commands(name, *chain, root):
            run(words)

    side_by_side(work, chains(name, seeds))


def side_by_side(work: Callable[[T], None], items: Sequence[T], count: int = 2) -> None:
    """Do the work on each item, `count` at a time, each on a core of its own."""
    cores: queue.SimpleQueue[int] = queue.SimpleQueue()
    usable = sorted(os.sched_getaffinity(0))[:count]
    for core in usable:
        cores.put(core)

    def pinned(item: T) -> None:
        core = cores.get()
        os.sched_setaffinity(0, {core})  # of this thread, and of the processes that it starts
        try:
            work(item)
        finally:
            cores.put(core)

    with concurrent.futures.ThreadPoolExecutor(len(usable)) as pool:
        for _ in pool.map(pinned, items):
            pass


def _cpu(workdir: Path) -> Path:
    return Path(f"{workdir}.cpu_seconds")


def cpu_seconds(workdir: Path) -> float:
    """Return the CPU time of a run, all calls together, which no other work lengthens."""
    return sum(map(float, _cpu(workdir).read_text().split()))


def metrics(workdir: Path) -> list[dict[str, Any]]:
    """Read the lines of a run's metrics."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def seconds(rows: Sequence[dict[str, Any]]) -> float:
    """Return the wall time of a run, that before interruptions included."""
    walls = [row["perf/wall_seconds"] for row in rows if "perf/wall_seconds" in row]
    ends = [wall for wall, after in zip(walls, [*walls[1:], 0.0], strict=True) if wall > after]
    return sum(ends)


def neighbours(rows: Sequence[dict[str, Any]]) -> dict[int, float]:
    """Return the kNN top-1 of each step, the moving average's where there is one."""
    key = "knn_ema/knn5" if any("knn_ema/knn5" in row for row in rows) else "knn/knn5"
    return {row["step"]: row[key] for row in rows if key in row}


def _test(rows: Sequence[dict[str, Any]]) -> float:
    return [row["test/top1"] for row in rows if "test/top1" in row][-1]


def collect(name: str, seeds: Sequence[int], root: Path) -> tuple[list[Row], list[dict[str, Any]]]:
    """Read the rows of the table, and the curve and seconds of each objective."""
    study = STUDIES[name]
    firsts = [first for first in OBJECTIVES if first in study.objectives]
    rows = []
    for first in [*([SCRATCH] if study.scratch else []), *firsts]:
        for config, method in study.tuned.items():
            arm = config.rpartition(":")[2]
            read = [metrics(root / name / f"{first}-{seed}" / arm) for seed in seeds]
            start = f"{OBJECTIVES[first]}, then" if first in OBJECTIVES else "from scratch,"
            rows.append(
                Row(
                    method=f"{start} {method}",
                    num_train=study.num_train,
                    top1=tuple(_test(lines) for lines in read),
                    seconds=tuple(seconds(lines) for lines in read),
                )
            )
    curves = []
    for first in firsts:
        read = [metrics(root / name / f"{first}-{seed}" / "pretrained") for seed in seeds]
        found = [neighbours(lines) for lines in read]
        curves.append(
            {
                "objective": first,
                "steps": list(found[0]),
                "knn": [list(points.values()) for points in found],
                "seconds": [seconds(lines) for lines in read],
            }
        )
    return rows, curves


def markdown(content: dict[str, Any], beside: Sequence[Row] = ()) -> str:
    """Lay out the table of a study, and one of its pretraining."""
    rows = [*beside, *(Row(**row) for row in content["rows"])]
    head = ["without labels", "steps", "kNN, mean", "each seed", "seconds"]
    lines = [head, ["---"] * len(head)]
    for curve in content["curves"]:
        ends = [points[-1] for points in curve["knn"]]
        lines.append(
            [
                OBJECTIVES[curve["objective"]],
                f"{curve['steps'][-1]:,}",
                f"{100 * statistics.fmean(ends):.1f} %",
                ", ".join(f"{100 * end:.1f}" for end in ends),
                f"{statistics.fmean(curve['seconds']):.3g}",
            ]
        )
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{digits.markdown(rows)}\n\n{table}"


def tables(results: Path = record.RESULTS) -> dict[str, str]:
    """Return the tables of every study that was measured."""
    measured = json.loads((results / "recipes_digits.json").read_text())["rows"]
    beside = [Row(**row) for row in measured if row["method"].split("`")[1] in BESIDE]
    classical = json.loads((results / "digits.json").read_text())["tenth"]
    beside = [*(Row(**row) for row in classical), *beside]
    return {
        name: markdown(content, beside if name == "digits" else ())
        for name, content in read(results).items()
    }


def read(results: Path) -> dict[str, dict[str, Any]]:
    """Read the files of the studies that were measured."""
    paths = {name: results / f"self_supervised_{name}.json" for name in STUDIES}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("studies", nargs="*", default=list(STUDIES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--root", type=Path, default=Path("runs/unlabelled"))
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    args = parser.parse_args(argv)
    for name in args.studies:
        train(name, args.seeds, args.root)
        rows, curves = collect(name, args.seeds, args.root)
        path = args.out / f"self_supervised_{name}.json"
        digits.save(rows, args.seeds, path)
        content = json.loads(path.read_text()) | {"curves": curves}
        path.write_text(json.dumps(content, indent=1) + "\n")
        print(markdown(content))  # `python -m benchmarks.tables` puts it on the page


if __name__ == "__main__":
    main()
