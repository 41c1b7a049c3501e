# SPDX-License-Identifier: Apache-2.0
"""Every objective from the same start, on the same images, for the same FLOPs: what is it worth?

    python -m benchmarks.referee [digits glyphs] [--seeds 0 1 2] [--arms mae dino] [--cores 2]

An arm is a run of `configs/referee_digits.py` or `configs/referee_glyphs.py`, as long as its share
of `FLOPS` lets it be, counted by `vit_jax.cost`. The features of all are probed alike: five nearest
neighbours and a linear classifier, fitted to the same few labels, on images that no run has seen.
Finished runs stay below --root and are not run again, so that a second call goes on where the first
was stopped, with other seeds and arms too; the results are of all that is there. The same on
ImageNet-1k: `vit_jax sweep plan configs/sweeps/referee_imagenet.py`.
"""

import argparse
import datetime
import importlib.metadata
import json
import math
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import glyphs, record
from benchmarks.self_supervised import metrics, run, seconds, side_by_side
from vit_jax.config.tree import Config
from vit_jax.recipes import referee

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "referee.png"
START = "start"  # no training at all
TITLES = {
    START: "the start, untrained",
    "mpp": "MPP",
    "mae": "MAE",
    "dino": "DINO",
    "ibot": "iBOT",
    "dinov2": "DINOv2",
    "gram": "DINOv2 with Gram anchoring",
    "lejepa": "LeJEPA",
    "ijepa": "I-JEPA",
    "supervised": "supervised, by all labels",
}
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "scikit-learn", "opencv-python-headless")
_PROBES = {"knn": "test_knn/knn5", "linear": "test_linear/linear"}


class Study(NamedTuple):
    """Images, the FLOPs that each arm trains for, and what the page says of the probes."""

    config: str
    recipe: Callable[[str], Config]
    flops: float
    num_labels: int
    num_test: int


STUDIES = {
    "digits": Study("referee_digits", referee.digits, 4e12, 144, 360),
    "glyphs": Study("referee_glyphs", referee.glyphs, 1e13, 400, 2400),
}


def duration(name: str, arm: str) -> str:
    """Return how long an arm may train, "53476 examples"."""
    if arm == START:
        return "1 steps"
    from vit_jax.sweeps import price  # late: --help does not wait for it

    config = STUDIES[name].recipe(arm)
    return price.examples(config.model, STUDIES[name].flops, config.objective)


def command(name: str, arm: str, seed: int, long: str, root: Path) -> list[str]:
    """Return the words of the command that trains and probes an arm, the last is --workdir."""
    begun = "mpp" if arm == START else arm
    words = ["train", f"--config={STUDIES[name].config}:{begun}", f"--config.duration={long}"]
    words.append(f"--config.seed={seed}")
    if arm == START:
        words.append("--config.optim.lr=1e-12")
    if name == "glyphs":
        # By the splits that the published numbers are of.
        words.append(f"--config.data.name=folder:{root / 'glyphs' / 'images'}?rules=1")
    return [*words, f"--workdir={root / name / f'{arm}-{seed}'}"]


def train(name: str, seeds: Sequence[int], arms: Sequence[str], root: Path, cores: int) -> None:
    """Train what is not finished, a run on each core; the first seed of all arms first."""
    images = root / "glyphs" / "images"
    if name == "glyphs" and not images.exists():
        glyphs.main([str(images)])
    long = {arm: duration(name, arm) for arm in arms}
    pairs = [(arm, seed) for seed in seeds for arm in arms]
    side_by_side(lambda pair: run(command(name, *pair, long[pair[0]], root)), pairs, cores)


def read_arm(name: str, arm: str, root: Path) -> dict[str, Any] | None:
    """Read the finished runs of an arm, a number for each seed; None where there are none."""
    place = root / name
    found = {
        int(path.parent.name.rpartition("-")[2]): metrics(path.parent)
        for path in place.glob(f"{arm}-*/finished.json")
    }
    if not found:
        return None
    seeds = sorted(found)
    last = {seed: _last(found[seed]) for seed in seeds}
    steps = max(row["step"] for row in found[seeds[0]])
    batch = STUDIES[name].recipe("mpp" if arm == START else arm).data.batch_size
    return {
        "arm": arm,
        "seeds": seeds,
        "steps": steps,
        "examples": 0 if arm == START else steps * batch,
        **{probe: [last[s][key] for s in seeds] for probe, key in _PROBES.items()},
        **{
            key: [last[s][f"features/{key}"] for s in seeds]
            for key in ("rank", "similarity", "cka", "overlap")
        },
        "curve": _curve([found[seed] for seed in seeds]),
        "seconds": [seconds(found[seed]) for seed in seeds],
    }


def _last(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the last value of each metric, the moving average's of what has one."""
    found: dict[str, Any] = {}
    for row in rows:
        found |= row
    average = {key: value for key, value in found.items() if "_ema/" in key}
    return found | {key.replace("_ema/", "/"): value for key, value in average.items()}


def _curve(runs: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return neighbours of held-out images by step, those of the moving average if there is one."""
    key = "knn_ema/knn5" if any("knn_ema/knn5" in row for row in runs[0]) else "knn/knn5"
    points = [{row["step"]: row[key] for row in rows if key in row} for rows in runs]
    steps = sorted(set.intersection(*(set(each) for each in points)))
    return {"steps": steps, "knn": [[each[step] for step in steps] for each in points]}


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean by Student's t; None of a single value."""
    if len(values) < 2:
        return None
    from scipy.stats import t  # scikit-learn needs it as well

    mean, spread = statistics.fmean(values), statistics.stdev(values)
    half = float(t.ppf(0.975, len(values) - 1)) * spread / math.sqrt(len(values))
    return mean - half, mean + half


def behind(content: Mapping[str, Any], probe: str) -> dict[str, tuple[float, ...]]:
    """Return how far each arm is behind the best without labels, seed by seed, on its own start.

    The best is by the mean over its seeds; only seeds that both have are compared.
    """
    arms = {row["arm"]: dict(zip(row["seeds"], row[probe], strict=True)) for row in content["arms"]}
    # Where none of them was trained yet, the best of what was.
    rivals = {name: of for name, of in arms.items() if name not in (START, "supervised")} or arms
    best = rivals[max(rivals, key=lambda name: statistics.fmean(rivals[name].values()))]
    return {
        name: tuple(value - best[seed] for seed, value in of.items() if seed in best)
        for name, of in arms.items()
    }


def _percent(values: Sequence[float], *, signed: bool = False) -> str:
    if not values:
        return ""
    sign, bounds = "+" if signed else "", interval(values)
    text = f"{100 * statistics.fmean(values):{sign}.1f}"
    if bounds is None:
        return text
    low, high = (100 * each for each in bounds)
    return f"{text} ({low:{sign}.1f} to {high:{sign}.1f})"


def markdown(content: Mapping[str, Any]) -> str:
    """Lay out the table of a study."""
    head = ["learns by", "images seen", "kNN, %", "linear, %", "each seed"]
    head += ["linear, behind the best", "rank", "CKA with the start", "seconds"]
    lines = [head, ["---"] * len(head)]
    apart = behind(content, "linear")
    for row in content["arms"]:
        apart_by = apart[row["arm"]]
        best = any(apart_by) is False and row["arm"] not in (START, "supervised")
        lines.append(
            [
                TITLES[row["arm"]],
                f"{row['examples']:,}",
                _percent(row["knn"]),
                _percent(row["linear"]),
                ", ".join(f"{100 * value:.1f}" for value in row["linear"]),
                "the best" if best else _percent(apart_by, signed=True),
                f"{statistics.fmean(row['rank']):.1f}",
                f"{statistics.fmean(row['cka']):.2f}",
                f"{statistics.fmean(row['seconds']):.3g}",
            ]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def collect(name: str, root: Path) -> dict[str, Any]:
    """Read all finished runs of a study, the best arm first."""
    study = STUDIES[name]
    found = [row for arm in TITLES if (row := read_arm(name, arm, root)) is not None]
    versions = {package: importlib.metadata.version(package) for package in _PACKAGES}
    return {
        "device": record.device(),
        "date": datetime.date.today().isoformat(),
        "versions": {"python": platform.python_version(), **versions},
        "flops": study.flops,
        "num_labels": study.num_labels,
        "num_test": study.num_test,
        "arms": sorted(found, key=lambda row: -statistics.fmean(row["linear"])),
    }


def read(results: Path) -> dict[str, dict[str, Any]]:
    """Read the files of the studies that were measured."""
    paths = {name: results / f"referee_{name}.json" for name in STUDIES}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def tables(results: Path = record.RESULTS) -> dict[str, str]:
    """Return the tables of every study that was measured."""
    return {f"referee-{name}": markdown(content) for name, content in read(results).items()}


def draw(contents: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw each arm's probes, a bar for the interval and a dot for each seed, the best on top."""
    import matplotlib.pyplot as plt

    most = max(len(content["arms"]) for content in contents.values())
    size = (4.6 * len(contents) + 0.4, 0.42 * most + 1.2)
    figure = plt.figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(contents), squeeze=False)[0]
    for axes, (name, content) in zip(panels, contents.items(), strict=True):
        rows = content["arms"][::-1]
        for probe, shift, marker in (("linear", 0.15, "o"), ("knn", -0.15, "s")):
            grey = "black" if probe == "linear" else "0.55"
            for i, row in enumerate(rows):
                values = [100 * value for value in row[probe]]
                if bounds := interval(values):
                    axes.plot(bounds, [i + shift] * 2, color=grey, alpha=0.4, linewidth=4)
                label = {"linear": "linear", "knn": "kNN"}[probe] if not i else None
                y = [i + shift] * len(values)
                axes.plot(values, y, marker, color=grey, markersize=4, label=label)
        axes.set_yticks(range(len(rows)), [TITLES[row["arm"]] for row in rows])
        axes.set_title(f"{name}: {content['flops']:.0e} FLOPs each")
        axes.set_xlabel(f"top-1 from {content['num_labels']} labels, %")
        axes.set_xlim(left=max(axes.get_xlim()[0], 0), right=min(axes.get_xlim()[1], 100))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("studies", nargs="*", default=list(STUDIES), metavar="STUDY")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=list(TITLES), default=list(TITLES))
    parser.add_argument("--cores", type=int, default=2, help="runs at a time, each on a core")
    parser.add_argument("--root", type=Path, default=Path("runs/referee"))
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    args = parser.parse_args(argv)
    if unknown := sorted(set(args.studies) - set(STUDIES)):
        parser.error(f"no study {unknown[0]!r}; valid: {', '.join(STUDIES)}")
    for name in args.studies:
        train(name, args.seeds, args.arms, args.root, args.cores)
        content = collect(name, args.root)
        path = args.out / f"referee_{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n")
        print(markdown(content))  # `python -m benchmarks.tables` puts it on the page
    draw(read(args.out), args.picture)


if __name__ == "__main__":
    main()
