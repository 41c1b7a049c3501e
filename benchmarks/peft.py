# SPDX-License-Identifier: Apache-2.0
"""Cheap fine-tuning beside full: parameters, memory, checkpoint, step time; top-1 on digits.

    python -m benchmarks.peft costs [--variant vit_s16] [--batch 16] [--rounds 3]
    python -m benchmarks.peft digits [--seeds 0]

`costs` compiles the step of every way in one process, asks XLA for its plan of the memory, and
times the steps in turns, in CPU seconds on a CPU: read ratios. It writes results/peft.json, from
which `python -m benchmarks.tables` writes the table of docs/benchmarks.md and docs/finetune.md.
`digits` trains configs/finetune_digits_pretrain.py and from it, in each way, on the other five
digits, and prints what docs/finetune.md says.
"""

import argparse
import dataclasses
import datetime
import json
import re
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import record, turns
from vit_jax.config.tree import Config

# Config fields of each way.
WAYS: dict[str, dict[str, Any]] = {
    "full": {},
    "LoRA": {"lora.pattern": "blocks/.*kernel$"},
    "biases": {"optim.freeze": "^(?!head)(?!.*bias$)"},
    "probe": {"optim.freeze": "^(?!head)"},
    "full, half of the patches": {"model.patch_drop_rate": 0.5},
}
# The learning rates of the runs on digits, not tuned: those of configs/finetune_digits.py for full
# fine-tuning and the probe.
_LR = {"LoRA": 3e-3, "biases": 1e-2, "probe": 1e-2}


def changed(cfg: Config, way: str) -> Config:
    """Return the config that fine-tunes in one of the ways."""
    for name, value in WAYS[way].items():
        group, field = name.split(".")
        node = dataclasses.replace(getattr(cfg, group), **{field: value})
        cfg = dataclasses.replace(cfg, **{group: node})
    return cfg


@dataclasses.dataclass(frozen=True)
class Cost:
    """One way: trained parameters, bytes, and seconds of a step in each round."""

    trained: int
    planned: int
    checkpoint: int
    flops: int
    seconds: list[float]


def costs(variant: str, batch_size: int, rounds: int) -> dict[str, Cost]:
    """Compile and time a step in each way, in turns in this process, from random weights."""
    import jax
    import numpy as np

    from benchmarks.step_ours import random_batch
    from vit_jax import models, trees
    from vit_jax.cost import memory
    from vit_jax.data import DataConfig
    from vit_jax.devices import sharding
    from vit_jax.train import build

    model = models.variant(variant)
    plain = Config(model=model, data=DataConfig(batch_size=batch_size), duration="1_000_000 steps")
    works: dict[str, turns.Work] = {}
    found: dict[str, Cost] = {}
    mesh = sharding.make_mesh(plain.mesh, jax.devices()[:1])
    batch = random_batch(model, batch_size)
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in batch.items()}
    for way in WAYS:
        cfg = changed(plain, way)
        parts = build.build(cfg, num_examples=batch_size)
        program = build.lower_step(parts, mesh, shapes).compile()
        trained = parts.abstract.params
        if freeze := cfg.optim.freeze:
            names = trees.named_leaves(trained)
            trained = [leaf for name, leaf in names if not re.search(freeze, name)]
        found[way] = Cost(
            trees.num_params(trained),
            memory.planned(program),
            trees.num_bytes(parts.abstract),
            build.example_flops(parts),
            [],
        )
        if rounds:
            zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), parts.frozen)
            works[way] = _steps(build.init_state(cfg, parts, mesh), program, zeros, batch, mesh)
            works[way](1)
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    clock = time.process_time if on_cpu else time.perf_counter
    for turn in range(rounds):
        order = list(works)
        for way in order if turn % 2 == 0 else reversed(order):
            start = clock()
            works[way](1)
            found[way].seconds.append(clock() - start)
    return found


def _steps(state: Any, program: Any, frozen: Any, batch: Any, mesh: Any) -> turns.Work:
    import jax

    from vit_jax.devices import sharding

    def run(count: int) -> None:
        nonlocal state
        with jax.set_mesh(mesh):
            there = sharding.global_batch(batch, mesh, batch_size=len(batch["label"]))
            for _ in range(count):
                state, _ = program(state, constant, there)
            jax.block_until_ready(state)

    constant = jax.device_put(frozen, sharding.shardings(frozen, mesh))
    return run


def compared(found: dict[str, Cost]) -> list[dict[str, Any]]:
    """Return a row of each way, its FLOPs and its time relative to the full step's."""
    rows, full = [], found["full"]
    for way, cost in found.items():
        ratios = [own / other for own, other in zip(cost.seconds, full.seconds, strict=True)]
        took = [statistics.median(ratios), min(ratios), max(ratios)] if ratios else []
        rows.append(
            {
                "way": way,
                "trained": cost.trained,
                "memory_mib": round(cost.planned / 2**20) or None,
                "checkpoint_mib": round(cost.checkpoint / 2**20),
                "flops": round(cost.flops / full.flops, 3),
                "time": [round(value, 3) for value in took],
            }
        )
    return rows


def costs_table(rows: Sequence[dict[str, Any]]) -> str:
    """Lay the costs out in Markdown."""
    lines = [
        "| way | trained parameters | step's memory | checkpoint | FLOPs of a step | step's time |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        took = "{:.2f} ({:.2f}-{:.2f})".format(*row["time"]) if row["time"] else ""
        sizes = [row[name] for name in ("memory_mib", "checkpoint_mib")]
        sizes = ["" if size is None else f"{size:,} MiB" for size in sizes]
        cells = [row["way"], f"{row['trained']:,}", *sizes, f"{row['flops']:.2f}", took]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def save(rows: Sequence[dict[str, Any]], variant: str, batch_size: int, out: Path) -> None:
    """Write what `costs` found to peft.json."""
    content = {
        "device": record.device(),
        "date": datetime.date.today().isoformat(),
        "model": variant,
        "batch_size": batch_size,
        "rows": list(rows),
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "peft.json").write_text(json.dumps(content, indent=1) + "\n")


def digits(seeds: Sequence[int], steps: str = "") -> dict[str, list[float]]:
    """Return test top-1 on the digits 5 to 9 of each way, by seed; `steps` shortens every run."""
    from configs import finetune_digits, finetune_digits_pretrain
    from vit_jax.train.loop import fit

    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for seed in seeds:
        with tempfile.TemporaryDirectory() as root:
            before = finetune_digits_pretrain.get_config()
            before.seed, before.duration = seed, steps or before.duration
            fit(before, Path(root, "base"))
            for number, way in enumerate(WAYS):
                cfg = changed(finetune_digits.get_config("finetune"), way)
                cfg.seed, cfg.duration = seed, steps or cfg.duration
                cfg.init.weights = f"ckpt:{root}/base"
                if way in _LR:
                    cfg.optim.lr, cfg.optim.layer_decay = _LR[way], 1.0
                found[way].append(fit(cfg, Path(root, f"run{number}")).metrics["test/top1"])
                print(f"seed {seed}, {way}: {found[way][-1]:.2%}", flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peft")
    parser.add_argument("what", choices=("costs", "digits"))
    parser.add_argument("--variant", default="vit_s16")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3, help="0 only compiles")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", default="", help="of every run, such as '10 steps': a trial")
    args = parser.parse_args(argv)
    from vit_jax.process import startup

    startup.configure()
    if args.what == "costs":
        rows = compared(costs(args.variant, args.batch, args.rounds))
        print(costs_table(rows))
        if args.rounds:
            save(rows, args.variant, args.batch, args.out)
        return
    for way, top1 in digits(args.seeds, args.steps).items():
        print(f"{way}: {', '.join(f'{x:.2%}' for x in top1)}")


if __name__ == "__main__":
    main()
