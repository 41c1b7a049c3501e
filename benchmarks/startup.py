# SPDX-License-Identifier: Apache-2.0
"""Seconds from a command to its first training step and to its end, cold and warm cache.

    python -m benchmarks.startup

Real processes: three steps of the digits' run through main.py, first with an empty compilation
cache, then with what that run left in it.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import record

_ROOT = Path(__file__).parent.parent
_IMPORTS = "import vit_jax.cli.train, vit_jax.startup, vit_jax.train.loop"


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


def import_seconds() -> float:
    """Return the seconds a process takes that only imports what a run needs."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", _IMPORTS], cwd=_ROOT, check=True)
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
        for i in range(repeats):
            cache = Path(root, f"cache{i}")
            imports.append(import_seconds())
            cold.append(run_once(Path(root, f"cold{i}"), cache, data_dir))
            warm.append(run_once(Path(root, f"warm{i}"), cache, data_dir))
    return rows(imports, cold, warm, load)


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
    return os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "TFDS_DATA_DIR": str(data_dir),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    args = parser.parse_args(argv)
    record.report(measure(args.repeats), args.out)


if __name__ == "__main__":
    main()
