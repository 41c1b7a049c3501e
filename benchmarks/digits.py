# SPDX-License-Identifier: Apache-2.0
"""Test top-1 of `configs/vit_mu_digits.py` on unseen writers, beside two classical methods.

    python -m benchmarks.digits [--seeds 0 1 2]

The run trains on the first 1,293 scans, since 144 are kept for validation. The classical methods
are fitted on all 1,437 that are not test, in their best known settings for these scans.
"""

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import record

_TEST = 360  # the last ones in the published order
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


def train(seeds: Sequence[int]) -> Row:
    """Train the config once per seed, each in a workdir that is deleted afterwards."""
    from configs.vit_mu_digits import get_config
    from vit_jax.train import build
    from vit_jax.train.loop import fit

    top1, seconds = [], []
    for seed in seeds:
        cfg = get_config()
        cfg.seed = seed
        with tempfile.TemporaryDirectory() as workdir:
            start = time.perf_counter()
            top1.append(fit(cfg, workdir).metrics["test/top1"])
            seconds.append(time.perf_counter() - start)
    num_train = len(build.open_train(get_config()))
    return Row(method="ViT", num_train=num_train, top1=tuple(top1), seconds=tuple(seconds))


def classical() -> list[Row]:
    """Fit an RBF support-vector machine (C=10) and 3 nearest neighbours on the pixels."""
    from sklearn.datasets import load_digits
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.svm import SVC

    images, labels = load_digits(return_X_y=True)
    makers: dict[str, Callable[[], Any]] = {
        "SVM, RBF, C=10": lambda: SVC(C=10, gamma=0.001),  # pyright: ignore[reportArgumentType]
        "kNN, k=3": lambda: KNeighborsClassifier(3),
    }
    rows = []
    for method, make in makers.items():
        start = time.perf_counter()
        model = make().fit(images[:-_TEST], labels[:-_TEST])
        top1 = float(model.score(images[-_TEST:], labels[-_TEST:]))
        took = time.perf_counter() - start
        rows.append(
            Row(method=method, num_train=len(images) - _TEST, top1=(top1,), seconds=(took,))
        )
    return rows


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
    from vit_jax import startup

    startup.configure()
    rows = [train(args.seeds), *classical()]
    print(markdown(rows))
    save(rows, args.seeds, args.out)
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
