# SPDX-License-Identifier: Apache-2.0
"""Pascal VOC: boxes in XML, and PNGs of classes and objects where there are some.

DIR/Annotations/x.xml, DIR/JPEGImages/x.jpg, DIR/SegmentationClass/x.png and SegmentationObject, and
the splits in DIR/ImageSets/{Main,Segmentation}/train.txt. XML beside its image, in folders of
splits, is read as well. A box's sides are pixels counted from 1, both included
(http://host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc/devkit_doc.html); what is difficult neither
teaches nor counts, as a crowd.
"""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np

from vit_jax.data.account import Said
from vit_jax.data.names import KNOWN_SPLITS, alike, one_spelling
from vit_jax.data.sources import look
from vit_jax.data.sources.dense import annotated, ids
from vit_jax.data.sources.dense.annotated import (
    CLASSES,
    AnnotatedSource,
    Annotations,
    Checked,
    FoundImages,
    Item,
)
from vit_jax.data.sources.dense.ids import read_mask
from vit_jax.data.sources.dense.masks import MaskFiles
from vit_jax.data.sources.dense.pairs import PathTable
from vit_jax.data.sources.dense.raster import box_of
from vit_jax.data.sources.dense.segments import BACKGROUND, Record, SegmentRecords
from vit_jax.data.sources.dense.shape import Shape
from vit_jax.data.sources.listing import Listing, list_all
from vit_jax.data.sources.partition import SplitDraw, draw_of
from vit_jax.data.targets import PixelTarget, TargetKind
from vit_jax.errors import UserError, shown

NAMES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    *("train", "tvmonitor"),
)
OF_CLASSES, OF_OBJECTS = "SegmentationClass", "SegmentationObject"
_IMAGES = ("JPEGImages", "images")
_FOLDERS = (*_IMAGES, "Annotations", OF_CLASSES, OF_OBJECTS)
_VOID, _NO_OBJECT = 255, 0


class Voc(NamedTuple):
    """What a folder holds, by `_key` of its images.

    Attributes:
        images: their paths.
        xml: of their boxes.
        of_classes: of PNGs with a class for each pixel.
        of_objects: of PNGs with an object's number for each pixel.
        splits: the split of each that a file lists or a folder names, by the kind of targets.
    """

    images: dict[str, str]
    xml: dict[str, str]
    of_classes: dict[str, str]
    of_objects: dict[str, str]
    splits: Mapping[str, Mapping[str, str]]


class VocObjects:
    """Objects of images by two PNGs, of objects and of classes; see `Annotations`."""

    things: tuple[bool, ...] = ()

    def __init__(self, objects: PathTable, classes: MaskFiles) -> None:
        """Take the PNGs of objects, and those of classes, whose id 0 is no object's."""
        self._objects, self._masks = objects, classes
        nothing = classes.class_of(0)
        found = [k for k in range(len(classes.classes)) if k != nothing]
        self._numbers = {k: number for number, k in enumerate(found)}
        self.classes = tuple(classes.classes[k] for k in found)

    def check(self, rows: Sequence[int], shapes: Mapping[int, Shape], kind: TargetKind) -> Checked:
        """See `Annotations`; both PNGs were found to be of one size if each is its image's."""
        return self._masks.check(rows, shapes, kind)

    def target(self, row: int, kind: TargetKind, shape: Shape) -> PixelTarget:
        """See `Annotations`."""
        del kind
        classes = self._masks.target(row, TargetKind.PIXELS, shape).label_map
        name = self._objects.name(row)
        found = read_mask(self._objects.read(row), name)
        assert classes is not None
        if found.shape != classes.shape:
            raise ValueError(f"{shown(name)} has another size than its PNG of classes")
        numbers = [n for n in np.unique(found).tolist() if n not in (_NO_OBJECT, _VOID)]
        masks = np.array([found == number for number in numbers], bool)
        masks = masks.reshape(-1, *found.shape)
        known = [classes[mask & (classes >= 0)] for mask in masks]
        kinds = [int(np.bincount(each).argmax()) if each.size else -1 for each in known]
        kept = [i for i, k in enumerate(kinds) if k in self._numbers]
        height, width = found.shape
        return PixelTarget(
            size=(height, width),
            boxes=np.array([box_of(masks[i]) for i in kept], np.float32).reshape(-1, 4),
            masks=masks[kept],
            classes=np.array([self._numbers[kinds[i]] for i in kept], np.int32),
            crowd=np.zeros(len(kept), bool),
        )

    def digest(self, row: int) -> bytes:
        """See `Annotations`."""
        return self._objects.digest(row) + self._masks.digest(row)


def open_voc(name: str, split: str, target: TargetKind = TargetKind.NONE) -> AnnotatedSource:
    """Open one split of "DIR", with slices such as train[:10%].

    Segments are the objects of SegmentationObject where there is that folder, unless the name ends
    in `?masks=none`, and else the boxes. Classes are those of classes.txt, else VOC's twenty where
    all names are of them, else the names in their order.

    Raises UserError: another layout, no such split, XML that cannot be read.
    """
    path, chosen = annotated.options_of(name, "voc", ("masks", *ids.OPTIONS))
    draw = draw_of(chosen)
    if chosen.get("masks", "none") != "none":
        said = shown(chosen["masks"])
        raise UserError(f"voc: has no ?masks={said}; ?masks=none takes the boxes of all images")
    root, where = annotated.open_root(path, "voc")
    given = look.kept(("voc", path), lambda: arrange(list_all(root), root))
    if not given.xml and not given.of_classes:
        raise UserError(f"{where} has no XML; expected Annotations/x.xml and JPEGImages/x.jpg")
    has = [TargetKind.SEGMENTS] * bool(given.xml or given.of_objects)
    has += [TargetKind.PIXELS] * bool(given.of_classes)
    kind = annotated.kind_of(target, has, where)
    found = look.kept(("voc", name, kind), lambda: _find(root, where, given, kind, chosen, draw))
    return annotated.choose(found, where, split, kind, draw)


def arrange(listing: Listing, root: annotated.Root) -> Voc:
    """Return what a folder holds."""
    every = [*listing.images, *(path for _, path in listing.others)]
    xml = {_key(path): path for path in every if path.lower().endswith(".xml")}
    folders: dict[str, dict[str, str]] = {name: {} for name in (OF_CLASSES, OF_OBJECTS)}
    images: dict[str, str] = {}
    for path in listing.images:
        above = path.split("/")[:-1]
        kind = next((name for name in folders if name in above), "")
        if kind:
            folders[kind][_key(path)] = path
        elif not above or above[-1] in (*_IMAGES, *KNOWN_SPLITS) or _key(path) in xml:
            images[_key(path)] = path
    splits: dict[str, dict[str, str]] = {"Main": {}, "Segmentation": {}}
    for _, path in listing.others:
        *above, name = path.split("/")
        word, end = os.path.splitext(name)
        known = above[-2:-1] == ["ImageSets"] and alike(word) in KNOWN_SPLITS and end == ".txt"
        if known and above[-1] in splits:
            for line in annotated.text_of(root, path).splitlines():
                key = "/".join([*above[:-2], line.split(" ")[0].strip()])
                splits[above[-1]].setdefault(key, word)
    if not any(splits.values()):
        named = {
            stem: part
            for stem, path in images.items()
            for part in path.split("/")[:-1]
            if alike(part) in KNOWN_SPLITS
        }
        splits = {key: dict(named) for key in splits}
    return Voc(images, xml, folders[OF_CLASSES], folders[OF_OBJECTS], splits)


def _find(
    root: annotated.Root,
    where: str,
    given: Voc,
    kind: TargetKind,
    chosen: Mapping[str, str],
    draw: SplitDraw,
) -> FoundImages:
    objects = bool(given.of_objects and given.of_classes) and chosen.get("masks") != "none"
    of_pixels = kind is TargetKind.PIXELS or objects
    splits = given.splits["Segmentation" if of_pixels else "Main"] or given.splits["Main"]
    needed = [given.of_classes] if kind is TargetKind.PIXELS else [given.xml]
    needed = (
        [given.of_classes, given.of_objects] if kind is TargetKind.SEGMENTS and objects else needed
    )
    lacking = "without a mask" if of_pixels else "without XML"
    left_out, stems, notes = [], [], []
    for stem, path in sorted(given.images.items()):
        if not all(stem in each for each in needed):
            left_out.append((lacking, path))
        elif splits and stem not in splits:
            left_out.append(("in no split of ImageSets", path))
        else:
            stems.append(stem)
    if not stems:
        raise UserError(f"{where} has no images with targets{annotated.why(left_out)}")
    lonely = sorted({*needed[0]} - {*given.images})
    if lonely:
        what = "PNGs of classes" if of_pixels else "XML files"
        notes.append(f"{len(lonely):,} {what} have no image (first: {shown(needed[0][lonely[0]])})")
    items = [Item(given.images[stem], splits.get(stem, "")) for stem in stems]
    annotations: Annotations
    if of_pixels:
        paths = [given.of_classes[stem] for stem in stems]
        names, said = _names(root, where, given)
        masks = MaskFiles(PathTable(root, paths), names, chosen)
        notes += [*said, *masks.look(root, where)]
        annotations = masks
        if kind is TargetKind.SEGMENTS:
            annotations = VocObjects(PathTable(root, [given.of_objects[s] for s in stems]), masks)
            notes.append(
                Said(f"segments are those of {OF_OBJECTS}; ?masks=none takes the boxes of all")
            )
    else:
        if extra := sorted(chosen.keys() & {*ids.OPTIONS}):
            raise UserError(f"{where}: ?{extra[0]}= is of masks, and these are boxes; leave it out")
        bad, annotations, said = _boxes(root, where, given, stems)
        notes += said
        left_out += [("with XML that cannot be read", items[row].path) for row in bad]
        items = [item for row, item in enumerate(items) if row not in bad]
    return annotated.find(
        root, where, items, annotations, kind, draw, left_out=left_out, notes=notes
    )


def _names(root: annotated.Root, where: str, given: Voc) -> tuple[tuple[str, ...], list[str]]:
    """Return the classes of the PNGs, and notes."""
    if names := annotated.class_names_in(root, where):
        return names, []
    found = _objects(root, list(given.xml.values()))
    said = {each[0] for record in found if record for each in record["objects"]}
    if said <= {*NAMES}:
        return (BACKGROUND, *NAMES), [Said("classes are VOC's twenty and the background")]
    return (), []


def _objects(root: annotated.Root, paths: Sequence[str]) -> list[dict[str, Any] | None]:
    """Return what each XML file says, None of one that cannot be read."""
    told = annotated.told_by(root, paths, "the XML", parsed)
    return [None if text.startswith("!") else json.loads(text) for text in told]


def _boxes(
    root: annotated.Root, where: str, given: Voc, stems: Sequence[str]
) -> tuple[set[int], SegmentRecords, list[str]]:
    """Return which files cannot be read, the boxes of the others, and notes."""
    found = _objects(root, [given.xml[stem] for stem in stems])
    bad = {row for row, each in enumerate(found) if each is None}
    good = [each for each in found if each is not None]
    counts = Counter(one[0] for each in good for one in each["objects"])
    if not counts:
        raise UserError(f"{where}: no XML file has an object")
    usual = NAMES if {*counts} <= {*NAMES} else sorted(counts)
    names = annotated.class_names_in(root, where) or usual
    names = [name for name in names if name != BACKGROUND]
    if unknown := sorted({*counts} - {*names}):
        count = sum(counts[name] for name in unknown)
        what = f"{count:,} of {counts.total():,} objects are of classes that {CLASSES} lacks"
        raise UserError(f"{where}: {what} ({unknown[0]!r}); name all of them there")
    ids_of = {name: k for k, name in enumerate(names)}
    records = [
        Record(
            [one[1:5] for one in each["objects"]],
            [ids_of[one[0]] for one in each["objects"]],
            [bool(one[5]) for one in each["objects"]]
            if any(one[5] for one in each["objects"])
            else (),
            (),
            each["size"],
        )
        for each in good
    ]
    hard = sum(bool(one[5]) for each in good for one in each["objects"])
    notes: list[str] = []
    if hard:
        notes.append(Said(f"{hard:,} objects are difficult: they neither teach nor count"))
    paths = [given.images[stem] for row, stem in enumerate(stems) if row not in bad]
    return bad, SegmentRecords(records, names, paths), notes


def parsed(data: bytes) -> str:
    """Return size and objects of a VOC XML as JSON, each object its name, box, and difficulty.

    Raises ValueError: it is no such XML, or defines entities of its own.
    """
    if b"<!ENTITY" in data or b"<!DOCTYPE" in data:  # a few lines could stand for gigabytes
        raise ValueError("defines entities, which are not read")
    try:
        tree = ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise ValueError(f"is no XML ({error})") from None
    size = [_number(tree, f"size/{key}", 0.0) for key in ("height", "width")]
    objects = []
    for each in tree.iter("object"):
        name = one_spelling(each.findtext("name") or "")
        if not name:
            raise ValueError("has an object without a name")
        keys = ("xmin", "ymin", "xmax", "ymax")
        left, top, right, bottom = (_number(each, f"bndbox/{key}", None) for key in keys)
        hard = (each.findtext("difficult") or "0").strip() not in ("", "0")
        objects.append([name, left - 1, top - 1, right, bottom, hard])
    whole = [int(side) for side in size] if all(0 < side < 1 << 16 for side in size) else []
    return json.dumps({"size": whole, "objects": objects})


def _number(tree: Any, path: str, default: float | None) -> float:
    text = tree.findtext(path)
    if text is None and default is not None:
        return default
    try:
        return float(text or "")
    except ValueError:
        raise ValueError(f"has no number as {path}") from None


def _key(path: str) -> str:
    """Return what an image's files have in common: the path without VOC's folders and a suffix."""
    *above, name = path.split("/")
    return "/".join([*(part for part in above if part not in _FOLDERS), os.path.splitext(name)[0]])
