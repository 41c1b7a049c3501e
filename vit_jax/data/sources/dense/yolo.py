# SPDX-License-Identifier: Apache-2.0
"""YOLO's text files: a line "class x y width height", or "class x y x y ...", for each segment.

DIR/data.yaml names the classes and the splits, DIR/images/<split>/x.jpg has an image, and
DIR/labels/<split>/x.txt its lines, in shares of the image's sides; an image without a file has no
segments (https://docs.ultralytics.com/datasets/detect/, /segment/). Without data.yaml, classes.txt
names the classes, in DIR or among the labels, where LabelImg writes it.
"""

import json
import math
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from vit_jax.data.account import Said
from vit_jax.data.names import KNOWN_SPLITS, alike, class_names, one_spelling
from vit_jax.data.sources import look
from vit_jax.data.sources.dense import annotated
from vit_jax.data.sources.dense.annotated import CLASSES, AnnotatedSource, FoundImages, Item
from vit_jax.data.sources.dense.segments import Record, SegmentRecords
from vit_jax.data.sources.layouts import YOLO_FILES
from vit_jax.data.sources.listing import list_all
from vit_jax.data.sources.partition import SplitDraw, draw_of
from vit_jax.data.targets import TargetKind
from vit_jax.errors import UserError, shown
from vit_jax.storage import foreign

_IMAGES, _LABELS = "images", "labels"


def open_yolo(name: str, split: str, target: TargetKind = TargetKind.NONE) -> AnnotatedSource:
    """Open one split of "DIR", or of "DIR/data.yaml", with slices such as train[:10%].

    Raises UserError: another layout, no such split, lines that are no boxes or polygons, a class
    that is not named.
    """
    path, chosen = annotated.options_of(name, "yolo", ())
    draw = draw_of(chosen)
    above, _, last = path.rpartition("/")
    file = last if last.endswith((".yaml", ".yml")) else ""
    root, where = annotated.open_root((above or ".") if file else path, "yolo")
    kind = annotated.kind_of(target, (TargetKind.SEGMENTS, TargetKind.PIXELS), where)
    found = look.kept(("yolo", name, kind), lambda: _find(root, where, file, kind, draw))
    return annotated.choose(found, where, split, kind, draw)


def _find(
    root: annotated.Root, where: str, file: str, kind: TargetKind, draw: SplitDraw
) -> FoundImages:
    listing = list_all(root)
    texts = {path for _, path in listing.others if path.endswith(".txt")}
    facts, said = _yaml(root, where, file)
    # An image classes.jpg has its labels in a file of the same name.
    unread = texts - {_label_path(path) for path in listing.images}
    lists = {path for path in unread if path.rpartition("/")[2] == CLASSES}
    names = _names(root, where, facts, said, lists)
    folders = _folders(facts, said, where)
    items, labels, left_out = [], [], []
    for path in sorted(listing.images):
        parts = path.split("/")
        split = next((key for key, each in folders.items() if _below(path, each)), "")
        if folders and not split:
            left_out.append(("in no split of data.yaml", path))
            continue
        if _IMAGES not in parts[:-1] and not folders:
            left_out.append((f"outside of {_IMAGES}", path))
            continue
        if not folders:
            split = next((part for part in parts[:-1] if alike(part) in KNOWN_SPLITS), "")
        items.append(Item(path, split))
        labels.append(_label_path(path))
    if not items:
        raise UserError(
            f"{where} has no images of YOLO's{annotated.why(left_out)}; expected {where}/images/"
            "<split>/x.jpg and labels/<split>/x.txt"
        )
    there = [path for path in labels if path in texts]
    if not there:
        raise UserError(f"{where}: no image has a file of labels, such as {shown(labels[0])}")
    of_path = dict(zip(there, _rows(root, there), strict=True))
    bad = [path for path, each in of_path.items() if isinstance(each, str)]
    if bad:
        what = f"{len(bad):,} of {len(of_path):,} files of labels cannot be read"
        raise UserError(f"{where}: {what} (first: {shown(bad[0])}: {of_path[bad[0]]}); mend them")
    lines = {path: each for path, each in of_path.items() if not isinstance(each, str)}
    _check_classes(lines, names, where)
    records = [_record(lines.get(path, [])) for path in labels]
    without = len(labels) - len(there)
    notes: list[str] = [
        Said(f"{without:,} of {len(labels):,} images have no file of labels, and no segments")
    ]
    lonely = sorted(path for path in texts - lists - {*labels} if f"/{_LABELS}/" in f"/{path}")
    if lonely:
        are = f"{len(lonely):,} files of labels have" if len(lonely) > 1 else "1 file of labels has"
        notes.append(f"{are} no image (first: {shown(lonely[0])})")
    return annotated.find(
        root,
        where,
        items,
        SegmentRecords(records, names, [item.path for item in items]),
        kind,
        draw,
        left_out=left_out,
        notes=notes if without else notes[1:],
    )


def _yaml(root: annotated.Root, where: str, file: str) -> tuple[Mapping[str, Any], str]:
    """Return what data.yaml says, {} where there is none, and its name."""
    import yaml  # late: few runs need it

    for name in (file,) if file else YOLO_FILES:
        text = annotated.text_of(root, name)
        if not text:
            continue
        try:
            tree = yaml.safe_load(text)
        except (yaml.YAMLError, RecursionError, ValueError):
            tree = None
        if not isinstance(tree, dict):
            raise UserError(f"{where}/{name} is no YAML of names and splits; mend it")
        return tree, name
    return {}, YOLO_FILES[0]


def _names(
    root: annotated.Root, where: str, facts: Mapping[str, Any], said: str, lists: Collection[str]
) -> tuple[str, ...]:
    """Return the classes by data.yaml, else by the files in `lists`, which must agree."""
    given = facts.get("names")
    if isinstance(given, dict):
        if {*given} != {*range(len(given))}:
            raise UserError(f"{where}/{said}: names must have each id from 0 to {len(given) - 1}")
        given = [given[k] for k in range(len(given))]
    if isinstance(given, list) and given:
        if not all(isinstance(x, str | int) and one_spelling(str(x)) for x in given):
            raise UserError(f"{where}/{said}: names must be a list of texts")
        names = class_names(map(str, given))
    elif not (names := _listed(root, where, lists)):
        raise UserError(f"{where} names no classes; write {YOLO_FILES[0]} with names, or {CLASSES}")
    if isinstance(facts.get("nc"), int) and facts["nc"] != len(names):
        raise UserError(f"{where}/{said}: nc is {facts['nc']}, and names has {len(names)}; mend it")
    return names


def _listed(root: annotated.Root, where: str, lists: Collection[str]) -> tuple[str, ...]:
    first, names = "", ()
    for path in sorted(lists, key=lambda path: (path.count("/"), path)):
        found = annotated.class_names_in(root, where, path)
        if names and found and found != names:
            raise UserError(f"{where}: {first} and {path} name other classes; make them equal")
        if found and not names:
            first, names = path, found
    return names


def _folders(facts: Mapping[str, Any], said: str, where: str) -> dict[str, list[str]]:
    """Return the folders of each split that data.yaml names, {} where it names none.

    Paths there are relative to the folder of the file, whatever `path` says: it often names a place
    on another machine.

    Raises UserError: one that leads out of the folder.
    """
    found: dict[str, list[str]] = {}
    for split in ("train", "val", "valid", "test"):
        given = facts.get(split)
        for each in given if isinstance(given, list) else [given] if given else []:
            if not isinstance(each, str) or each.endswith(".txt"):
                raise UserError(f"{where}/{said}: {split} must be a folder, or a list of folders")
            # Exports write ../train/images of what lies beside the file.
            name = each.strip().removeprefix("./").removeprefix("../").rstrip("/")
            found.setdefault(split, []).append(foreign.checked(name, f"{where}/{said}"))
    return found


def _below(path: str, folders: Sequence[str]) -> bool:
    return any(path.startswith(f"{folder}/") for folder in folders)


def _label_path(path: str) -> str:
    """Return where the labels of an image are: labels in place of the last folder images."""
    parts = path.split("/")
    for at in range(len(parts) - 2, -1, -1):
        if parts[at] == _IMAGES:
            parts[at] = _LABELS
            break
    return f"{os.path.splitext('/'.join(parts))[0]}.txt"


def _rows(root: annotated.Root, paths: Sequence[str]) -> list[list[list[float]] | str]:
    """Return the numbers in each file, or why it cannot be read."""
    told = annotated.told_by(root, paths, "the labels", parsed)
    return [text[1:] if text.startswith("!") else json.loads(text) for text in told]


def parsed(data: bytes) -> str:
    """Return the numbers of each line as JSON.

    Raises ValueError: a line that is neither a box nor a polygon.
    """
    found = []
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise ValueError("is no text in UTF-8") from None
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        try:
            values = [float(word) for word in words]
        except ValueError:
            raise ValueError(f"line {number} has a word that is no number") from None
        if not all(map(math.isfinite, values)) or values[0] < 0 or values[0] % 1:
            raise ValueError(f"line {number} has no class id, or a number that is not finite")
        if len(values) != 5 and (len(values) < 7 or not len(values) % 2):
            what = f"line {number} has {len(values)} numbers"
            raise ValueError(f"{what}; a box has 5, and a polygon 7, 9, 11, ...")
        found.append(values)
    return json.dumps(found)


def _check_classes(
    rows: Mapping[str, Sequence[Sequence[float]]], names: Sequence[str], where: str
) -> None:
    above = {p: max(line[0] for line in each) for p, each in rows.items() if each}
    wrong = {path: value for path, value in above.items() if value >= len(names)}
    if wrong:
        first, value = next(iter(wrong.items()))
        what = (
            f"{len(wrong):,} of {len(rows):,} files of labels have a class above the {len(names)}"
        )
        advice = f"({int(value)}, first: {shown(first)}); name all of them"
        raise UserError(f"{where}: {what} that are named {advice}")


def _record(lines: Sequence[Sequence[float]]) -> Record:
    boxes: list[list[float]] = []
    masks: list[Any] = []
    for _, *numbers in lines:
        if len(numbers) == 4:
            x, y, width, height = numbers
            boxes.append([x - width / 2, y - height / 2, x + width / 2, y + height / 2])
            masks.append(None)
        else:
            columns, rows = numbers[0::2], numbers[1::2]
            boxes.append([min(columns), min(rows), max(columns), max(rows)])
            masks.append([numbers])
    has = any(each is not None for each in masks)
    classes = [int(line[0]) for line in lines]
    return Record(boxes, classes, (), masks if has else (), (), shares=True)
