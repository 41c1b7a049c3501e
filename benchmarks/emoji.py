# SPDX-License-Identifier: Apache-2.0
"""Emoji of an artist never seen, found by their names: two towers trained on other artists'.

    python -m benchmarks.emoji [ARM ...] [--seeds 0 1 2] [--root runs/emoji]

It draws the emoji (`benchmarks.drawings`, which needs npm and cairosvg) and runs only commands that
a user types, two side by side, each on a core of its own. What is finished stays below --root and
is not run again: half an hour of a core for a seed. By default twemoji and openmoji are held out;
trials are of one seed and see val_concept alone, by which the config's settings are chosen. Results
of other arms stay.
"""

import argparse
import datetime
import importlib.metadata
import json
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import drawings, record
from benchmarks.self_supervised import metrics, seconds, side_by_side

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "emoji.png"
FILE = "emoji.json"
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "tokenizers", "cairosvg")
_SIZE, _CONTEXT = 1000, 12  # of the tokenizer, as the config has them


class Arm(NamedTuple):
    """One way to train.

    Attributes:
        title: in the tables.
        held_out: whose drawings are held out.
        sets: of drawings to train on, as `drawings.SETS` names them.
        captions: the column that they are drawn from.
        flags: what differs from the config.
        trial: is of one seed, and measured on val_concept alone.
    """

    title: str
    held_out: str = "twemoji"
    sets: str = "all"
    captions: str = "half"
    flags: tuple[str, ...] = ()
    trial: bool = False


_SHORT = ("--config.duration=1400 steps",)
_RANDAUG = (
    *_SHORT,
    "--config.data.transform.auto_augment=rand-m9-mstd0.5-inc1",
    "--config.data.transform.color_jitter=0",
)
ARMS = {
    "twemoji": Arm("Twemoji"),
    "openmoji": Arm("OpenMoji", "openmoji"),
    "three": Arm("Twemoji, trained on three artists", sets="three"),
    "short": Arm("fewer steps", flags=_SHORT, trial=True),
    "drawn": Arm("no drawings outlined here", sets="drawn", flags=_SHORT, trial=True),
    "randaug": Arm("RandAugment, colours not jittered", flags=_RANDAUG, trial=True),
    "names": Arm("the name as the only caption", captions="caption", flags=_SHORT, trial=True),
    "keywords": Arm(
        "the name no oftener than each keyword", captions="captions", flags=_SHORT, trial=True
    ),
}
TEST = ("test_artist", "test_both")
# What is kept of each measurement of a split.
SCORES = {
    "name": ("top1", "top5"),
    "called": ("top1", "top5"),
    "found": ("image_to_text_r10", "text_to_image_r1", "text_to_image_r10"),
}


def commands(name: str, seed: int, root: Path) -> list[tuple[list[str], Path]]:
    """Return the words of each command of a run, with the file that says that it is done."""
    arm = ARMS[name]
    files = drawings.tables(root / "drawings", arm.held_out)
    captions = files.captions[arm.sets]
    place = root / f"{name}-{seed}"
    words, workdir = place / "words.json", place / "run"
    sizes = (f"--size={_SIZE}", f"--context={_CONTEXT}")
    settings = (
        "--config=emoji_imagetext",
        f"--config.data.name=csv:{captions}?captions={arm.captions}",
        f"--config.objective.tokenizer={words}",
        f"--config.seed={seed}",
        *arm.flags,
    )
    found: list[tuple[list[str], Path]] = [
        (["train-tokenizer", f"csv:{captions}", *sizes, f"--out={words}"], words),
        (["train", *settings, f"--workdir={workdir}"], workdir / "finished.json"),
    ]
    called = f"--names={root / 'drawings' / drawings.NAMES}"
    for split, table in files.splits.items():
        if arm.trial and split in TEST:
            continue
        measured = (f"--from={workdir}", f"--dataset=csv:{table}?captions=caption")
        for kind, verb in {
            "name": ("zero-shot", "--templates={}"),
            "called": ("zero-shot", "--templates={}", called),
            "found": ("retrieval",),
        }.items():
            out = result(place, split, kind)
            found.append(([*verb, *measured, f"--split={split}", f"--out={out}"], out))
    return found


def result(place: Path, split: str, kind: str) -> Path:
    """Return the file of what was measured on a split.

    By the name alone (`name`), by the name and the keywords (`called`), by retrieval (`found`).
    """
    return place / f"{split}-{kind}.json"


def run(name: str, seed: int, root: Path) -> None:
    """Run the commands of a run that are not done.

    Raises CalledProcessError: one failed; its output is in ROOT/NAME-SEED.log.
    """
    place = root / f"{name}-{seed}"
    place.mkdir(parents=True, exist_ok=True)
    for words, done in commands(name, seed, root):
        if done.exists():
            continue
        with Path(f"{place}.log").open("a") as log:
            command = [sys.executable, "-m", "vit_jax", *words]
            subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
        print(f"done: {' '.join(words)}", flush=True)


def collect(name: str, seeds: Sequence[int], root: Path) -> dict[str, Any]:
    """Read what the runs of an arm have measured: a number for each seed."""
    arm = ARMS[name]
    places = [root / f"{name}-{seed}" for seed in seeds]
    rows = [metrics(place / "run") for place in places]

    def read(split: str) -> dict[str, dict[str, list[float]]]:
        """Return the scores of a split, a number for each seed."""
        found: dict[str, dict[str, list[float]]] = {}
        for kind, scores in SCORES.items():
            each = [json.loads(result(place, split, kind).read_text()) for place in places]
            found[kind] = {x: [round(one[x], 5) for one in each] for x in scores}
        return found

    return {
        "arm": name,
        **arm._asdict(),
        "seeds": list(seeds),
        "steps": max(row["step"] for row in rows[0]),
        "seconds": [round(seconds(lines)) for lines in rows],
        **{
            split: read(split)
            for split in drawings.SPLITS[1:]
            if not arm.trial or split not in TEST
        },
    }


def baselines(root: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """Measure the nearest training drawing in pixels for each table of some arms."""
    arms = [ARMS[name] for name in names if not ARMS[name].trial]
    used = list(dict.fromkeys((arm.held_out, arm.sets) for arm in arms))
    rows = []
    for artist, sets in used:
        captions = drawings.tables(root / "drawings", artist).captions[sets]
        counts = {s: sum(r["split"] == s for r in drawings.read_table(captions)) for s in TEST}
        top1 = round(drawings.pixels_top1(captions), 5)
        rows.append({"held_out": artist, "sets": sets, "names": counts, "pixels": top1})
    return rows


def _percent(shares: Sequence[float]) -> str:
    mean = f"{100 * statistics.fmean(shares):.1f}"
    each = ", ".join(f"{100 * share:.1f}" for share in shares)
    return f"{mean} ({each})" if len(shares) > 1 else mean


def markdown(content: dict[str, Any]) -> str:
    """Lay out the tables: on the artist held out, and on val_concept, with the trials."""
    head = ["held out, in %", "names", "top-1 by names", "and keywords"]
    head += ["image to name: R@10", "name to image: R@1", "R@10"]
    lines = [head, ["---", *["--:"] * 6]]
    for split, which in zip(TEST, ("seen", "unseen"), strict=True):
        for base in content["baselines"]:
            chosen = [row for row in content["rows"] if _same(row, base) and split in row]
            title = f"{chosen[0]['title']}, concepts {which}"
            names = base["names"][split]
            chances = [f"{100 * k / names:.2g}" for k in (1, 1, 10, 1, 10)]
            lines.append([f"{title}: chance, the commonest name", f"{names:,}", *chances])
            if which == "seen":
                pixels = [f"{100 * base['pixels']:.1f}", "", "", "", ""]
                lines.append([f"{title}: the nearest drawing in pixels", f"{names:,}", *pixels])
            for row in chosen:
                shares = [row[split]["name"]["top1"], row[split]["called"]["top1"]]
                shares += row[split]["found"].values()
                lines.append([f"{title}: two towers", f"{names:,}", *map(_percent, shares)])
    head = ["unseen concepts of the artists trained on, in %", "steps", "top-1 by names"]
    trials = [[*head, "and keywords", "minutes"], ["---", *["--:"] * 4]]
    for row in content["rows"]:
        cells = [_percent(row["val_concept"][kind]["top1"]) for kind in ("name", "called")]
        minutes = f"{statistics.fmean(row['seconds']) / 60:.0f}"
        title = row["title"] if row["trial"] else f"{row['title']} held out"
        trials.append([title, f"{row['steps']:,}", *cells, minutes])
    return f"{_table(lines)}\n\n{_table(trials)}"


def _same(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return (row["held_out"], row["sets"]) == (other["held_out"], other["sets"])


def _table(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def table(results: Path = record.RESULTS) -> str:
    """Return the tables of what was measured."""
    return markdown(json.loads((results / FILE).read_text()))


def draw(content: dict[str, Any], path: Path) -> None:
    """Draw top-1 of each seed beside pixels and chance, of concepts seen and unseen."""
    import matplotlib.pyplot as plt

    rows = [row for row in content["rows"] if not row["trial"]]
    figure = plt.figure(figsize=(7.5, 3.2), layout="constrained")
    panels = figure.subplots(1, 2, width_ratios=(2, 1.4))
    for axes, split, which in zip(panels, TEST, ("seen", "unseen"), strict=True):
        for i, row in enumerate(rows):
            base = next(base for base in content["baselines"] if _same(row, base))
            shares = [100 * share for share in row[split]["called"]["top1"]]
            bar = axes.bar(i + 0.2, statistics.fmean(shares), 0.36, color="0.35")
            axes.plot([i + 0.2] * len(shares), shares, "o", color="white", markersize=4, mec="0")
            bar.set_label("two towers, dots: seeds" if i == 0 else "")
            if which == "seen":
                other = axes.bar(i - 0.2, 100 * base["pixels"], 0.36, color="0.75")
                other.set_label("nearest drawing in pixels" if i == 0 else "")
            chance = 100 / base["names"][split]
            line = axes.hlines(chance, i - 0.45, i + 0.45, colors="0", linestyles=":")
            line.set_label("chance" if i == 0 else "")
        axes.set_xticks(range(len(rows)), [row["title"] for row in rows])
        axes.set_title(f"concepts {which}", fontsize="medium")
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
    panels[0].set_ylabel("top-1, %")
    panels[0].legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("arms", nargs="*", default=["twemoji", "openmoji"], help=", ".join(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--root", type=Path, default=Path("runs/emoji"))
    parser.add_argument("--out", type=Path, default=record.RESULTS / FILE)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    args = parser.parse_args(argv)
    unknown = [name for name in args.arms if name not in ARMS]
    if unknown:
        parser.error(f"unknown arm {unknown[0]!r}; valid: {', '.join(ARMS)}")
    drawings.write(args.root / "drawings", sorted({ARMS[name].held_out for name in args.arms}))
    seeds = {name: args.seeds[:1] if ARMS[name].trial else args.seeds for name in args.arms}
    runs = [(name, seed) for name in args.arms for seed in seeds[name]]
    side_by_side(lambda each: run(*each, args.root), runs)
    old = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
    rows = {row["arm"]: row for row in old}
    rows |= {name: collect(name, seeds[name], args.root) for name in args.arms}
    content = {
        "device": record.device(),
        "date": datetime.date.today().isoformat(),
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in _PACKAGES},
        },
        "baselines": baselines(args.root, [name for name in ARMS if name in rows]),
        "rows": [rows[name] for name in ARMS if name in rows],
    }
    args.out.write_text(json.dumps(content, indent=1) + "\n")
    print(markdown(content))  # `python -m benchmarks.tables` puts it on the page
    draw(content, args.picture)


if __name__ == "__main__":
    main()
