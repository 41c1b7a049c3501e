# SPDX-License-Identifier: Apache-2.0
"""Test top-1 of `configs/vit_mu_digits.py` on unseen writers, beside scikit-learn's classifiers.

    python -m benchmarks.digits [--seeds 0 1 2]

The run trains on the first 1,293 scans, since 144 are kept for validation; the classifiers are
fitted on all 1,437 that are not test. Both are measured on the splits of published results too,
and the classifiers on 144 scans. `python -m benchmarks.tables` puts the tables on their pages.
"""

import argparse
import copy
import dataclasses
import datetime
import importlib.metadata
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import classical, record

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "scikit-learn", "opencv-python-headless")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One method's results on the test split.

    Attributes:
        method: its name.
        num_train: images it was fitted on.
        top1: one share in [0, 1] per seed.
        seconds: one per seed, of the whole call (for the ViT: compilation, evaluation and saving).
    """

    method: str
    num_train: int
    top1: tuple[float, ...]
    seconds: tuple[float, ...]

    def cells(self) -> list[str]:
        """Return the columns of the table."""
        each = ", ".join(f"{100 * top1:.1f}" for top1 in self.top1)
        mean = f"{100 * statistics.fmean(self.top1):.1f} %"
        spread = f"{100 * (max(self.top1) - min(self.top1)):.1f}" if len(self.top1) > 1 else "-"
        seconds = f"{statistics.fmean(self.seconds):.3g}"
        return [self.method, f"{self.num_train:,}", mean, each, spread, seconds]


def train(seeds: Sequence[int], split: classical.Split | None = None) -> Row:
    """Train the config once per seed, each in a workdir that is deleted afterwards.

    On another split nothing is kept for validation, whose result changes nothing of a run.
    """
    from configs.vit_mu_digits import get_config
    from vit_jax.train import build
    from vit_jax.train.loop import fit

    top1, seconds = [], []
    cfg = get_config()
    if split:
        cfg.data.train_split, cfg.evals["test"].split = split.train_split, split.test_split
        del cfg.evals["val"]
    for seed in seeds:
        cfg.seed = seed
        with tempfile.TemporaryDirectory() as workdir:
            start = time.perf_counter()
            top1.append(fit(copy.deepcopy(cfg), workdir).metrics["test/top1"])
            seconds.append(time.perf_counter() - start)
    num_train = len(build.open_train(cfg))
    name = "`configs/vit_mu_digits.py`"
    return Row(method=name, num_train=num_train, top1=tuple(top1), seconds=tuple(seconds))


def fit_classical(method: str, split: classical.Split, seeds: Sequence[int]) -> Row:
    """Fit one of scikit-learn's classifiers, a forest once per seed."""
    tried = seeds if method == classical.FOREST else seeds[:1]
    top1, seconds = zip(*(classical.top1(method, split, seed) for seed in tried), strict=True)
    return Row(method=method, num_train=split.train.stop, top1=top1, seconds=seconds)


def elsewhere(seeds: Sequence[int]) -> dict[str, list[Row]]:
    """Measure the ViT, and the methods that were published there, on each of the other splits."""
    rows = {}
    for split in (classical.NINE_TENTHS, classical.HALVES):
        methods = [each.method for each in classical.PUBLISHED if each.split == split]
        theirs = [fit_classical(method, split, seeds) for method in methods]
        rows[split.name] = [train(seeds, split), *theirs]
    return rows


def beside_published(content: dict[str, Any]) -> str:
    """Lay out what others published of these scans beside what was measured on their splits."""
    lines = [["method", "trained on, tested on", "published", "here", "source"], ["---"] * 5]
    for each in classical.PUBLISHED:
        name = each.split.name if isinstance(each.split, classical.Split) else each.split
        rows = [Row(**row) for row in content["elsewhere"].get(name, ())]
        here = next((row.cells()[2] for row in rows if row.method == each.method), "not run")
        lines.append([each.method, name, f"{each.top1} %", here, each.source])
    for name, rows in content["elsewhere"].items():
        ours = Row(**rows[0])
        lines.append([f"`vit_mu_digits`: {ours.cells()[3]}", name, "", ours.cells()[2], ""])
    shares = content["shuffled"]
    mean = f"{100 * statistics.fmean(shares):.1f} %"
    lines.append([classical.SVM, "random four fifths, the rest (each in turn)", "", mean, ""])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def markdown(rows: Sequence[Row]) -> str:
    """Lay rows out as a Markdown table, one line each, for the terminal and the README alike."""
    head = ["method", "trained on", "test top-1, mean", "each seed", "max - min", "seconds"]
    lines = [head, ["---"] * len(head), *(row.cells() for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def save(rows: Sequence[Row], seeds: Sequence[int], path: Path) -> None:
    """Write rows, seeds, date, device and versions as JSON."""
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    content = {
        "device": record.device(),
        "date": datetime.date.today().isoformat(),
        "versions": {"python": platform.python_version(), **versions},
        "seeds": list(seeds),
        "rows": [dataclasses.asdict(row) for row in rows],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=record.RESULTS / "digits.json")
    args = parser.parse_args()
    from vit_jax.process import startup

    startup.configure()
    rows = [train(args.seeds)]
    rows += [fit_classical(x, classical.WRITERS, args.seeds) for x in classical.SHOWN]
    tenth = [fit_classical(x, classical.TENTH, args.seeds) for x in classical.SHOWN]
    others = elsewhere(args.seeds)
    print(markdown([*rows, *tenth]))
    save(rows, args.seeds, args.out)
    content = json.loads(args.out.read_text())
    content["tenth"] = [dataclasses.asdict(row) for row in tenth]
    content["elsewhere"] = {
        name: [dataclasses.asdict(row) for row in found] for name, found in others.items()
    }
    content["shuffled"] = classical.shuffled(classical.SVM)
    args.out.write_text(json.dumps(content, indent=1) + "\n")
    print(beside_published(content))
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
