# SPDX-License-Identifier: Apache-2.0
"""COCO's JSON: instances with boxes, polygons and run lengths, or panoptic with a PNG an image.

`coco:FILE.json?images=DIR`; a folder or a pattern of several files has a split in each one's name.
The format: https://cocodataset.org/#format-data
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vit_jax.data.account import Said
from vit_jax.data.images import header
from vit_jax.data.names import one_spelling
from vit_jax.data.sources import look
from vit_jax.data.sources.dense import annotated, panoptic
from vit_jax.data.sources.dense.annotated import AnnotatedSource, Annotations, FoundImages, Item
from vit_jax.data.sources.dense.segments import Record, SegmentRecords, bounds
from vit_jax.data.sources.layouts import COCO_KEYS
from vit_jax.data.sources.listing import RemoteFolder
from vit_jax.data.sources.partition import SplitDraw, draw_of
from vit_jax.data.sources.sharded import shards
from vit_jax.data.targets import TargetKind
from vit_jax.errors import UserError, shown, some
from vit_jax.process import waiting
from vit_jax.storage import foreign, remote

KINDS = (TargetKind.SEGMENTS, TargetKind.PIXELS)
_LISTED = "listed twice"


class AnnotationFile(NamedTuple):
    """A file of annotations.

    Attributes:
        place: its path or address.
        split: "" where its name tells none.
        tree: its JSON.
    """

    place: str
    split: str
    tree: dict[str, Any]

    @property
    def where(self) -> str:
        return shown(self.place)


class Categories(NamedTuple):
    """The classes of a dataset: the class of each category's id, by file."""

    names: tuple[str, ...]
    things: tuple[bool, ...]
    of_file: list[dict[int, int]]
    notes: list[str]


def open_coco(name: str, split: str, target: TargetKind = TargetKind.NONE) -> AnnotatedSource:
    """Open one split of "FILE.json?images=DIR", with slices such as train[:10%].

    Classes are the categories, in the order of their ids. Images are in the folder of the file, in
    one beside it, or in `images`; a name there that leads out of that folder is refused. Files of a
    folder or a pattern whose names tell splits have these; else they are drawn.

    Raises UserError: no such file, no COCO JSON, no such split, images that are not there.
    """
    path, chosen = annotated.options_of(name, "coco", ("images", "masks"))
    draw = draw_of(chosen)
    if not path:
        raise UserError("data.name=coco: names no file; write it as data.name=coco:FILE.json")
    where = shards.where_of(path)
    kind = annotated.kind_of(target, KINDS, where)
    found = look.kept(("coco", name, kind), lambda: _find(path, where, kind, chosen, draw))
    return annotated.choose(found, where, split, kind, draw)


def _find(
    path: str, where: str, kind: TargetKind, chosen: Mapping[str, str], draw: SplitDraw
) -> FoundImages:
    places, notes = files_of(path, where)
    splits = shards.splits_of(places)
    with waiting.said(f"reading the annotations of {where}"):
        files = [
            AnnotationFile(p.path, s, tree_of(p.path)) for p, s in zip(places, splits, strict=True)
        ]
    categories = categories_of(files, where)
    is_panoptic = {panoptic.is_panoptic(file.tree) for file in files}
    if len(is_panoptic) > 1:
        raise UserError(
            f"{where} has instances in one file and panoptic segments in another; name one"
        )
    folders = [images_of(file, chosen.get("images", "")) for file in files]
    root = _root(folders)
    above = str(root)
    items: list[Item] = []
    images: list[list[dict[str, Any]]] = []
    left_out: list[tuple[str, str]] = []
    taken: dict[str, str] = {}
    for file, folder in zip(files, folders, strict=True):
        inside = folder.removeprefix(above).lstrip("/")
        kept = []
        for image in images_in(file):
            rel = "/".join(filter(None, (inside, image["file_name"])))
            if rel in taken:
                left_out.append((_LISTED, rel))
                continue
            taken[rel] = file.split
            items.append(Item(rel, file.split))
            kept.append(image)
        images.append(kept)
    names = [item.path for item in items]
    annotations: Annotations
    if is_panoptic == {True}:
        annotations, said = panoptic.read(
            [(f.place, f.where, f.tree) for f in files],
            images,
            categories.of_file,
            chosen.get("masks", ""),
        )
        annotations.classes, annotations.things = categories.names, categories.things
        annotations.names = names
    else:
        if "masks" in chosen:
            raise UserError(f"{where} has instances, and ?masks= is of panoptic JSON; leave it out")
        records, said = _records(files, images, categories)
        annotations = SegmentRecords(records, categories.names, names)
    return annotated.find(
        root,
        where,
        items,
        annotations,
        kind,
        draw,
        left_out=left_out,
        notes=[*notes, *categories.notes, *said],
    )


def files_of(path: str, where: str) -> tuple[list[remote.FileInfo], list[str]]:
    """Return the JSON files of a path, a pattern or a folder, and notes on those left out.

    Raises UserError: there are none.
    """
    plain = os.path.expanduser(path)
    if plain.lower().endswith(".json"):
        found = remote.find(plain)
        if not found:
            raise UserError(f"there is no file {where}")
        return found, []
    patterns = ("annotations/*.json", "*/_annotations.coco.json", "*.json", "*/*.json")
    for pattern in patterns:
        found = remote.find(f"{plain.rstrip('/')}/{pattern}")
        names = {file.path: shards.base_name(file.path) for file in found}
        for beginning in ("instances", "panoptic"):
            chosen = [file for file in found if names[file.path].startswith(beginning)]
            if chosen:
                others = [shown(names[f.path]) for f in found if f not in chosen]
                notes = [f"not read: {some(others, 3)}"] if others else []
                return chosen, notes
        if found:
            return found, []
    raise UserError(f"{where} holds no JSON file; write data.name=coco:FILE.json?images=DIR")


def tree_of(place: str) -> dict[str, Any]:
    """Read a file; raises UserError: it is no COCO JSON."""
    where = shown(place)
    try:
        tree = json.loads(remote.read(place))
    except (ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{where} is no JSON ({error}); it is cut off or something else") from None
    except OSError as error:
        raise UserError(f"{where}: {error.strerror}") from None
    for key in COCO_KEYS:
        if not isinstance(tree, dict) or not _objects(tree.get(key)):
            keys = ", ".join(sorted(tree)[:8]) if isinstance(tree, dict) else type(tree).__name__
            has = shown(keys[:200])
            raise UserError(
                f"{where} is no COCO JSON: it needs images, annotations and categories, lists of "
                f"objects, and has {has or 'nothing'}"
            )
    return tree


def _objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def categories_of(files: Sequence[AnnotationFile], where: str) -> Categories:
    """Return the classes of all files: categories in the order of their ids, matched by name.

    Raises UserError: a category without an id or a name, or two of one id or one name.
    """
    notes: list[str] = []
    listed: list[dict[int, tuple[str, bool]]] = []
    for file in files:
        found: dict[int, tuple[str, bool]] = {}
        for each in file.tree["categories"]:
            number, given = each.get("id"), each.get("name")
            if type(number) is not int or not isinstance(given, str) or not one_spelling(given):
                raise UserError(f"{file.where}: a category needs an id, a whole number, and a name")
            if number in found:
                raise UserError(f"{file.where}: two categories have the id {number}")
            found[number] = one_spelling(given), bool(each.get("isthing", True))
        names = Counter(word for word, _ in found.values())
        if twice := [word for word, count in names.items() if count > 1]:
            raise UserError(f"{file.where}: two categories are called {twice[0]!r}; name each once")
        if not found:
            raise UserError(f"{file.where} lists no categories")
        listed.append(dict(sorted(found.items())))
    names_of: dict[str, bool] = {}
    for found in listed:
        for word, is_thing in found.values():
            names_of.setdefault(word, is_thing)
    names = tuple(names_of)
    of_file = [{key: names.index(word) for key, (word, _) in each.items()} for each in listed]
    first = of_file[0]
    if any(each != first for each in of_file):
        notes.append(Said("the files number their categories otherwise; they are matched by name"))
    elif any(key != k for key, k in first.items()):
        ids = f"{min(first)} to {max(first)}" if len(first) > 1 else f"{min(first)}"
        last = len(names) - 1
        notes.append(Said(f"the category ids {ids} are the classes 0 to {last}, in their order"))
    things = tuple(names_of.values())
    return Categories(names, () if all(things) else things, of_file, notes)


def images_in(file: AnnotationFile) -> Iterable[dict[str, Any]]:
    """Return the images that a file lists.

    Raises UserError: one without id or name, a name that leads out of its folder, or two of one id.
    """
    seen: set[Any] = set()
    for image in file.tree["images"]:
        number, name = image.get("id"), image.get("file_name")
        if not isinstance(number, int | str) or not isinstance(name, str):
            raise UserError(f"{file.where}: an image needs an id and a file_name")
        if number in seen:
            raise UserError(f"{file.where}: two images have the id {shown(str(number)[:200])}")
        seen.add(number)
        name = name.removeprefix("./")
        size = image.get("height"), image.get("width")
        if size != (None, None) and not _is_size(*size):
            what = f"the image {shown(name[:200])} has the size {size[1]} x {size[0]}"
            most = f"at most {header.MAX_PIXELS // 10**6} million in all"
            raise UserError(f"{file.where}: {what}; give whole numbers of pixels, {most}, or none")
        yield {**image, "file_name": foreign.checked(name, file.where)}


def _is_size(height: Any, width: Any) -> bool:
    if type(height) is not int or type(width) is not int:
        return False
    try:
        header.check_size(height, width)
    except ValueError:
        return False
    return True


def images_of(file: AnnotationFile, given: str) -> str:
    """Return the folder of a file's images.

    Raises UserError: it is not found.
    """
    above, _, name = file.place.rpartition("/")
    above = above or "."
    first = [image["file_name"] for _, image in zip(range(3), images_in(file), strict=False)]
    stem = name.rpartition(".")[0]
    year = "".join(filter(str.isdigit, stem))
    if given:
        places = [
            given
            if given.startswith(("/", "~")) or remote.is_remote(given)
            else f"{above}/{given}",
            given,
        ]
        places = [os.path.expanduser(place).rstrip("/") for place in places]
    else:
        parent = above.rpartition("/")[0] if "/" in above else ".." if above == "." else "."
        places = [above, parent]
    inside = ["", "images", f"images/{file.split}", file.split, f"{file.split}{year}"]
    inside += [f"images/{file.split}{year}", "JPEGImages"]
    tried = [f"{place}/{each}".rstrip("/") for place in places for each in dict.fromkeys(inside)]
    if not first:
        return tried[0]
    for folder in tried:
        if any(_exists(f"{folder}/{each}") for each in first):
            return folder if remote.is_remote(folder) else os.path.abspath(folder)
    what = f"no image {shown(first[0])} in {shown(tried[0])}"
    raise UserError(f"{file.where}: {what}; say where they are, coco:FILE.json?images=DIR")


def _exists(place: str) -> bool:
    if not remote.is_remote(place):
        return os.path.exists(place)
    try:
        return remote.info(place).size >= 0
    except remote.MissingError:
        return False


def _root(folders: Sequence[str]) -> annotated.Root:
    if remote.is_remote(folders[0]):
        root = os.path.commonprefix([f"{each}/" for each in folders]).rpartition("/")[0]  # noqa: RUF071
        return RemoteFolder(root, {root: {}})
    return Path(os.path.commonpath(folders))


def _records(
    files: Sequence[AnnotationFile],
    images: Sequence[Sequence[dict[str, Any]]],
    categories: Categories,
) -> tuple[list[Record], list[str]]:
    """Return a record of each image, and notes on annotations of no image.

    Raises UserError: a category that is not listed, or a box that is none.
    """
    records: list[Record] = []
    notes = []
    for file, kept, classes in zip(files, images, categories.of_file, strict=True):
        of_image: dict[Any, list[dict[str, Any]]] = {image["id"]: [] for image in kept}
        strange, unknown = 0, Counter[str]()
        for each in file.tree["annotations"]:
            if panoptic.id_of(each.get("category_id")) not in classes:
                unknown[shown(str(each.get("category_id"))[:200])] += 1
            elif panoptic.id_of(each.get("image_id")) in of_image:
                of_image[each["image_id"]].append(each)
            else:
                strange += 1
        if unknown:
            total = len(file.tree["annotations"])
            count = f"{unknown.total():,} of {total:,} annotations"
            what = f"have a category_id that categories do not list ({next(iter(unknown))})"
            raise UserError(f"{file.where}: {count} {what}; add it to categories")
        notes += panoptic.of_no_image(file.place, strange)
        for image in kept:
            records.append(_record(image, of_image[image["id"]], classes, file.where))
    return records, notes


def _record(
    image: Mapping[str, Any],
    annotations: Sequence[Mapping[str, Any]],
    classes: Mapping[int, int],
    where: str,
) -> Record:
    size = [image["height"], image["width"]] if image.get("height") else []
    boxes, masks = [], []
    for each in annotations:
        given = each.get("segmentation") or None
        box = each.get("bbox")
        if box is None:
            boxes.append(bounds(given, size))
        else:
            try:
                left, top, width, height = (float(x + 0) for x in box)  # + refuses texts
            except (TypeError, ValueError, OverflowError):
                raise UserError(
                    f"{where}: a bbox of {shown(image['file_name'])} is not [x, y, width, height]"
                ) from None
            boxes.append([left, top, left + width, top + height])
        masks.append(given if isinstance(given, list | dict) else None)
    crowd = [bool(each.get("iscrowd")) for each in annotations]
    return Record(
        boxes,
        [classes[each["category_id"]] for each in annotations],
        crowd if any(crowd) else (),
        masks if any(each is not None for each in masks) else (),
        size,
    )
