# SPDX-License-Identifier: Apache-2.0
r"""Several labels and numbers of the digits: three seeds, beside models of the pixels.

    python -m benchmarks.several_labels --write=runs/digits_tables
    python -m benchmarks.several_labels --seeds=0,1,2 --out=runs/several_labels

The first writes the tables that configs/labels_digits.py reads; the second writes them too, trains,
and keeps the test numbers of docs/own_data.md in benchmarks/results/several_labels.json. The
baselines are scikit-learn's: a logistic regression of each label, and ridge regression, on the
pixels of the same scans.
"""

import argparse
import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np

TRAIN, VAL = 1293, 144  # the rest is other writers', as of the digits
LABELS = {
    "even": (0, 2, 4, 6, 8),
    "prime": (2, 3, 5, 7),
    "big": (5, 6, 7, 8, 9),
    "loop": (0, 6, 8, 9),
}
NUMBERS = ("ink [px]", "slant")
RESULTS = Path(__file__).parent / "results" / "several_labels.json"
# The table's rows: runs, metric, its name there, unit, digits; baselines and their digits.
_RIDGE, _MEAN, _LOGISTIC = "ridge regression", "the mean", "logistic regression"
_SHOWN = (
    ("several_", "map", "`map`", "%", 1, {_LOGISTIC: 1}),
    ("several_", "micro_map", "`micro_map`", "%", 1, {_LOGISTIC: 1}),
    ("several_", "f1", "`f1` at val's threshold", "%", 1, {_LOGISTIC: 1}),
    ("numbers_", "mae_slant", "`mae` of the slant", "", 4, {_RIDGE: 4, _MEAN: 4}),
    ("numbers_", "r2_slant", "`r2` of the slant", "", 3, {_RIDGE: 3, _MEAN: 3}),
    ("numbers_", "mae_ink_px", "`mae` of the ink", "px", 3, {_RIDGE: 4, _MEAN: 2}),
    ("numbers_", "r2_ink_px", "`r2` of the ink", "", 4, {_RIDGE: 4, _MEAN: 3}),
)
_FIRST = ("map", "mae_slant")  # rows that name the baselines


def read() -> tuple[np.ndarray, np.ndarray]:
    """Return the scans [1797, 8, 8], 0 to 1, and their digits."""
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    return found.images / 16, found.target


def hot(digits: np.ndarray) -> np.ndarray:
    """Return the labels [N, 4] of digits; loop is -1 of a four."""
    labels = np.stack([np.isin(digits, own) for own in LABELS.values()], axis=1).astype(int)
    labels[digits == 4, list(LABELS).index("loop")] = -1
    return labels


def numbers(scans: np.ndarray) -> np.ndarray:
    """Return of each scan its ink, in full pixels, and its slant: columns moved a row upwards."""
    rows, columns = np.mgrid[0:8, 0:8]
    ink = scans.sum(axis=(1, 2))
    row, column = ((scans * axis).sum(axis=(1, 2)) / ink for axis in (rows, columns))
    down = rows - row[:, None, None]
    across = columns - column[:, None, None]
    slant = -(scans * down * across).sum(axis=(1, 2)) / (scans * down**2).sum(axis=(1, 2))
    return np.stack([ink, slant], axis=1)


def write(folder: Path) -> None:
    """Write the scans as PNG files, several.csv and numbers.csv."""
    scans, digits = read()
    (folder / "scans").mkdir(parents=True, exist_ok=True)
    splits = ["train"] * TRAIN + ["val"] * VAL + ["test"] * (len(scans) - TRAIN - VAL)
    several: list[tuple[str, ...]] = [("path", "label", "split")]
    measured: list[tuple[str, ...]] = [("path", *NUMBERS, "split")]
    every = zip(scans, hot(digits), numbers(scans), splits, strict=True)
    for k, (scan, labels, values, split) in enumerate(every):
        path = f"scans/{k:04}.png"
        cv2.imwrite(str(folder / path), np.round(scan * 255).astype(np.uint8))
        words = [
            ("?" if has < 0 else "") + name for name, has in zip(LABELS, labels, strict=True) if has
        ]
        several.append((path, "|".join(words), split))
        measured.append((path, *(f"{x:.5f}" for x in values), split))
    for name, rows in (("several.csv", several), ("numbers.csv", measured)):
        with (folder / name).open("w", newline="") as stream:
            csv.writer(stream, lineterminator="\n").writerows(rows)


def baselines() -> dict[str, dict[str, float]]:
    """Return the test metrics of models of the pixels, and of the training split's mean."""
    from sklearn.linear_model import LogisticRegression, RidgeCV

    from vit_jax.evals import multi_label, regression

    scans, digits = read()
    x, y, values = scans.reshape(len(scans), -1), hot(digits), numbers(scans)
    train, val, test = slice(0, TRAIN), slice(TRAIN, TRAIN + VAL), slice(TRAIN + VAL, None)
    scores = np.zeros(y.shape)
    for k in range(y.shape[1]):
        known = y[train, k] >= 0
        model = LogisticRegression(max_iter=2000).fit(x[train][known], y[train, k][known])
        scores[:, k] = model.predict_proba(x)[:, 1]
    threshold = multi_label.choose(scores[val], y[val])
    labels = multi_label.ranking(scores[test], y[test])
    labels |= multi_label.f1(scores[test] >= threshold, y[test])
    ridge = RidgeCV(np.logspace(-3, 3, 13)).fit(x[train], values[train]).predict(x[test])
    mean = np.broadcast_to(values[train].mean(axis=0), values[test].shape)
    return {
        "logistic regression": labels,
        "ridge regression": regression.summary(ridge, values[test], NUMBERS),
        "the mean": regression.summary(np.array(mean), values[test], NUMBERS),
    }


def table(path: Path = RESULTS) -> str:
    """Return docs/own_data.md's table: mean and deviation over the seeds, beside the baselines."""
    found = json.loads(path.read_text())
    lines = [
        "| test, mean and standard deviation of three seeds | ViT, 0.2 million parameters "
        "| on the pixels |",
        "|---|--:|--:|",
    ]
    for run, name, said, unit, digits, models in _SHOWN:
        scale = 100 if unit == "%" else 1
        ours = [scale * each[f"test/{name}"] for key, each in found.items() if key.startswith(run)]
        theirs = ", ".join(
            f"{scale * found['baselines'][model][name]:z.{decimals}f}"
            f"{f' {unit}' * bool(unit)}{f' ({model})' * (name in _FIRST)}"
            for model, decimals in models.items()
        )
        spread = f"{np.mean(ours):.{digits}f} ± {np.std(ours, ddof=1):.{digits}f}"
        lines.append(f"| {said} | {spread}{f' {unit}' * bool(unit)} | {theirs} |")
    return "\n".join(lines)


def main() -> None:
    """Write the tables, or train and keep what is measured on the test splits."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", type=Path, help="only write the tables there")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--runs", default="several,numbers")
    parser.add_argument("--duration", default="", help="of a run; the recipe's by default")
    parser.add_argument("--out", type=Path, default=Path("runs/several_labels"))
    given = parser.parse_args()
    if given.write:
        write(given.write)
        return
    from vit_jax.recipes import digits as recipes
    from vit_jax.train.loop import fit

    tables = given.out / "tables"
    write(tables)
    found: dict[str, Any] = {"baselines": baselines()}
    for run in given.runs.split(","):
        for seed in map(int, given.seeds.split(",")):
            config = recipes.several(run)
            config.data.name = config.data.name.replace("runs/digits_tables", str(tables))
            config = dataclasses.replace(
                config, seed=seed, duration=given.duration or config.duration
            )
            metrics = fit(config, given.out / f"{run}_{seed}").metrics
            found[f"{run}_{seed}"] = {k: x for k, x in metrics.items() if k.startswith("test/")}
            (given.out / "results.json").write_text(json.dumps(found, indent=1))
    whole = given.runs == "several,numbers" and not given.duration
    path = RESULTS if whole else given.out / "results.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{path}\n\n{table(path) if whole else json.dumps(found, indent=1)}")


if __name__ == "__main__":
    main()
