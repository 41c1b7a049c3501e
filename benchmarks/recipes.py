# SPDX-License-Identifier: Apache-2.0
"""Test top-1 on digits of augmentation, distillation, and pretraining, where labels are few.

    python -m benchmarks.recipes [--seeds 0 1 2] [--only plain convit_plain]

Trains every arm of `configs/tenth_digits.py` and `configs/finetune_digits.py` once per seed; a seed
has a teacher and a pretrained run of its own. Prints the tables of `docs/reproduce.md` and draws
its picture. With --only the other rows stay as they were measured before.
"""

import argparse
import dataclasses
import importlib
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import digits, record
from benchmarks.digits import Row
from vit_jax.config.tree import Config

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "recipes_digits.png"


class Run(NamedTuple):
    """A run: its workdir below runs/, its config and arm, and what the tables call it."""

    workdir: str
    config: str
    method: str

    @property
    def arm(self) -> str:
        """The config's argument; of one that takes none its name."""
        return self.config.rpartition(":")[2]

    @property
    def row(self) -> str:
        """What its row is called."""
        return f"`{self.config}` {self.method}"

    def load(self, seed: int, root: Path) -> Config:
        """Return its config, with the weights of other runs below `root` instead of runs/."""
        module, _, arm = self.config.partition(":")
        get_config = importlib.import_module(f"configs.{module}").get_config
        config = get_config(*[arm] if arm else [])
        config.seed = seed
        distill = getattr(config.objective, "distill", None)
        for node in (config.init, *([distill] if distill else [])):
            node.weights = node.weights.replace("ckpt:runs/", f"ckpt:{root}/")
        return config


# Those that others start from or learn from come before them.
RUNS = (
    Run("tenth_plain", "tenth_digits:plain", "ViT"),
    Run("tenth_augmented", "tenth_digits:augmented", "ViT, augmented"),
    Run("tenth_convit_plain", "tenth_digits:convit_plain", "ConViT"),
    Run("tenth_convit", "tenth_digits:convit", "ConViT, augmented"),
    Run("tenth_teacher_plain", "tenth_digits:teacher_plain", "ResNet"),
    Run("tenth_teacher", "tenth_digits:teacher", "ResNet, augmented: the teacher"),
    Run("tenth_distilled_plain", "tenth_digits:distilled_plain", "ViT, taught"),
    Run("tenth_distilled", "tenth_digits:distilled", "ViT, augmented, taught"),
    Run("tenth_distilled_hard", "tenth_digits:distilled_hard", "ViT, augmented, taught (hard)"),
    Run("tenth_unlabelled", "tenth_digits:unlabelled", "ViT, augmented, taught on all scans"),
    Run("finetune_digits_pretrain", "finetune_digits_pretrain", "ViT on 0 to 4, augmented"),
    Run("finetune_scratch", "finetune_digits:scratch", "ViT on 5 to 9"),
    Run("finetune_probe", "finetune_digits:probe", "pretrained, new head on 5 to 9"),
    Run("finetune_digits", "finetune_digits:finetune", "pretrained, then 5 to 9"),
    Run("scratch_augmented", "finetune_digits:scratch_augmented", "ViT on 5 to 9, augmented"),
    Run(
        "finetune_augmented",
        "finetune_digits:finetune_augmented",
        "pretrained, then 5 to 9, augmented",
    ),
)
# Claim: the arm that is to be better, the other one.
CLAIMS = {
    "augmentation beats none": ("augmented", "plain"),
    "a teacher beats none, not augmented": ("distilled_plain", "plain"),
    "a teacher beats none, augmented": ("distilled", "augmented"),
    "a teacher's hard guesses beat none, augmented": ("distilled_hard", "augmented"),
    "a teacher and unlabelled scans beat none": ("unlabelled", "augmented"),
    "the augmented ResNet beats the plain ViT": ("teacher", "plain"),
    "ResNet beats ViT, not augmented": ("teacher_plain", "plain"),
    "ResNet beats ViT, augmented": ("teacher", "augmented"),
    "ConViT beats ViT, not augmented": ("convit_plain", "plain"),
    "ConViT beats ViT, augmented": ("convit", "augmented"),
    "fine-tuning beats training from scratch": ("finetune", "scratch"),
    "fine-tuning beats a new head alone": ("finetune", "probe"),
    "fine-tuning beats scratch, augmented": ("finetune_augmented", "scratch_augmented"),
}


def train(seeds: Sequence[int], duration: str = "", runs: Sequence[Run] = RUNS) -> list[Row]:
    """Train every run once per seed, in workdirs that are deleted afterwards.

    `duration` instead of the configs' own makes a trial of it.
    """
    from vit_jax.train import build
    from vit_jax.train.loop import fit

    top1: dict[Run, list[float]] = {run: [] for run in runs}
    seconds: dict[Run, list[float]] = {run: [] for run in runs}
    num_train = {}
    for seed in seeds:
        with tempfile.TemporaryDirectory() as root:
            for run in runs:
                cfg = run.load(seed, Path(root))
                cfg.duration = duration or cfg.duration
                start = time.perf_counter()
                top1[run].append(fit(cfg, Path(root, run.workdir)).metrics["test/top1"])
                seconds[run].append(time.perf_counter() - start)
                print(f"{run.config}, seed {seed}: {top1[run][-1]:.2%}", flush=True)
                num_train[run] = len(build.open_train(cfg))
    return [
        Row(
            method=run.row,
            num_train=num_train[run],
            top1=tuple(top1[run]),
            seconds=tuple(seconds[run]),
        )
        for run in runs
    ]


def judge(rows: Sequence[Row]) -> str:
    """Lay the claims out as a Markdown table: do the seeds of one arm lie above the other's?"""
    arms = {run.arm: row for run in RUNS for row in rows if row.method == run.row}
    lines = [["claim", "arms", "difference, points", "holds"], ["---"] * 4]
    for claim, (better, worse) in CLAIMS.items():
        if not {better, worse} <= arms.keys():
            continue
        above, below = arms[better].top1, arms[worse].top1
        difference = 100 * (statistics.fmean(above) - statistics.fmean(below))
        if min(above) > max(below):
            holds = "yes: every seed above every other"
        elif difference > 0:
            holds = "on average: the seeds overlap"
        else:
            holds = "no"
        lines.append([claim, f"`{better}`, `{worse}`", f"{difference:+.1f}", holds])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw a point per seed and a line at the mean of every run."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 0.3 * len(rows) + 0.8), layout="constrained")
    for place, row in enumerate(rows):
        points = [100 * top1 for top1 in row.top1]
        axes.plot(points, [place] * len(points), "o", color="C0", alpha=0.6)
        axes.plot([statistics.fmean(points)], [place], "|", color="black", markersize=14)
    axes.set_yticks(range(len(rows)), [row.method.rpartition("` ")[2] for row in rows])
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("test top-1, %: points are seeds, bars their mean")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def read(path: Path, seeds: Sequence[int]) -> list[Row]:
    """Read the rows that were measured before; none where there is no file, or of other seeds."""
    content = json.loads(path.read_text()) if path.exists() else {}
    if content.get("seeds") != list(seeds):
        return []
    rows = [Row(**row) for row in content["rows"]]
    return [
        dataclasses.replace(row, top1=tuple(row.top1), seconds=tuple(row.seconds)) for row in rows
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arms = [run.arm for run in RUNS]
    parser.add_argument("--only", nargs="+", choices=arms, default=arms, metavar="ARM")
    parser.add_argument("--duration", default="", help="of every run, for a trial")
    parser.add_argument("--out", type=Path, default=record.RESULTS / "recipes_digits.json")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    args = parser.parse_args(argv)
    from vit_jax.process import startup

    startup.configure()
    measured = {row.method: row for row in read(args.out, args.seeds)}
    chosen = [run for run in RUNS if run.arm in args.only]
    measured |= {row.method: row for row in train(args.seeds, args.duration, chosen)}
    rows = [measured[run.row] for run in RUNS if run.row in measured]
    print(digits.markdown(rows))
    print(judge(rows))
    digits.save(rows, args.seeds, args.out)
    draw(rows, args.picture)
    print(f"written to {args.out} and {args.picture}")


if __name__ == "__main__":
    main()
