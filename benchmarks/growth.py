# SPDX-License-Identifier: Apache-2.0
"""How costs grow with devices, examples, classes and the points of a sweep.

    python -m benchmarks.growth
    python -m benchmarks.growth --only examples --most 100000

Each measurement is a process of its own, so that its peak memory is its own; what counts is CPU
seconds, which other programs on the machine disturb least. The exponent is the slope, by least
squares, of log(cost) against log(size) over the larger half of the sizes, where what is constant
weighs least: 1 is linear, 0 does not grow. For devices the cost is that of an image, so 0 is what
is wanted. Written to results/growth.json, of which `benchmarks.tables` makes a table in docs.
"""

import argparse
import csv
import io
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import record

FILE = record.RESULTS / "growth.json"
# What is varied, and its sizes. A directory of 10^7 files, or a tar of them, is no dataset that
# anybody keeps; the order of examples and Parquet's table are tried at that size.
SIZES = {
    "devices": (1, 2, 4, 8),
    "folder": (1_000, 10_000, 100_000),
    "csv": (1_000, 10_000, 100_000),
    "tar": (1_000, 10_000, 100_000, 1_000_000),
    "parquet": (1_000, 10_000, 100_000, 1_000_000),
    "order": (1_000, 10_000, 100_000, 1_000_000, 10_000_000),
    "classes": (10, 100, 1_000, 10_000),
    "points": (10, 100, 1_000, 10_000),
}

FORMATS = ("folder", "csv", "tar", "parquet")


def _pixel() -> bytes:
    import cv2

    return cv2.imencode(".png", np.zeros((8, 8, 3), np.uint8))[1].tobytes()


def _write(kind: str, count: int, place: Path) -> str:
    """Write a dataset of `count` images of 8 x 8 in ten classes; return its name."""
    image = _pixel()
    if kind == "folder":
        for k in range(10):
            (place / f"class{k}").mkdir()
        for i in range(count):
            (place / f"class{i % 10}" / f"{i:08}.png").write_bytes(image)
        return f"folder:{place}?split_seed=0"
    if kind == "csv":
        (place / "images").mkdir()
        for i in range(count):
            (place / "images" / f"{i:08}.png").write_bytes(image)
        with (place / "all.csv").open("w") as file:
            rows = ((f"images/{i:08}.png", f"class{i % 10}", "train") for i in range(count))
            csv.writer(file).writerows([("path", "label", "split"), *rows])
        return f"csv:{place}/all.csv"
    if kind == "tar":
        for shard in range(math.ceil(count / 10_000)):
            with tarfile.open(place / f"train-{shard:05}.tar", "w") as out:
                for i in range(shard * 10_000, min(count, (shard + 1) * 10_000)):
                    for end, data in ((".png", image), (".cls", str(i % 10).encode())):
                        entry = tarfile.TarInfo(f"{i:08}{end}")
                        entry.size = len(data)
                        out.addfile(entry, io.BytesIO(data))
        return f"tar:{place}/train-*.tar"
    import pyarrow as pa
    import pyarrow.parquet as pq

    for shard in range(math.ceil(count / 100_000)):
        size = min(100_000, count - shard * 100_000)
        column = pa.array([{"bytes": image, "path": None}] * size)
        table = pa.table({"image": column, "label": pa.array(np.arange(size) % 10)})
        pq.write_table(table, place / f"train-{shard:05}.parquet", row_group_size=10_000)
    return f"parquet:{place}/train-*.parquet"


def _examples(count: int, name: str) -> dict[str, float]:
    """Measure opening a dataset, and its first batch at step 0 and at a late one."""
    from vit_jax import data
    from vit_jax.data import Crop, DataConfig, TransformConfig, one_view

    found: dict[str, float] = {}
    source, found["start"] = _timed(lambda: data.open_source(name))
    cfg = DataConfig(
        name=name, batch_size=64, num_threads=1, transform=TransformConfig(crop=Crop.RESIZE)
    )
    views = one_view(cfg.transform, (8, 8), 3, data.reading(cfg))
    for what, step in (("first batch", 0), ("resumed batch", 10 * count // 64 + 7)):

        def batch(step: int = step) -> Any:
            with data.train_batches(source, cfg, views=views, seed=0, start_step=step) as batches:
                return next(batches)

        _, found[what] = _timed(batch)
    return {**found, "MB": _memory()}


def _order(count: int) -> dict[str, float]:
    """Measure the order of an epoch, first and for a late step."""
    from vit_jax.data.order import stream_indices

    rows = np.arange(64)
    _, first = _timed(lambda: stream_indices(rows, count, 0, 1, None))
    _, late = _timed(lambda: stream_indices(rows + 1000 * count, count, 0, 1, None))
    return {"first batch": first, "resumed batch": late, "MB": _memory()}


def _devices(count: int) -> dict[str, float]:
    """Measure the CPU seconds of a training step of the digits' model, batch 256, an image."""
    from vit_jax.process import startup

    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={count}"
    startup.configure()
    import jax

    from benchmarks import step_ours, train_step

    model = train_step.model_config("vit_mu_8x8", "float32")
    _, turn = step_ours.make(model, 256, 5, 2.0)
    assert jax.device_count() == count
    turn("train")
    done = turn("train")
    return {"step": done.cpu_seconds / done.images, "MB": _memory()}


def _classes(count: int) -> dict[str, float]:
    """Measure the report of an evaluation of 50,000 images."""
    from vit_jax.evals import report

    rng = np.random.default_rng(0)
    labels = rng.integers(0, count, 50_000).astype(np.int32)
    guesses = np.where(rng.random(50_000) < 0.7, labels, rng.integers(0, count, 50_000))
    names = [f"class {k}" for k in range(count)]
    with tempfile.TemporaryDirectory() as place:
        args = (place, labels, guesses.astype(np.int32), names, "t")
        _, took = _timed(lambda: report.write_report(*args))
    return {"report": took, "MB": _memory()}


def _points(count: int) -> dict[str, float]:
    """Measure planning a sweep, reading its manifest, and the table of what its runs do."""
    from vit_jax.__main__ import main

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        file = place / "sweep.py"
        file.write_text(
            'CONFIG = "configs/vit_mu_digits.py"\nMETRIC = "test/top1"\n\n\n'
            f"def sweep():\n    for seed in range({count}):\n"
            '        yield {"name": f"seed {seed}", "seed": seed, "duration": "10 steps",\n'
            '               "optim.warmup": "2 steps"}\n'
        )
        out = io.StringIO()
        stdout, sys.stdout = sys.stdout, out
        try:
            made, plan = _timed(
                lambda: main(["vit_jax", "sweep", "plan", str(file), f"--out={place}/out"])
            )
            seen, status = _timed(lambda: main(["vit_jax", "sweep", "status", f"{place}/out"]))
        finally:
            sys.stdout = stdout
    if made or seen:
        raise RuntimeError(f"status {made}, {seen}: {out.getvalue()[-500:]}")
    return {"plan": plan, "status": status, "MB": _memory()}


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.process_time()
    return work(), time.process_time() - began


def _memory() -> float:
    """Return the peak resident memory of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


MEASURES: dict[str, Callable[[int], dict[str, float]]] = {
    "devices": _devices,
    "order": _order,
    "classes": _classes,
    "points": _points,
}


def measure(what: str, size: int) -> dict[str, float]:
    """Measure one size in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.growth", "--measure", what, str(size)]
    place = Path(tempfile.mkdtemp())
    done: list[dict[str, float]] = []
    try:
        (place / "data").mkdir()
        name = _write(what, size, place / "data") if what in FORMATS else "-"
        env = {**os.environ, "XDG_CACHE_HOME": str(place / "cache")}
        for _ in range(2 if what in FORMATS else 1):  # the second has the first one's index
            ran = subprocess.run([*command, name], env=env, capture_output=True, text=True)
            if ran.returncode:
                raise RuntimeError(f"{what} {size}: {ran.stderr[-2000:]}")
            done.append(json.loads(ran.stdout.strip().splitlines()[-1]))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return {**({"index": done[0]["start"]} if len(done) > 1 else {}), **done[-1]}


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Return the slope of log(cost) over log(size) of the larger half of two or more sizes."""
    last = max(2, math.ceil(len(sizes) / 2))
    x, y = np.log(sizes[-last:]), np.log(np.maximum(costs[-last:], 1e-9))
    return float(np.polyfit(x, y, 1)[0])


def table(content: dict[str, Any]) -> str:
    """Return the Markdown table of what `results/growth.json` holds."""
    lines = ["| what grows | cost | smallest | largest | exponent |", "|---|---|--:|--:|--:|"]
    for what, rows in content["costs"].items():
        sizes = [row["size"] for row in rows]
        for cost in rows[0]["values"]:
            values = [row["values"][cost] for row in rows]
            unit = "MB" if cost.startswith("MB") else "s"
            name = {"MB": "peak memory"}.get(cost, cost)
            slope = f"{exponent(sizes, values):.2f}" if len(sizes) > 1 else ""
            ends = [
                f"{size:,}: {value:.3g} {unit}"
                for size, value in ((sizes[0], values[0]), (sizes[-1], values[-1]))
            ]
            lines.append(f"| {what} | {name} | {ends[0]} | {ends[1]} | {slope} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth")
    parser.add_argument("--only", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--most", type=int, default=10**9, help="the largest size")
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.measure:
        what, size, name = args.measure
        count = int(size)
        found = _examples(count, name) if what in FORMATS else MEASURES[what](count)
        print(json.dumps(found))
        return
    content: dict[str, Any] = {"costs": {}}
    if args.out.exists():
        content = json.loads(args.out.read_text())
    content["device"] = record.device()
    for what in args.only:
        rows, sizes = [], [size for size in SIZES[what] if size <= args.most]
        if not sizes:
            parser.error(
                f"--most={args.most} leaves no size of {what}; its least is {SIZES[what][0]}"
            )
        for size in sizes:
            rows.append({"size": size, "values": measure(what, size)})
            print(what, rows[-1], flush=True)
        content["costs"][what] = rows
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(content, indent=1) + "\n")
    print(table(content))


if __name__ == "__main__":
    main()
