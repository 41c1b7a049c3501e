# SPDX-License-Identifier: Apache-2.0
"""Token merging on scikit-learn's digits: test top-1 against throughput for several r.

    python -m benchmarks.token_merging [--seeds 0] [--workdir runs/token_merging]

Trains `configs/vit_mu_digits.py` with patches of 4 x 4 (64 tokens), six blocks and 40 epochs, once
plain and once merging, and evaluates both with every r. Runs that the workdir holds are not trained
again. Speed is measured in one process, every r in turn, on batches of 120 images, by the clock and
in CPU seconds, which other programs on the machine disturb less.
"""

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import record, turns

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "token_merging.png"
RESULTS = record.RESULTS / "token_merging_digits.json"
MERGED = (0, 1, 2, 4, 6, 8, 12, 16, 32)
TRAINED = (0, 8)  # what the runs merge while they learn
_BATCH = 120
_PACKAGES = ("jax", "jaxlib", "flax", "numpy")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One r.

    Attributes:
        merged: r, pairs of tokens that each block merges.
        tokens: how many are left after the last block.
        mflops: millions of FLOPs of an image's forward pass.
        images_per_second: the median of the rounds.
        speedup: over r = 0 of the same round, by the clock: the median of the rounds.
        speedup_range: the least and the largest of the rounds.
        cpu_speedup, cpu_speedup_range: likewise, in images per CPU second.
        top1: test top-1 of each seed, by what the run merged while it learned.
    """

    merged: int
    tokens: int
    mflops: float
    images_per_second: float
    speedup: float
    speedup_range: tuple[float, float]
    cpu_speedup: float
    cpu_speedup_range: tuple[float, float]
    top1: dict[str, tuple[float, ...]]


def get_config(merged: int) -> Any:
    """Return the digits run with more and smaller patches, which merges as it learns."""
    from configs import vit_mu_digits

    cfg = vit_mu_digits.get_config()
    cfg.model = dataclasses.replace(cfg.model, patch=(4, 4), depth=6, token_merging=merged)
    cfg.duration = "40 epochs"
    return cfg


def train(seeds: Sequence[int], workdir: Path) -> dict[int, list[Path]]:
    """Train every run that is not there yet; returns the runs, one a seed, by what they merge."""
    from vit_jax.train.loop import fit

    runs: dict[int, list[Path]] = {merged: [] for merged in TRAINED}
    for seed in seeds:
        for merged, paths in runs.items():
            cfg = get_config(merged)
            cfg.seed = seed
            paths.append(workdir / f"merging_{merged}_seed_{seed}")
            fit(cfg, paths[-1])
    return runs


def load_images(trained: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return all test images as the model takes them, uint8, and their labels."""
    from vit_jax.devices import sharding
    from vit_jax.inference import evaluate

    target = evaluate.open_target(trained, split="test", batch_size=_BATCH)
    mesh = sharding.make_mesh(trained.config.mesh)
    batches = list(evaluate.make_evaluator(trained, target, mesh).batches(_BATCH))
    real = np.concatenate([batch["mask"] for batch in batches]) > 0
    image, label = (np.concatenate([b[key] for b in batches])[real] for key in ("image", "label"))
    return image, label


def measure(
    runs: dict[int, list[Path]], values: Sequence[int], rounds: int, seconds: float
) -> list[Row]:
    """Evaluate every run with every r, then time every r in turn."""
    import jax
    import jax.numpy as jnp

    from vit_jax import inference, models
    from vit_jax.cost.flops import forward_flops

    def forward(run: Path, merged: int) -> tuple[Any, Callable[[Any], Any]]:
        trained = inference.load(str(run), overrides={"token_merging": merged})
        return trained, inference.make_forward(trained)

    image, label = load_images(inference.load(str(runs[0][0])))
    batches = [image[start : start + _BATCH] for start in range(0, len(image), _BATCH)]

    def top1(run: Path, merged: int) -> float:
        _, fn = forward(run, merged)
        guesses = [np.asarray(fn(batch).logits).argmax(axis=-1) for batch in batches]
        return float((np.concatenate(guesses) == label).mean())

    scores = {
        merged: {str(kind): tuple(top1(run, merged) for run in runs[kind]) for kind in runs}
        for merged in values
    }
    first = jnp.asarray(batches[0])
    sides = {merged: forward(runs[0][0], merged) for merged in values}
    works = {merged: repeated(fn, first) for merged, (_, fn) in sides.items()}
    done = in_turns(works, rounds, seconds)
    rows = []
    for merged, (trained, fn) in sides.items():
        clock, cpu = (
            [plain[i] / own[i] for plain, own in zip(done[0], done[merged], strict=True)]
            for i in (0, 1)
        )
        size = models.input_shape(trained.model)
        flops = forward_flops(models.create(trained.model), size[:2], size[2])
        rows.append(
            Row(
                merged=merged,
                tokens=jax.eval_shape(fn, first).tokens.shape[1],
                mflops=flops / 1e6,
                images_per_second=len(first) / statistics.median(took for took, _ in done[merged]),
                speedup=statistics.median(clock),
                speedup_range=(min(clock), max(clock)),
                cpu_speedup=statistics.median(cpu),
                cpu_speedup_range=(min(cpu), max(cpu)),
                top1=scores[merged],
            )
        )
    return rows


def repeated(fn: Callable[[Any], Any], image: Any) -> turns.Work:
    """Return what runs a forward pass so many times."""

    def run(count: int) -> None:
        for _ in range(count):
            fn(image).logits.block_until_ready()

    return run


def in_turns(
    works: dict[Any, turns.Work], rounds: int, seconds: float
) -> dict[Any, list[tuple[float, float]]]:
    """Return the (seconds, CPU seconds) of one pass of each work in every round.

    The order is reversed each round.
    """
    counts, done = {}, {key: [] for key in works}
    for key, work in works.items():
        work(2)  # compiles
        start = time.perf_counter()
        work(1)
        counts[key] = max(1, round(seconds / (time.perf_counter() - start)))
    for r in range(rounds):
        for key in works if r % 2 == 0 else reversed(works):
            start, cpu, count = time.perf_counter(), time.process_time(), counts[key]
            works[key](count)
            took, busy = time.perf_counter() - start, time.process_time() - cpu
            done[key].append((took / count, busy / count))
    return done


def markdown(rows: Sequence[Row]) -> str:
    """Lay rows out as a Markdown table, the one of docs/token_merging.md."""
    trained = [
        f"trained with r = {kind}" if kind != "0" else "trained plain" for kind in rows[0].top1
    ]
    speeds = ["images / CPU second", "rounds", "images / s", "rounds"]
    head = ["r", "tokens left", "MFLOPs", *speeds, *(f"top-1, {t}" for t in trained)]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        shares = [f"{100 * statistics.fmean(top1):.1f} %" for top1 in row.top1.values()]
        clock = [f"{row.speedup:.2f} x", "{:.2f}-{:.2f}".format(*row.speedup_range)]
        cpu = [f"{row.cpu_speedup:.2f} x", "{:.2f}-{:.2f}".format(*row.cpu_speedup_range)]
        lines.append([str(row.merged), str(row.tokens), f"{row.mflops:.1f}", *cpu, *clock, *shares])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw top-1 over speed, a line for each kind of run; points of one bear their r."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    speeds = [row.cpu_speedup for row in rows]
    for i, kind in enumerate(rows[0].top1):
        label = "trained without merging" if kind == "0" else f"trained with r = {kind}"
        means = [100 * statistics.fmean(row.top1[kind]) for row in rows]
        axes.plot(speeds, means, "-o", color=f"C{i}", label=label)
        for row, mean in zip(rows, means, strict=True) if i == 0 else ():
            place = (row.cpu_speedup, mean)
            axes.annotate(str(row.merged), place, (0, -13), textcoords="offset points", ha="center")
    axes.set_xlabel("images per CPU second, over those without merging")
    axes.margins(y=0.12)
    axes.set_ylabel("test top-1, %; numbers are r")
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def save(rows: Sequence[Any], seeds: Sequence[int], load: float, path: Path) -> None:
    """Write rows, seeds, date, device, load and versions as JSON."""
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    content = {
        "device": record.device(),
        "date": datetime.date.today().isoformat(),
        "versions": {"python": platform.python_version(), **versions},
        "load": load,
        "seeds": list(seeds),
        "rows": [dataclasses.asdict(row) for row in rows],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def read(path: Path) -> list[Row]:
    """Read the rows of a file that `save` wrote."""
    rows = [Row(**row) for row in json.loads(path.read_text())["rows"]]
    return [
        dataclasses.replace(
            row,
            speedup_range=tuple(row.speedup_range),
            cpu_speedup_range=tuple(row.cpu_speedup_range),
            top1={kind: tuple(top1) for kind, top1 in row.top1.items()},
        )
        for row in rows
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--workdir", type=Path, default=Path("runs/token_merging"))
    parser.add_argument("--merge", type=int, nargs="+", default=MERGED, help="besides 0")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="about the length of a turn")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    args = parser.parse_args(argv)
    from vit_jax.process import startup

    startup.configure()
    runs = train(args.seeds, args.workdir)
    load = os.getloadavg()[0]
    rows = measure(runs, sorted({0, *args.merge}), args.rounds, args.seconds)
    print(markdown(rows))
    save(rows, args.seeds, load, args.out)
    draw(rows, args.picture)
    print(f"written to {args.out} and {args.picture}; load {load:.1f}")


if __name__ == "__main__":
    main()
