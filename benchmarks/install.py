# SPDX-License-Identifier: Apache-2.0
"""Seconds and megabytes of an install and of an import, beside timm on PyTorch and big_vision.

    python -m benchmarks.install

Each side is installed by pip into a fresh environment: once to fill pip's cache, then, with nothing
left to download, what is measured; then once more without compiling bytecode. The size is that of
the environment without pip itself. The import is the one that its users write, with bytecode there;
the fastest of a few processes counts.
"""

import argparse
import dataclasses
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import record

_ROOT = Path(__file__).parent.parent


@dataclasses.dataclass(frozen=True)
class Side:
    """A code base: what pip is given, and the line that imports it."""

    name: str
    requirements: tuple[str, ...]
    imports: str


OURS = Side("vit_jax", ("-r", str(_ROOT / "requirements.txt")), "import vit_jax.api")
PEERS = (
    # torch of PyPI brings CUDA's libraries along; +cpu is the build that does without.
    # torch alone is imported: timm stops at PyPI's torchvision, which is built for CUDA's torch.
    Side("timm + torch for CPUs", ("torch==2.13.0+cpu", "torchvision", "timm"), "import torch"),
    # big_vision/requirements.txt of commit 0a83553 but for what comes from git repositories, and
    # tensorflow-addons, tensorflow-text and tensorflow-gan, whose releases fit no newer tensorflow.
    Side(
        "big_vision's requirements",
        ("absl-py", "clu", "einops", "flax", "optax", "overrides", "tensorflow", "tfds-nightly"),
        "import flax.linen, optax, tensorflow, tensorflow_datasets",  # of its train.py
    ),
)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Seconds by the clock and of all processors."""

    wall: float
    cpu: float


@dataclasses.dataclass(frozen=True)
class Weight:
    """What a side costs; `megabytes` of 10**6 bytes, with bytecode."""

    install: Cost
    no_compile: Cost
    megabytes: float
    imports: Cost


def run(*command: str) -> Cost:
    """Run a command to its end; raises CalledProcessError."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=_ROOT, env=environment, check=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Cost(wall, cpu)


def install(side: Side, place: Path, *options: str) -> Cost:
    """Install into a new environment, whose own making is not counted."""
    run(sys.executable, "-m", "venv", "--clear", str(place))
    pip = (str(place / "bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check")
    return run(*pip, *options, *side.requirements)


def weigh(side: Side, imports: int) -> Weight:
    """Measure a side."""
    with tempfile.TemporaryDirectory() as root:
        place = Path(root, "environment")
        install(side, place)
        no_compile = install(side, place, "--no-compile")
        compiled = install(side, place)
        python = str(place / "bin/python")
        times = [run(python, "-c", side.imports) for _ in range(imports + 1)][1:]
        files = [file for file in place.rglob("*") if file.is_file() and not file.is_symlink()]
        own = [file for file in files if not {"pip", "setuptools"} & set(file.parts)]
        return Weight(
            install=compiled,
            no_compile=no_compile,
            megabytes=sum(file.stat().st_size for file in own) / 1e6,
            imports=Cost(min(t.wall for t in times), min(t.cpu for t in times)),
        )


def rows(ours: Weight, theirs: Weight, peer: str, load: float) -> list[record.Row]:
    """Return what the two cost, less than 1 being better for us; `cpu_ratio` the other way."""
    found = []
    for name, key in (
        ("install, warm package cache", "install"),
        ("install, warm package cache, no bytecode", "no_compile"),
        ("import", "imports"),
    ):
        a, b = getattr(ours, key), getattr(theirs, key)
        found.append(
            record.Row(
                work=name,
                unit="s",
                ours=a.wall,
                peer=peer,
                peer_value=b.wall,
                ratio=a.wall / b.wall,
                cpu_ratio=b.cpu / a.cpu,
                load=load,
            )
        )
    size = record.Row(
        work="installed size",
        unit="MB",
        ours=ours.megabytes,
        peer=peer,
        peer_value=theirs.megabytes,
        ratio=ours.megabytes / theirs.megabytes,
    )
    return [*found, size]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.install")
    parser.add_argument("--imports", type=int, default=3, help="processes; the fastest counts")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    args = parser.parse_args(argv)
    load, ours = os.getloadavg()[0], weigh(OURS, args.imports)
    print(f"{OURS.name}: {ours}", flush=True)
    found = []
    for peer in PEERS:
        theirs = weigh(peer, args.imports)
        print(f"{peer.name}: {theirs}", flush=True)
        found += rows(ours, theirs, peer.name, load)
    record.report(found, args.out)


if __name__ == "__main__":
    main()
