# SPDX-License-Identifier: Apache-2.0
"""Seconds from a command to its first training step and to its end, cold and warm cache.

    python -m benchmarks.startup [--large]

Real processes: three steps of the digits' run through main.py, first with an empty compilation
cache, then with what that run left in it; and the stages of such a start. `--large` adds how long
ViT-L/16's training step takes to trace and compile, scanned and unrolled: minutes.

Python's bytecode is there before anything is measured, as after any first run. Where
PYTHONDONTWRITEBYTECODE keeps it from being written, every start compiles 1,900 modules anew.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import record
from benchmarks.start_stages import MODULES

_ROOT = Path(__file__).parent.parent
_IMPORTS = f"import {', '.join(MODULES)}"


def run_once(workdir: Path, cache: Path, data_dir: Path) -> tuple[float, float]:
    """Return the seconds until the first step's metrics are written, and until the exit.

    Raises:
        RuntimeError: the run failed.
    """
    command = [
        sys.executable,
        "main.py",
        "--config=configs/vit_mu_digits.py",
        f"--workdir={workdir}",
        "--config.duration=3 steps",
        "--config.optim.warmup=1 steps",
        "--config.log.every=1 steps",
    ]
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=_ROOT,
        env=_environment(cache, data_dir),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics, first = workdir / "metrics.jsonl", None
    while process.poll() is None:
        if first is None and metrics.exists() and metrics.stat().st_size:
            first = time.perf_counter() - start
        time.sleep(0.005)
    total = time.perf_counter() - start
    _, message = process.communicate()
    if process.returncode or first is None:
        raise RuntimeError(f"the run ended with {process.returncode}: {message[-500:]}")
    return first, total


def import_seconds(data_dir: Path) -> float:
    """Return the seconds a process takes that only imports what a run needs."""
    start = time.perf_counter()
    environment = _environment(data_dir, data_dir)
    subprocess.run([sys.executable, "-c", _IMPORTS], cwd=_ROOT, env=environment, check=True)
    return time.perf_counter() - start


def measure(repeats: int) -> list[record.Row]:
    """Run cold and warm in turns."""
    load = os.getloadavg()[0]
    cold, warm, imports = [], [], []
    with tempfile.TemporaryDirectory() as root:
        data_dir = Path(root, "data")
        subprocess.run(
            [sys.executable, "-m", "vit_jax", "prepare", "digits"],
            cwd=_ROOT,
            env=_environment(Path(root, "unused"), data_dir),
            stdout=subprocess.DEVNULL,
            check=True,
        )
        run_once(Path(root, "first"), Path(root, "unused"), data_dir)
        for i in range(repeats):
            cache = Path(root, f"cache{i}")
            imports.append(import_seconds(data_dir))
            cold.append(run_once(Path(root, f"cold{i}"), cache, data_dir))
            warm.append(run_once(Path(root, f"warm{i}"), cache, data_dir))
        parts = [stages(["digits"], cache, data_dir) for _ in range(repeats)]
    return rows(imports, cold, warm, load) + stage_rows("digits, warm cache", parts, load)


def measure_large(model: str = "vit_l16") -> list[record.Row]:
    """Compile the training step of a large model, scanned and unrolled, cold and warm."""
    found = []
    with tempfile.TemporaryDirectory() as root:
        for name, scan_unroll in (("scanned", "1"), ("unrolled", "0")):
            for state in ("empty cache", "warm cache"):
                load = os.getloadavg()[0]
                took = stages([model, scan_unroll], Path(root, name), Path(root, "data"))
                found += stage_rows(f"{model} train batch=8, {name}, {state}", [took], load)
    return found


def stages(work: Sequence[str], cache: Path, data_dir: Path) -> dict[str, float]:
    """Return the seconds of each stage, from a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.start_stages", *work],
        cwd=_ROOT,
        env=_environment(cache, data_dir),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def stage_rows(work: str, repeats: Sequence[Mapping[str, float]], load: float) -> list[record.Row]:
    """Return a row for each stage, its median over the repeats."""
    return [
        record.Row(
            work=f"start: {work}: {name}",
            unit="s",
            ours=statistics.median(each[name] for each in repeats),
            load=load,
        )
        for name in repeats[0]
    ]


def rows(
    imports: Sequence[float],
    cold: Sequence[tuple[float, float]],
    warm: Sequence[tuple[float, float]],
    load: float,
) -> list[record.Row]:
    """Return the rows of seconds of imports, and of pairs from `run_once`."""
    found = [
        record.Row(
            work="start: imports of a run", unit="s", ours=statistics.median(imports), load=load
        )
    ]
    for k, end in enumerate(("first step", "exit after 3 steps")):
        ratios = [w[k] / c[k] for w, c in zip(warm, cold, strict=True)]
        found.append(
            record.Row(
                work=f"start: digits, command to {end}, warm cache",
                unit="s",
                ours=statistics.median(w[k] for w in warm),
                peer="empty compilation cache",
                peer_value=statistics.median(c[k] for c in cold),
                ratio=statistics.median(ratios),
                ratio_range=(min(ratios), max(ratios)),
                load=load,
            )
        )
    return found


def _environment(cache: Path, data_dir: Path) -> dict[str, str]:
    own = {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "PYTHONPYCACHEPREFIX": str(data_dir.parent / "bytecode"),
        "TFDS_DATA_DIR": str(data_dir),
    }
    dropped = "PYTHONDONTWRITEBYTECODE"
    return {key: value for key, value in os.environ.items() if key != dropped} | own


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    parser.add_argument("--large", action="store_true", help="ViT-L/16's compile time as well")
    args = parser.parse_args(argv)
    found = measure(args.repeats)
    record.report(found + (measure_large() if args.large else []), args.out)


if __name__ == "__main__":
    main()
