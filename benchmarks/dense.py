# SPDX-License-Identifier: Apache-2.0
"""Masks, objects and depth of letters on photographs, three seeds, beside a baseline each.

    python -m benchmarks.dense
    python -m benchmarks.dense --seeds 0 --runs eomt instances

Draws `benchmarks.scenes`, pretrains once on other letters, and trains every run of
configs/scenes.py from there. A run that is there is not trained again. The baselines say the same
of every pixel: the photograph, and the mean depth. Writes results/scenes.json, of which
`benchmarks.tables` makes the tables of docs/segmentation.md and docs/detection.md, and
docs/images/scenes_*.png.
"""

import argparse
import json
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import record, scenes, self_supervised

ROOT = Path(__file__).parent.parent
FILE = record.RESULTS / "scenes.json"
# Each run, what its row is called, and the metrics that are shown.
PIXELS = ("miou", "accuracy")
DEPTHS = ("rmse", "abs_rel", "delta1")
OBJECTS = ("mask_ap", "mask_ap50", "box_ap", "box_ap50")
RUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "linear": ("a linear layer, the encoder frozen", PIXELS),
    "linear_trained": ("a linear layer and the encoder", PIXELS),
    "eomt": ("EoMT", PIXELS),
    "instances": ("EoMT", OBJECTS),
    "depth_linear": ("a linear layer, the encoder frozen", DEPTHS),
    "depth_dpt": ("DPT and the encoder", DEPTHS),
}
NOTHING = {"segmentation": "the photograph everywhere", "depth": "one depth everywhere"}


def train(run: str, seed: int) -> Path:
    """Train a run, or leave it as it is where it has ended; return its folder."""
    place = Path(f"{scenes_place()}_{run}" + (f"-{seed}" if run in RUNS else ""))
    words = [f"--config=scenes:{run}", f"--config.seed={seed}", f"--workdir={place}"]
    self_supervised.run(["train", *words])
    return place


def scenes_place() -> str:
    """Return where the scenes lie, and what the names of the runs' folders begin with."""
    from vit_jax.recipes import scenes as recipe

    return recipe.PLACE


def measured(place: Path, names: Sequence[str]) -> dict[str, float]:
    """Return the last metrics of a run's val."""
    for row in reversed(self_supervised.metrics(place)):
        if f"val/{names[0]}" in row:
            return {name: row[f"val/{name}"] for name in names}
    raise RuntimeError(f"{place} has no val/{names[0]}")


def baselines(folder: Path) -> dict[str, dict[str, float]]:
    """Return the metrics of saying the same of every pixel."""
    from PIL import Image

    def pixels(kind: str, split: str) -> np.ndarray:
        files = sorted((folder / kind / split).glob("*.png"))
        return np.stack([np.asarray(Image.open(file)) for file in files]).astype(np.float64)

    masks, count = pixels("masks", "val"), len(scenes.LETTERS) + 1
    share = float((masks == 0).mean())
    # The photograph's intersection is itself, its union everything; the letters have neither.
    found = {"segmentation": {"miou": share / count, "accuracy": share}}
    train, test = (pixels("depth", split) / 1000 for split in ("train", "val"))
    guess = float(train.mean())
    ratio = np.maximum(guess / test, test / guess)
    each = {
        "rmse": np.sqrt(((test - guess) ** 2).mean(axis=(1, 2))),
        "abs_rel": (np.abs(test - guess) / test).mean(axis=(1, 2)),
        "delta1": (ratio < 1.25).mean(axis=(1, 2)),
    }
    found["depth"] = {name: float(value.mean()) for name, value in each.items()}
    return found


def table(content: Mapping[str, Any], runs: Sequence[str], baseline: str = "") -> str:
    """Return the Markdown table of some runs: mean and range over the seeds."""
    names = RUNS[runs[0]][1]
    lines = [f"| | {' | '.join(names)} |", f"|---|{'--:|' * len(names)}"]
    if baseline:
        said = content["baselines"][baseline]
        lines.append(f"| {NOTHING[baseline]} | {' | '.join(_shown(n, [said[n]]) for n in names)} |")
    for run in runs:
        seeds = content["runs"].get(run, {})
        if seeds:
            cells = [_shown(n, [each[n] for each in seeds.values()]) for n in names]
            lines.append(f"| {RUNS[run][0]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _shown(name: str, values: Sequence[float]) -> str:
    scale, unit = (1, "") if name in ("rmse", "abs_rel") else (100, " %")
    digits = 3 if scale == 1 else 1
    mean = f"{scale * statistics.fmean(values):.{digits}f}{unit}"
    if len(values) == 1:
        return mean
    ends = f"{scale * min(values):.{digits}f} to {scale * max(values):.{digits}f}"
    return f"{mean} ({ends})"


def tables(file: Path = FILE) -> dict[str, str]:
    """Return the tables of the pages, by the name of their marks."""
    content = json.loads(file.read_text())
    return {
        "scenes-pixels": table(content, ("linear", "linear_trained", "eomt"), "segmentation"),
        "scenes-objects": table(content, ("instances",)),
        "scenes-depth": table(content, ("depth_linear", "depth_dpt"), "depth"),
    }


def pictures(seed: int) -> None:
    """Copy the sheets of the first seed's reports into docs."""
    for run, name in (("eomt", "masks"), ("instances", "objects")):
        sheet = Path(f"{scenes_place()}_{run}-{seed}", "val", "figures", "masks.png")
        shutil.copy(sheet, ROOT / "docs" / "images" / f"scenes_{name}.png")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dense")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--out", type=Path, default=FILE)
    args = parser.parse_args(argv)
    folder = Path(scenes_place())
    if not folder.exists():
        scenes.write(folder)
    train("others", 0)
    content: dict[str, Any] = {"runs": {}}
    if args.out.exists():
        content = json.loads(args.out.read_text())
    content["device"], content["baselines"] = record.device(), baselines(folder)
    for seed in args.seeds:
        for run in args.runs:
            place = train(run, seed)
            content["runs"].setdefault(run, {})[str(seed)] = measured(place, RUNS[run][1])
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(content, indent=1) + "\n")
    if {"eomt", "instances"} <= {*args.runs}:
        pictures(args.seeds[0])
    print("\n\n".join(tables(args.out).values()))


if __name__ == "__main__":
    main()
