# SPDX-License-Identifier: Apache-2.0
"""Write the tables of the pages below docs that have measured ones, and of README.

python -m benchmarks.tables
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import (
    dense,
    digits,
    emoji,
    growth,
    limits,
    naflex,
    peft,
    record,
    referee,
    self_supervised,
    several_labels,
    unlabelled_curves,
)

ROOT = Path(__file__).parent.parent
README, PAGE = ROOT / "README.md", ROOT / "docs" / "benchmarks.md"
MARKS = ("<!-- benchmarks-table -->", "<!-- /benchmarks-table -->")
UNLABELLED = ROOT / "docs" / "self_supervised.md"
IMAGE_TEXT = ROOT / "docs" / "image_text.md"
FINETUNE = ROOT / "docs" / "finetune.md"
REPRODUCE = ROOT / "docs" / "reproduce.md"
DIGITS_MARKS = ("<!-- digits-table -->", "<!-- /digits-table -->")
PUBLISHED_MARKS = ("<!-- published-table -->", "<!-- /published-table -->")
NAFLEX = ROOT / "docs" / "naflex.md"
NAFLEX_MARKS = ("<!-- naflex-table -->", "<!-- /naflex-table -->")
OWN_MARKS = ("<!-- own-images-table -->", "<!-- /own-images-table -->")
GROWTH_MARKS = ("<!-- growth-table -->", "<!-- /growth-table -->")
LIMITS_MARKS = ("<!-- limits-table -->", "<!-- /limits-table -->")
PEFT_MARKS = ("<!-- peft-table -->", "<!-- /peft-table -->")
EMOJI_MARKS = ("<!-- emoji-table -->", "<!-- /emoji-table -->")
OWN_DATA = ROOT / "docs" / "own_data.md"
SEVERAL_MARKS = ("<!-- several-labels-table -->", "<!-- /several-labels-table -->")
_SCENES = {
    "scenes-pixels": ROOT / "docs" / "segmentation.md",
    "scenes-objects": ROOT / "docs" / "detection.md",
    "scenes-depth": ROOT / "docs" / "segmentation.md",
}
_STEP = re.compile(r"(?P<model>\w+) (?P<work>train|forward) (?P<size>batch=\d+ \w+)")
# What README shows: the first cells of rows, of one machine.
_CHOSEN_FROM = "amd-epyc-1-core.json"
_CHOSEN = (
    "| vit_s16 | 16 float32 | plain Flax |",
    "| vit_s16 | 16 float32 | timm eager |",
    "| vit_s16 | 16 float32 | timm torch.compile |",
    "| cait_xxs24 | 8 float32 | timm torch.compile |",
    "| swin_t | 8 float32 | timm torch.compile |",
    "| regnety_400mf | 8 float32 | timm torch.compile |",
    "| vit_ti16 | 128 float32 | timm torch.compile |",
)
# The stages of a start stay in the results.
_STAGE = re.compile(r"start: .*: (?!compile)[a-z ]+")

Rows = Sequence[dict[str, Any]]


def markdown(device: str, rows: Rows) -> str:
    """Return a table of models, training step beside forward pass, and one of the other rows."""
    steps: dict[tuple[str, str, str], dict[str, str]] = {}
    others = []
    for row in rows:
        found = _STEP.fullmatch(row["work"])
        if found and row["ratio"] is not None:
            key = (found["model"], found["size"], row["peer"])
            steps.setdefault(key, {})[found["work"]] = _ratio(row)
        elif not found and not _STAGE.fullmatch(row["work"]):
            others.append(row)
    lines = [f"| on {device} | batch, dtype | beside | training step | forward pass |"]
    lines += ["|---|---|---|--:|--:|"]
    lines += [
        f"| {model} | {size.removeprefix('batch=')} | {peer} | {of.get('train', '')} "
        f"| {of.get('forward', '')} |"
        for (model, size, peer), of in steps.items()
    ]
    lines += ["", f"| on {device} | ours | beside | theirs | ratio |", "|---|--:|---|--:|--:|"]
    lines += [
        f"| {row['work']} | {_value(row['ours'], row['unit'])} | {row['peer'] or ''} "
        f"| {_value(row['peer_value'], row['unit'])} | {_ratio(row)} |"
        for row in others
    ]
    return "\n".join(lines)


def heads(rows: Rows) -> str:
    """Return a sentence that names the commits of the package that were measured.

    Rows of earlier versions name none; the sentence has their day.
    """
    commits = [
        f"`{row['head']}`" if row.get("head") else f"an unnamed commit of {row['date']}"
        for row in rows
    ]
    (first, count), *rest = Counter(commits).most_common()
    if not rest:
        return f"All rows are of the package at {first}."
    others = "".join(f", {name} ({n})" for name, n in rest)
    return f"The package's commits: {first} ({count} of the rows){others}."


def _ratio(row: dict[str, Any]) -> str:
    if row["ratio"] is None:
        return ""
    low, high = row["ratio_range"] or (row["ratio"], row["ratio"])
    return f"{row['ratio']:.2f}" + (f" ({low:.2f}-{high:.2f})" if low != high else "")


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def tables(results: Path = record.RESULTS) -> str:
    """Return the tables of every device that has a file in `results`."""
    contents = [
        json.loads(path.read_text())
        for path in sorted(results.glob("*.json"))
        if path.name != "compile.json"  # docs/scale.md's: nothing of it was run
    ]
    return "\n\n".join(
        text
        for content in contents
        if "work" in content.get("rows", [{}])[0]  # a row a work and peer
        for text in (markdown(content["device"], content["rows"]), heads(content["rows"]))
        if text
    )


def summary(results: Path = record.RESULTS) -> str:
    """Return README's rows, under their head."""
    content = json.loads((results / _CHOSEN_FROM).read_text())
    lines = markdown(content["device"], content["rows"]).splitlines()
    chosen = [next(line for line in lines if line.startswith(cells)) for cells in _CHOSEN]
    return "\n".join([*lines[:2], *chosen])


def own_images(results: Path = record.RESULTS) -> str:
    """Return the table of `benchmarks.own_images`."""
    content = json.loads((results / "own_images.json").read_text())
    return digits.markdown([digits.Row(**row) for row in content["rows"]])


def fine_tuning(results: Path = record.RESULTS) -> str:
    """Return the table of `benchmarks.peft costs`."""
    return peft.costs_table(json.loads((results / "peft.json").read_text())["rows"])


def digits_tables(results: Path = record.RESULTS) -> tuple[str, str]:
    """Return the table of `benchmarks.digits`, and the one beside published results."""
    content = json.loads((results / "digits.json").read_text())
    rows = digits.markdown([digits.Row(**row) for row in content["rows"]])
    return rows, digits.beside_published(content)


def placed() -> list[tuple[Path, tuple[str, str], str]]:
    """List the pages, the marks in them, and the tables between these."""
    unseen, published = digits_tables()
    return [
        (REPRODUCE, DIGITS_MARKS, unseen),
        (REPRODUCE, PUBLISHED_MARKS, published),
        (PAGE, MARKS, tables()),
        (PAGE, OWN_MARKS, own_images()),
        (PAGE, LIMITS_MARKS, limits.table()),
        *((page, PEFT_MARKS, fine_tuning()) for page in (PAGE, FINETUNE)),
        (README, MARKS, summary()),
        (IMAGE_TEXT, EMOJI_MARKS, emoji.table()),
        (NAFLEX, NAFLEX_MARKS, naflex.table()),
        (OWN_DATA, SEVERAL_MARKS, several_labels.table()),
        (
            PAGE,
            GROWTH_MARKS,
            growth.table(json.loads((record.RESULTS / "growth.json").read_text())),
        ),
        *(
            (_SCENES[name], (f"<!-- {name}-table -->", f"<!-- /{name}-table -->"), text)
            for name, text in dense.tables().items()
        ),
        *(
            (UNLABELLED, (f"<!-- {name}-table -->", f"<!-- /{name}-table -->"), text)
            for name, text in {
                **self_supervised.tables(),
                **unlabelled_curves.tables(),
                **referee.tables(),
            }.items()
        ),
    ]


def main() -> None:
    """Put the tables between the pages' marks."""
    for page, (start, end), text in placed():
        before, _, rest = page.read_text().partition(start)
        page.write_text(f"{before}{start}\n\n{text}\n\n{end}{rest.partition(end)[2]}")


if __name__ == "__main__":
    main()
