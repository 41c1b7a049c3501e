# SPDX-License-Identifier: Apache-2.0
"""Pruning on scikit-learn's digits: test top-1 before, after, and after fine-tuning, and speed.

    python -m benchmarks.prune [--seeds 0 1 2] [--workdir runs/prune] [--epochs 10]

Trains `configs/vit_mu_digits.py` (four layers of 4 heads and 256 MLP units), prunes each run by
several shares, by Taylor score and at random, and fine-tunes the one of `TUNED`; the whole network
is trained on for as long, to compare. Runs that the workdir holds are not trained again. Speed is
measured in one process, every network in turn, on batches of 120 images, by the clock and in CPU
seconds, which other programs on the machine disturb less.
"""

import argparse
import dataclasses
import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import record
from benchmarks.token_merging import in_turns, load_images, repeated, save

RESULTS = record.RESULTS / "prune_digits.json"
SHARES = ((0.0, 0.0), (0.25, 0.0), (0.0, 0.5), (0.25, 0.5), (0.5, 0.75))  # of heads, of MLP units
TUNED = (0.25, 0.5)
_BATCH = 120


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One share of heads and MLP units removed.

    Attributes:
        heads, mlp: the shares.
        parameters: how many are left.
        mflops: millions of FLOPs of an image's forward pass.
        speedup, speedup_range: images per second over the whole network's of the same round, by the
            clock: the median, the least and the largest of the rounds.
        cpu_speedup, cpu_speedup_range: likewise, in images per CPU second.
        top1: test top-1 of each seed, pruned by Taylor score.
        random: likewise, pruned at random.
        tuned: likewise, pruned by Taylor score and then fine-tuned; () where it was not.
        epochs: of the fine-tuning.
    """

    heads: float
    mlp: float
    parameters: int
    mflops: float
    speedup: float
    speedup_range: tuple[float, float]
    cpu_speedup: float
    cpu_speedup_range: tuple[float, float]
    top1: tuple[float, ...]
    random: tuple[float, ...]
    tuned: tuple[float, ...]
    epochs: int


def get_config() -> Any:
    """Return the digits run that is pruned."""
    from configs import vit_mu_digits

    return vit_mu_digits.get_config()


def tuning(cfg: Any, epochs: int) -> Any:
    """Return the config that trains on from a pruned run: a quarter of its learning rate."""
    optim = dataclasses.replace(cfg.optim, lr=cfg.optim.lr / 4, warmup="10%")
    return dataclasses.replace(cfg, optim=optim, duration=f"{epochs} epochs")


def prune(run: Path, shares: tuple[float, float], *, at_random: bool) -> tuple[Any, Any]:
    """Return a run as `inference.load` gives it and its `Pruned`, by scores or by drawn numbers."""
    from vit_jax import inference
    from vit_jax.inference import pruning as by_score
    from vit_jax.models import pruning

    whole = inference.load(f"{run}@latest")
    if not at_random:
        return whole, by_score.prune(whole, pruning.Shares(*shares))
    small = pruning.pruned(whole.model, pruning.Shares(*shares))
    params, rng = whole.variables["params"], np.random.default_rng(0)
    gates = pruning.open_gates(params, whole.model)
    kept = pruning.keep({k: rng.random(v.shape) for k, v in gates.items()}, whole.model, small)
    cut = pruning.cut(params, kept, whole.model)
    return whole, by_score.Pruned(small, {**whole.variables, "params": cut}, kept, "")


def train(seeds: Sequence[int], workdir: Path, epochs: int) -> dict[str, list[Path]]:
    """Train what is not there yet; returns the runs: whole, trained on, pruned and fine-tuned."""
    from vit_jax.cli.weights.prune import write
    from vit_jax.config import saved as config_json
    from vit_jax.train.loop import fit
    from vit_jax.weights.config import InitConfig

    runs: dict[str, list[Path]] = {"whole": [], "longer": [], "tuned": []}
    for seed in seeds:
        cfg = get_config()
        cfg.seed = seed
        whole, longer, small, tuned = (
            workdir / f"{name}_seed_{seed}" for name in ("whole", "longer", "pruned", "tuned")
        )
        fit(cfg, whole)
        cfg.init = InitConfig(weights=f"ckpt:{whole}@latest")
        fit(tuning(cfg, epochs), longer)
        if not (small / "config.json").exists():
            trained, pruned = prune(whole, TUNED, at_random=False)
            write(pruned, trained, small, {"shares": TUNED})
        found = config_json.from_json(json.loads((small / "config.json").read_text()))
        fit(tuning(found, epochs), tuned)
        for kind, run in (("whole", whole), ("longer", longer), ("tuned", tuned)):
            runs[kind].append(run)
    return runs


def measure(runs: dict[str, list[Path]], epochs: int, rounds: int, seconds: float) -> list[Row]:
    """Prune every run by every share and evaluate it, then time one network of each in turn."""
    import jax.numpy as jnp

    from vit_jax import inference, models, trees
    from vit_jax.cost.flops import forward_flops

    image, label = load_images(inference.load(str(runs["whole"][0])))
    batches = [image[start : start + _BATCH] for start in range(0, len(image), _BATCH)]

    def top1(trained: Any) -> float:
        forward = inference.make_forward(trained)
        guesses = [np.asarray(forward(batch).logits).argmax(axis=-1) for batch in batches]
        return float((np.concatenate(guesses) == label).mean())

    def small(run: Path, shares: tuple[float, float], *, at_random: bool) -> Any:
        trained, pruned = prune(run, shares, at_random=at_random)
        fields = {"model": pruned.model, "variables": pruned.variables}
        return dataclasses.replace(trained, **fields)

    first, networks, works = jnp.asarray(batches[0]), {}, {}
    scores: dict[tuple[float, float], list[list[float]]] = {}
    for shares in SHARES:
        by_score = [small(run, shares, at_random=False) for run in runs["whole"]]
        drawn = [small(run, shares, at_random=True) for run in runs["whole"]]
        kind = {TUNED: "tuned", SHARES[0]: "longer"}.get(shares)
        tuned = [inference.load(f"{run}@latest") for run in runs[kind]] if kind else []
        scores[shares] = [[top1(one) for one in each] for each in (by_score, drawn, tuned)]
        networks[shares] = by_score[0]
        works[shares] = repeated(inference.make_forward(by_score[0]), first)
    done, rows = in_turns(works, rounds, seconds), []
    for shares, trained in networks.items():
        pairs = list(zip(done[SHARES[0]], done[shares], strict=True))
        clock, cpu = ([whole[i] / own[i] for whole, own in pairs] for i in (0, 1))
        size = models.input_shape(trained.model)
        rows.append(
            Row(
                heads=shares[0],
                mlp=shares[1],
                parameters=trees.num_params(trained.variables["params"]),
                mflops=forward_flops(models.create(trained.model), size[:2], size[2]) / 1e6,
                speedup=statistics.median(clock),
                speedup_range=(min(clock), max(clock)),
                cpu_speedup=statistics.median(cpu),
                cpu_speedup_range=(min(cpu), max(cpu)),
                top1=tuple(scores[shares][0]),
                random=tuple(scores[shares][1]),
                tuned=tuple(scores[shares][2]),
                epochs=epochs,
            )
        )
    return rows


def markdown(rows: Sequence[Row]) -> str:
    """Lay rows out as the Markdown table of docs/prune.md; top-1 of several: mean (each seed)."""
    speeds = ["images / CPU second", "rounds", "images / s", "rounds"]
    tuned = f"{rows[0].epochs} epochs later"
    head = ["heads", "MLP", "parameters", "MFLOPs", *speeds, "pruned", "at random", tuned]
    lines = [head, ["---", "---", *["--:"] * (len(head) - 2)]]
    for row in rows:
        cpu = [f"{row.cpu_speedup:.2f} x", "{:.2f}-{:.2f}".format(*row.cpu_speedup_range)]
        clock = [f"{row.speedup:.2f} x", "{:.2f}-{:.2f}".format(*row.speedup_range)]
        sizes = [f"-{row.heads:.0%}", f"-{row.mlp:.0%}", f"{row.parameters:,}", f"{row.mflops:.2f}"]
        scores = [_percent(each) for each in (row.top1, row.random, row.tuned)]
        lines.append([*sizes, *cpu, *clock, *scores])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _percent(top1: Sequence[float]) -> str:
    if len(top1) < 2:
        return "".join(f"{100 * one:.1f} %" for one in top1)
    each = ", ".join(f"{100 * one:.1f}" for one in top1)
    return f"{100 * statistics.fmean(top1):.1f} % ({each})"


def read(path: Path) -> list[Row]:
    """Read the rows of a file that `main` wrote."""
    rows = []
    for row in json.loads(path.read_text())["rows"]:
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
        rows.append(Row(**fields))
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--workdir", type=Path, default=Path("runs/prune"))
    parser.add_argument("--epochs", type=int, default=10, help="of fine-tuning")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="about the length of a turn")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    from vit_jax.process import startup

    startup.configure()
    runs = train(args.seeds, args.workdir, args.epochs)
    load = os.getloadavg()[0]
    rows = measure(runs, args.epochs, args.rounds, args.seconds)
    print(markdown(rows))
    save(rows, args.seeds, load, args.out)
    print(f"written to {args.out}; load {load:.1f}")


if __name__ == "__main__":
    main()
