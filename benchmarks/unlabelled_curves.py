# SPDX-License-Identifier: Apache-2.0
"""Neighbours of the features, step by step, of every small config that learns without labels.

    python -m benchmarks.unlabelled_curves [digits glyphs folder continued] [--seeds 0 1 2]
        [--arms mae dino] [--root runs/unlabelled]

`folder` is of the letters of `benchmarks.own_images`, files of 40 to 200 pixels a side; `continued`
goes on there from the runs of `folder`, and from one of labels. The curves that
`benchmarks.self_supervised` measures stand in the picture too. Only commands that a user types are
run, two side by side, each on a core of its own. Finished runs stay below --root and are not run
again, so that a second call goes on where the first was stopped, and adds seeds and arms.
"""

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import glyphs, own_images, record, self_supervised
from benchmarks.self_supervised import cpu_seconds, metrics, run, side_by_side
from vit_jax.figures import plots

FILE = "unlabelled_curves.json"
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "self_supervised.png"
TITLES = {
    "digits": "digits, 144 of validation",
    "glyphs": "drawn letters, 600 of validation",
    "folder": "a folder of images, 121 of validation",
    "continued": "the folder, continued",
}


class Arm(NamedTuple):
    """A config and what it is called.

    Attributes:
        title: what it learns by.
        config: its file and run.
        flags: what is set beside that.
    """

    title: str
    config: str
    flags: tuple[str, ...] = ()


_GRAM = ("--config.objective.gram.weight=2", "--config.objective.gram.start=50%")
_LABELLED = ("--config=finetune_folder:small", "--config.data.transform.flip=false")
# The longest first, so that two cores end together.
ARMS: dict[str, dict[str, Arm]] = {
    "digits": {
        "gram": Arm("DINOv2, Gram anchoring", "unlabelled_digits:dinov2", _GRAM),
        "lejepa": Arm("LeJEPA", "unlabelled_digits:lejepa"),
        "ijepa": Arm("I-JEPA", "unlabelled_digits:ijepa"),
    },
    "glyphs": {
        "lejepa": Arm("LeJEPA", "unlabelled_glyphs:lejepa"),
        "ijepa": Arm("I-JEPA", "unlabelled_glyphs:ijepa"),
    },
    "folder": {
        "dino": Arm("DINO", "unlabelled_folder:dino_small"),
        "lejepa": Arm("LeJEPA", "unlabelled_folder:lejepa_small"),
        "ijepa": Arm("I-JEPA", "unlabelled_folder:ijepa_small"),
        "mae": Arm("MAE", "unlabelled_folder:mae_small"),
    },
    "continued": {
        "dino": Arm("from DINO, by DINO", "unlabelled_folder"),
        "labels": Arm("from labels, by DINO", "unlabelled_folder"),
        "mae": Arm("from MAE, by MAE", "unlabelled_folder"),
    },
}
# The split whose features are measured from the first step on; what continues does so by itself.
_PROBED = {"digits": "train[1293:]", "glyphs": "held_out", "folder": "val"}
# By arm: a marker and a line, and one of `plots.COLOURS`.
_STYLES = {
    **{"mae": ("s-", 0), "dino": ("^--", 1), "lejepa": ("v-", 2), "ijepa": ("P-.", 3)},
    **{"dinov2": ("D-.", 4), "gram": ("x:", 5), "mpp": ("o:", 6), "labels": ("o:", 6)},
}


def commands(name: str, arm: str, seed: int, root: Path) -> list[list[str]]:
    """Return the words of each command of an arm, the last of which is --workdir."""
    place, chosen = workdir(name, arm, seed, root), ARMS[name][arm]
    shared = [f"--config.seed={seed}"]
    if name == "glyphs":
        # By the splits that the numbers of `benchmarks.self_supervised` are of.
        shared.append(f"--config.data.name=folder:{images(name, root)}?rules=1")
    elif name != "digits":
        shared.append(f"--config.data.name=folder:{images(name, root)}")
    before: list[list[str]] = []
    own = list(chosen.flags)
    if name == "continued":
        if arm == "labels":
            before.append(["train", *_LABELLED, *shared, f"--workdir={place.parent / 'labelled'}"])
        else:
            before = commands("folder", arm, seed, root)
        own.append(f"--config.init.weights=ckpt:{before[-1][-1].removeprefix('--workdir=')}")
    if name in _PROBED:
        # With these, neighbours too are measured before the first step.
        probe = {"split": _PROBED[name], "every": "20%", "transform.crop": "resize"}
        own.append("--config.evals.features=features")
        own += [f"--config.evals.features.{field}={value}" for field, value in probe.items()]
    return [*before, ["train", f"--config={chosen.config}", *shared, *own, f"--workdir={place}"]]


def workdir(name: str, arm: str, seed: int, root: Path) -> Path:
    """Return where a run is."""
    return root / name / f"{arm}-{seed}" / "pretrained"


def images(name: str, root: Path) -> Path:
    """Return the folder of a dataset's images; `continued` has that of `folder`."""
    return root / ("glyphs" if name == "glyphs" else "folder") / "images"


def train(name: str, arms: Sequence[str], seeds: Sequence[int], root: Path) -> None:
    """Run all commands of a dataset, an arm on each core."""
    place = images(name, root)
    if name == "glyphs" and not place.exists():
        glyphs.main([str(place)])
    elif name != "digits" and not place.exists():
        own_images.draw(place)

    def work(item: tuple[str, int]) -> None:
        for words in commands(name, *item, root):
            run(words)

    side_by_side(work, [(arm, seed) for arm in arms for seed in seeds])


def curve(name: str, arm: str, root: Path) -> dict[str, Any] | None:
    """Read the curves of all finished seeds of an arm; None where there is none.

    A network with a moving average is read by that, and `student` is what is trained.
    """
    seeds = [seed for seed in range(100) if _finished(workdir(name, arm, seed, root))]
    if not seeds:
        return None
    places = [workdir(name, arm, seed, root) for seed in seeds]
    read = [metrics(place) for place in places]
    averaged = any("knn_ema/knn5" in row for row in read[0])
    end = "_ema" if averaged else ""
    content = {
        "arm": arm,
        "seeds": seeds,
        "steps": list(by_step(read[0], f"knn{end}/knn5")),
        "knn": [list(by_step(lines, f"knn{end}/knn5").values()) for lines in read],
        "rank": [list(by_step(lines, f"features{end}/rank").values()) for lines in read],
        "cpu_seconds": [cpu_seconds(place) for place in places],
    }
    if averaged:
        content["student"] = [list(by_step(lines, "knn/knn5").values()) for lines in read]
    return content


def _finished(place: Path) -> bool:
    return (place / "finished.json").exists()


def by_step(rows: Sequence[Mapping[str, Any]], key: str) -> dict[int, float]:
    """Return a metric at each step that has it."""
    return {row["step"]: row[key] for row in rows if key in row}


def collect(old: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Return the results with the curves of all runs below `root` in place of older ones."""
    curves: dict[str, list[dict[str, Any]]] = {}
    for name, arms in ARMS.items():
        kept = {row["arm"]: row for row in old.get("curves", {}).get(name, [])}
        found = {arm: curve(name, arm, root) or kept.get(arm) for arm in arms}
        curves[name] = [row for row in found.values() if row]
    return {"device": record.device(), "curves": curves}


def markdown(name: str, curves: Sequence[Mapping[str, Any]]) -> str:
    """Lay out the table of a dataset."""
    head = ["learns by", "steps", "kNN at step 0", "at the end", "each seed", "rank", "CPU seconds"]
    lines = [head, ["---"] * len(head)]
    for row in curves:
        starts, ends = [[points[i] for points in row["knn"]] for i in (0, -1)]
        ranks = [f"{statistics.fmean(p[i] for p in row['rank']):.1f}" for i in (0, -1)]
        lines.append(
            [
                ARMS[name][row["arm"]].title,
                f"{row['steps'][-1]:,}",
                f"{100 * statistics.fmean(starts):.1f} %",
                f"{100 * statistics.fmean(ends):.1f} %",
                ", ".join(f"{100 * end:.1f}" for end in ends),
                " to ".join(ranks),
                f"{statistics.fmean(row['cpu_seconds']):.3g}",
            ]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def tables(results: Path = record.RESULTS) -> dict[str, str]:
    """Return the table of each dataset."""
    curves = read(results).get("curves", {})
    return {f"{name}-curves": markdown(name, rows) for name, rows in curves.items() if rows}


def read(results: Path) -> dict[str, Any]:
    """Read what was measured."""
    path = results / FILE
    return json.loads(path.read_text()) if path.exists() else {}


def panels(results: Path = record.RESULTS) -> dict[str, list[tuple[str, Mapping[str, Any]]]]:
    """Return the titles and curves of each panel, with those of `benchmarks.self_supervised`."""
    before, new = self_supervised.read(results), read(results).get("curves", {})
    found: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for name, arms in ARMS.items():
        for row in before.get(name, {}).get("curves", []):
            title = self_supervised.OBJECTIVES[row["objective"]]
            found.setdefault(name, []).append((title, row | {"arm": row["objective"]}))
        for row in new.get(name, []):
            found.setdefault(name, []).append((arms[row["arm"]].title, row))
    return found


def draw(contents: Mapping[str, Sequence[tuple[str, Mapping[str, Any]]]], path: Path) -> None:
    """Draw kNN top-1 by step: a line at the mean of the seeds, a band from lowest to highest."""
    columns = min(len(contents), 2)
    rows = -(-len(contents) // columns)
    figure, found = plots.panels((4.6 * columns, 4.0 * rows), rows=rows, columns=columns, dpi=100)
    for axes, (name, lines) in zip(found, contents.items(), strict=False):
        for title, row in lines:
            points = [[100 * top1 for top1 in column] for column in zip(*row["knn"], strict=True)]
            marker, number = _STYLES[row["arm"]]
            mean = [statistics.fmean(column) for column in points]
            low, high = ([f(column) for column in points] for f in (min, max))
            style = {"color": plots.COLOURS[number]}
            axes.fill_between(row["steps"], low, high, alpha=0.15, linewidth=0, **style)
            seeds = len(row["knn"])
            label = title if seeds > 1 else f"{title}, 1 seed"
            axes.plot(row["steps"], mean, marker, label=label, markersize=4, **style)
        axes.set_title(TITLES[name], fontsize=10)
        axes.set_xlabel("step")
        axes.set_ylabel("kNN top-1, %")
        axes.set_ylim(0, max(axes.get_ylim()[1], 20))  # a few points of chance stay small
        # Below, where it covers no line.
        plots.legend(axes, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    for axes in found[len(contents) :]:
        axes.set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", default=list(ARMS), metavar="DATASET")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument(
        "--arms", nargs="+", default=sorted({a for arms in ARMS.values() for a in arms})
    )
    parser.add_argument("--root", type=Path, default=Path("runs/unlabelled"))
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    args = parser.parse_args(argv)
    if unknown := sorted(set(args.names) - set(ARMS)):
        parser.error(f"no dataset {unknown[0]!r}; valid: {', '.join(ARMS)}")
    for name in args.names:
        train(name, [arm for arm in ARMS[name] if arm in args.arms], args.seeds, args.root)
        content = collect(read(args.out), args.root)
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / FILE).write_text(json.dumps(content, indent=1) + "\n")
        print(markdown(name, content["curves"][name]))  # `python -m benchmarks.tables` places it
    draw(panels(args.out), args.picture)


if __name__ == "__main__":
    main()
