# SPDX-License-Identifier: Apache-2.0
"""`mesh.reproducible`: equal bits on 1 to 8 devices, what they cost, what moves for them.

    python -m benchmarks.reproducible
    python -m benchmarks.reproducible --only bits --only cost

Four parts, each written to results/reproducible.json once it is measured. `bits`: parameters after
200 steps of a digits run, by the command line, on several devices and processes, and over five
restarts on other devices. `rounding`: how far an ordinary run on one device is from one on four.
`cost`: CPU time of a step beside the ordinary one. `traffic`: what a device sends, by the
compilers for hardware that is not here. docs/sharding.md has the tables.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import record

RESULTS = record.RESULTS / "reproducible.json"
ROOT = Path(__file__).parents[1]
SHARDS, STEPS = 8, 200
# Dropout, stochastic depth, mixing, clipping, a moving average: all that draws or sums.
RUN = (
    "--config=vit_mu_digits",
    "--config.model.dim=32",
    "--config.model.depth=2",
    "--config.model.num_heads=2",
    "--config.model.mlp_dim=64",
    "--config.model.dropout_rate=0.1",
    "--config.model.drop_path_rate=0.1",
    "--config.data.batch_size=64",
    "--config.data.mix.mixup_alpha=0.2",
    "--config.optim.name=adamw",  # the recipe's Muon sums over whole parameters, which fsdp cuts
    "--config.optim.lr=1e-3",
    "--config.optim.momentum=0.9",
    "--config.optim.nesterov=false",
    "--config.optim.clip_norm=1.0",
    "--config.ema_decay=0.99",
    f"--config.duration={STEPS} steps",
    "--config.evals.val.every=200 steps",
    "--config.checkpoint.every=30 steps",
    "--config.log.every=10 steps",
    f"--config.mesh.reproducible={SHARDS}",
)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Processes, the devices of each, and how many of all these share the parameters."""

    devices: int
    fsdp: int = 1
    processes: int = 1


LAYOUTS = {
    "1 device, which is cut in two": Layout(1),
    "4 devices": Layout(4),
    "8 devices": Layout(8),
    "8 devices, fsdp=8": Layout(8, fsdp=8),
    "2 processes of 1 device": Layout(1, processes=2),
    "4 processes of 2 devices, fsdp=4": Layout(2, fsdp=4, processes=4),
}
# Each until the next checkpoint, where it is stopped as a scheduler stops it; the last to the end.
RESTARTS = (
    Layout(8),
    Layout(1),
    Layout(8, fsdp=8),
    Layout(1, processes=2),
    Layout(4),
    Layout(2, fsdp=4, processes=4),
)


def start(layout: Layout, workdir: Path) -> list[subprocess.Popen[str]]:
    """Start the run's command in each process of a layout."""
    command = [sys.executable, "main.py", *RUN, f"--workdir={workdir}"]
    command += [f"--config.mesh.fsdp={layout.fsdp}"]
    env = {key: value for key, value in os.environ.items() if key != "PJRT_NPROC"}
    # One device is what a machine has of itself.
    env |= {"JAX_NUM_CPU_DEVICES": str(layout.devices)} if layout.devices > 1 else {}
    cluster = [{}]
    if layout.processes > 1:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        by_hand = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}"}
        by_hand["JAX_NUM_PROCESSES"] = str(layout.processes)
        cluster = [{**by_hand, "JAX_PROCESS_ID": str(i)} for i in range(layout.processes)]
    return [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=env | each,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for each in cluster
    ]


def finish(processes: Sequence[subprocess.Popen[str]], status: int) -> None:
    """Wait for all of them; raises RuntimeError, with what one printed, for another status."""
    for process in processes:
        out, _ = process.communicate(timeout=1200)
        if process.returncode != status:
            raise RuntimeError(out)


def interrupt(processes: Sequence[subprocess.Popen[str]], workdir: Path) -> None:
    """Stop a run at its next checkpoint, by the signal of a scheduler."""
    from vit_jax.checkpoints.config import steps_in
    from vit_jax.process.preemption import INTERRUPTED

    place = workdir / "checkpoints"
    before = set(steps_in(place)) if place.is_dir() else set()
    while not place.is_dir() or not set(steps_in(place)) - before:
        if any(process.poll() is not None for process in processes):
            break
        time.sleep(0.02)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    finish(processes, INTERRUPTED)


def digest(workdir: Path) -> dict[str, Any]:
    """Return a digest of a run's parameters, and one of the metrics of its steps."""
    from vit_jax import api, trees

    found = hashlib.sha256()
    for name, leaf in trees.named_leaves(api.load(workdir).params):
        found.update(name.encode())
        found.update(memoryview(leaf).tobytes())
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    last = {}
    for row in rows:  # a step that was taken again is written again
        if "train/loss" in row:
            last[row["step"]] = [row["train/loss"], row["train/grad_norm"]]
    return {
        "parameters": found.hexdigest()[:16],
        "metrics": hashlib.sha256(json.dumps(last).encode()).hexdigest()[:16],
        "loss": last[STEPS][0],
    }


def bits() -> dict[str, Any]:
    """Train the run on each layout, and once over all of them."""
    found = {}
    with tempfile.TemporaryDirectory() as directory:
        for name, layout in LAYOUTS.items():
            workdir = Path(directory) / name.replace(" ", "_").replace(",", "")
            finish(start(layout, workdir), 0)
            found[name] = digest(workdir)
            print(name, found[name], flush=True)
        workdir = Path(directory) / "restarted"
        for layout in RESTARTS[:-1]:
            interrupt(start(layout, workdir), workdir)
        finish(start(RESTARTS[-1], workdir), 0)
        name = f"{len(RESTARTS) - 1} restarts, each on other devices"
        found[name] = digest(workdir)
        print(name, found[name], flush=True)
    return {"equal": len({json.dumps(each) for each in found.values()}) == 1, "runs": found}


def _step(cfg: Any, devices: int) -> Callable[[int], Any]:
    """Compile a digits run's step; returns what takes some of them, and gives the parameters."""
    import jax

    from vit_jax import config as config_lib
    from vit_jax.devices import sharding
    from vit_jax.devices.sharding import MeshConfig
    from vit_jax.train import build as build_lib
    from vit_jax.train.batches import device_batches

    source = build_lib.open_train(cfg)
    cfg = config_lib.fitted(cfg, len(source), source.num_classes)
    parts = build_lib.build(cfg, len(source))
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:devices])
    state = build_lib.init_state(cfg, parts, mesh)
    (step,) = build_lib.compile_steps(parts, mesh)
    stream = device_batches(cfg.data, parts.objective, source, mesh, seed=0, start=0)
    batches = [next(stream) for _ in range(8)]
    stream.close()

    def take(count: int) -> Any:
        nonlocal state
        with jax.set_mesh(mesh):
            for i in range(count):
                state, _ = step(state, {}, batches[i % len(batches)])
        return jax.device_get(state.params)

    return take


def rounding() -> dict[str, Any]:
    """Return how far tensors are apart after ten ordinary steps on one device and on four.

    The largest difference of an element, over the largest change of one by the training, of the
    tensor where that is most.
    """
    import numpy as np

    from vit_jax import trees
    from vit_jax.optim import OptimConfig
    from vit_jax.optim.config import Optimizer

    found = {}
    for name, optim in {
        "adamw": OptimConfig(lr=1e-3),
        "sgd": OptimConfig(name=Optimizer.SGD, lr=1e-1, momentum=0.0),
    }.items():
        takes = [_step(_config(0, optim), devices) for devices in (1, 4)]
        before, one, four = takes[0](0), takes[0](10), takes[1](10)
        apart = {}
        for (key, x), (_, a), (_, b) in zip(
            *map(trees.named_leaves, (before, one, four)), strict=True
        ):
            apart[key] = float(np.abs(a - b).max() / max(np.abs(a - x).max(), 1e-30))
        worst = max(apart, key=lambda key: apart[key])
        found[name] = {"tensor": worst, "apart": apart[worst]}
        found[name]["median"] = statistics.median(apart.values())
        print(name, found[name], flush=True)
    return found


def _config(shards: int, optim: Any = None) -> Any:
    from configs.vit_mu_digits import get_config

    cfg = get_config()
    cfg.data.batch_size = 128
    cfg.duration = "1000 steps"
    cfg.mesh.reproducible = shards
    if optim is not None:
        cfg.optim = optim
    return cfg


def cost(rounds: int = 7, steps: int = 8) -> dict[str, Any]:
    """Return the CPU seconds of a step over those of an ordinary one on as many devices."""
    found = {}
    for devices in (4, 8):
        takes = [_step(_config(shards), devices) for shards in (0, SHARDS)]
        spent: list[list[float]] = [[], []]
        for take in takes:
            take(2)
        for _ in range(rounds):
            for take, seconds in zip(takes, spent, strict=True):
                began = time.process_time()
                take(steps)
                seconds.append((time.process_time() - began) / steps)
        ratios = [after / before for before, after in zip(*spent, strict=True)]
        found[f"{devices} devices"] = {
            "ordinary_ms": round(1e3 * statistics.median(spent[0]), 1),
            "reproducible_ms": round(1e3 * statistics.median(spent[1]), 1),
            "ratio": round(statistics.median(ratios), 3),
            "ratio_range": [round(min(ratios), 3), round(max(ratios), 3)],
        }
        print(devices, found[f"{devices} devices"], flush=True)
    return found


# Hardware, devices, fsdp: ViT-B/16 in bfloat16, its blocks in a loop.
COMPILED = (("h100:8", 8, 1), ("v5e:8x8", 64, 1), ("v5e:8x8", 64, 8))


def traffic() -> dict[str, Any]:
    """Return the gigabytes that a device sends in a step, by the compilers' programs."""
    from benchmarks.memory import lowered
    from vit_jax import models
    from vit_jax.config.tree import Config
    from vit_jax.cost import hlo, memory, topology
    from vit_jax.data import DataConfig
    from vit_jax.devices.sharding import MeshConfig
    from vit_jax.models import DType

    found = {}
    for hardware, count, fsdp in COMPILED:
        described, row = topology.describe(hardware), {}
        for name, shards in (("ordinary", 0), ("reproducible", count)):
            cfg = Config(
                model=models.variant("vit_b16", dtype=DType.BFLOAT16, scan_unroll=1),
                data=DataConfig(batch_size=64 * count),
                mesh=MeshConfig(data=count // fsdp, fsdp=fsdp, reproducible=shards),
                duration="100 steps",
            )
            with described.tracing():
                _, mesh, traced = lowered(cfg, described.devices)
                options = described.compiler_options or None
                compiled = traced.compile(compiler_options=options)
            collectives = hlo.find(hlo.parse(compiled.as_text()), dict(mesh.shape))
            row[f"{name}_gb"] = round(sum(map(_sent, collectives)) / 1e9, 4)
            row[f"{name}_plan_gib"] = round(memory.planned(compiled) / 2**30, 2)
        row["ratio"] = round(row["reproducible_gb"] / row["ordinary_gb"], 3)
        found[f"{hardware} data={count // fsdp} fsdp={fsdp}"] = row
        print(hardware, fsdp, row, flush=True)
    return found


def _sent(one: Any) -> float:
    """Return the bytes that a device sends for a collective, over a ring."""
    count = len(one.groups[0]) if one.groups else 1
    if one.kind == "collective-permute":
        return float(one.num_bytes * one.times)
    share = (count - 1) / count if count > 1 else 0.0
    return one.num_bytes * one.times * share * (2 if one.kind == "all-reduce" else 1)


PARTS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "bits": bits,
    "rounding": rounding,
    "cost": cost,
    "traffic": traffic,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line: each part in a process of its own, before JAX has started."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproducible")
    parser.add_argument("--only", action="append", choices=PARTS)
    parser.add_argument("--here", choices=PARTS, help="one part, in this process")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    if args.here is None:
        for name in args.only or PARTS:
            command = [sys.executable, "-m", "benchmarks.reproducible", "--here", name]
            subprocess.run([*command, "--out", str(args.out)], check=True)
        return
    if args.here in ("rounding", "cost"):
        import jax

        from vit_jax.process import startup, xla

        startup.stay_on_cpu()
        jax.config.update("jax_num_cpu_devices", 8)
        xla.lend_threads(fixed=True)
        startup.configure()
    measured = PARTS[args.here]()
    kept = json.loads(args.out.read_text()) if args.out.exists() else {}
    args.out.write_text(json.dumps({**kept, args.here: measured}, indent=1) + "\n")


if __name__ == "__main__":
    main()
