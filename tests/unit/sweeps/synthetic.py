# SPDX-License-Identifier: Apache-2.0
"""A sweep's directory as its runs would leave it, of runs that follow a known law."""

import dataclasses
import json
from pathlib import Path

import numpy as np

from configs import vit_mu_digits
from vit_jax.config import saved as config_json
from vit_jax.sweeps import point as point_lib
from vit_jax.sweeps.point import Point

E, A, ALPHA, B, BETA = 0.1, 30.0, 0.4, 200.0, 0.5
K = 100.0  # FLOPs for each parameter and example


def loss(params: float, examples: float) -> float:
    return E + A * params**-ALPHA + B * examples**-BETA


def points(*, split: str = "train[:1000]", count: int = 7) -> list[Point]:
    """Runs of equal compute at five budgets, sizes around the best one of each."""
    made = []
    for budget in np.geomspace(1e10, 1e13, 5):
        best = (ALPHA * A / (BETA * B) * (budget / K) ** BETA) ** (1 / (ALPHA + BETA))
        for params in best * np.geomspace(0.2, 5, count):
            made.append(
                Point(
                    run=f"{len(made):03d}{abs(hash(split)) % 1000:03d}",
                    name=f"N={params:.3g} C={budget:.2g}",
                    config="configs/vit_mu_digits.py",
                    overrides={
                        "model.dim": round(params**0.5),
                        "duration": f"{budget / (K * params):.0f} examples",
                        "data.train_split": split,
                    },
                    metric="val/loss",
                    params=round(params),
                    flops=float(budget) * (1 - 0.001 * (len(made) % count)),  # whole steps
                    examples=round(budget / (K * params)),
                    tokens=None,
                    steps=100,
                    seconds=None,
                )
            )
    return made


def finish(place: Path, point: Point, value: float) -> None:
    """Write what a run of the point leaves that comes to a value."""
    run = point.workdir(place)
    run.mkdir(parents=True)
    rows = [
        {"step": step, "val/loss": value * 100 / step, "train/loss": value * 110 / step}
        for step in (25, 50, 100)
    ]
    rows.append({"step": 100, "perf/wall_seconds": 12.5})
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "finished.json").write_text('{"step": 100}\n')
    cfg = vit_mu_digits.get_config()
    for field, override in point.overrides.items():
        group, _, name = field.rpartition(".")
        setattr(getattr(cfg, group) if group else cfg, name, override)
    (run / "config.json").write_text(json.dumps(config_json.to_json(cfg)))


def sweep(place: Path, made: list[Point], *, noise: float = 0.0, seed: int = 0) -> None:
    """Write a sweep whose runs follow the law, but for some noise."""
    rng = np.random.default_rng(seed)
    place.mkdir(parents=True, exist_ok=True)
    point_lib.write_manifest(place, made)
    for point in made:
        finish(
            place, point, loss(point.params, point.examples) * float(np.exp(rng.normal(0, noise)))
        )


def renamed(point: Point, **fields: object) -> Point:
    return dataclasses.replace(point, **fields)
