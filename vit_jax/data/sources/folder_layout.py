# SPDX-License-Identifier: Apache-2.0
"""What a folder of images is: splits of classes, classes, or images alone. Decided by names."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from vit_jax.data.names import KNOWN_SPLITS, alike, meaning, one_spelling, split_notes, twins
from vit_jax.errors import UserError, shown, some

DRAWN = ""  # the one split of what has none
BESIDE = "beside the class folders"
OUTSIDE = "outside the splits"


class Layout(NamedTuple):
    """Which file is what.

    Attributes:
        classes: their names, by class id.
        files: paths by split, a folder's name; `DRAWN` where splits are to be drawn.
        labels: their class ids, -1 for none.
        left_out: (reason, path) of the others.
        notes: what else was decided.
    """

    classes: tuple[str, ...]
    files: Mapping[str, list[str]]
    labels: Mapping[str, list[int]]
    left_out: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()


class _Top(NamedTuple):
    """A folder in the root: how many images lie in it, and in each of its folders and below."""

    direct: int
    below: Counter[str]


def splits_in(paths: Iterable[str]) -> tuple[dict[str, bool], bool]:
    """Tell what the folders in the root are.

    Args:
        paths: of all images by their names, relative to the root.

    Returns:
        The splits, and of each whether its images lie in folders of classes; {} for none. And
        whether the folders are classes instead.

    Splits are the folders named so (train, val, test) that hold folders of images: what lies
    directly in one of them, fewer, strays. One of images alone, beside those or without other
    folders, is a split without labels. Without such names, folders with images directly in them are
    classes; others are splits of any name, if it is one, or if they have folders of the same names.
    """
    direct: Counter[str] = Counter()
    below: dict[str, Counter[str]] = defaultdict(Counter)
    for path in paths:
        top, slash, rest = path.partition("/")
        inside, deeper, _ = rest.partition("/")
        if slash and deeper:
            below[top][inside] += 1
        elif slash:
            direct[top] += 1
    tops = {n: _Top(direct[n], below.get(n, Counter())) for n in sorted({*direct, *below})}
    known = {name: top for name, top in tops.items() if alike(name) in KNOWN_SPLITS}
    of_classes = {name: top.below.total() > top.direct for name, top in known.items()}
    sizes = {name: top.direct + top.below.total() for name, top in tops.items()}
    others = sum(size for name, size in sizes.items() if name not in known)
    structured = [name for name, is_one in of_classes.items() if is_one]
    if any(not known[name].direct for name in structured):
        return of_classes, False
    if structured and others <= sum(sizes[name] for name in structured):
        return of_classes, False
    if known and not structured:
        # Two of them, and hardly anything else, are not classes that happen to be called so.
        meanings = {meaning(name) for name in known}
        if not others or (len(meanings) > 1 and others <= sum(sizes[name] for name in known)):
            return of_classes, False
    if not tops:
        return {}, False
    if any(top.direct for top in tops.values()):
        return {}, True
    shared = Counter(name for top in tops.values() for name in top.below)
    if len(tops) == 1 or max(shared.values()) > 1:
        return dict.fromkeys(tops, True), False
    return {}, True


def arrange(images: Sequence[str], folders: Sequence[str], where: str, bad: set[str]) -> Layout:
    """Tell of each image its split and its class.

    Class ids come from the sorted union of the class folders of all splits: a class missing from
    one split shifts no label. An image in a folder further down counts to the class above it.

    Args:
        images: paths of all images by their names, relative to the root.
        folders: those of all folders.
        where: the root in messages.
        bad: those of `images` that cannot be read.

    Raises UserError: a class without an image, or one whose name differs between splits in case.
    """
    splits, are_classes = splits_in(images)
    names = list(splits) or [DRAWN]
    depth = 2 if splits else 1  # of an image's folders, those that have a meaning
    left_out: list[tuple[str, str]] = []
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in names}
    written: dict[str, dict[str, str]] = {name: {} for name in names}  # spelled: as it is written
    notes: list[str] = []
    lost: Counter[str] = Counter()  # unreadable images of a class
    for path in images:
        *above, _ = path.split("/")
        split = above[0] if splits and above else DRAWN
        if split not in found:
            left_out.append((OUTSIDE, path))
            continue
        labelled = splits[split] if splits else are_classes
        if labelled and len(above) < depth:
            left_out.append((BESIDE, path))
            continue
        label = one_spelling(above[depth - 1]) if labelled else ""
        if labelled:
            first = written[split].setdefault(label, above[depth - 1])
            if first != above[depth - 1]:
                line = f"the folders {first!r} and {above[depth - 1]!r} are one class, {label!r}"
                notes.extend([] if line in notes else [line])
        if path in bad:
            lost[label] += 1
            continue
        found[split].append((path, label))
    for path in folders:  # class folders without an image
        parts = path.split("/")
        split = parts[0] if splits else DRAWN
        if len(parts) == depth and split in found and (splits[split] if splits else are_classes):
            written[split].setdefault(one_spelling(parts[-1]), parts[-1])
    _check_spelling(where, written)
    classes = tuple(sorted({label for names in written.values() for label in names}))
    counts = {name: Counter(label for _, label in pairs) for name, pairs in found.items()}
    for label in classes:
        if not any(label in of for of in counts.values()):
            split = next(name for name in names if label in written[name])
            folder = "/".join(filter(None, (where, split, written[split][label])))
            why = f", but {lost[label]:,} that cannot be read" if lost[label] else ""
            raise UserError(
                f"class folder {shown(folder)} holds no images{why}; remove it or fill it"
            )
    notes += _notes(splits, classes, counts, written)
    ids = {label: k for k, label in enumerate(classes)} | {"": -1}
    files = {name: [path for path, _ in pairs] for name, pairs in found.items()}
    labels = {name: [ids[label] for _, label in pairs] for name, pairs in found.items()}
    return Layout(classes, files, labels, left_out, notes)


def _notes(
    splits: Mapping[str, bool],
    classes: Sequence[str],
    counts: Mapping[str, Counter[str]],
    written: Mapping[str, Mapping[str, str]],
) -> list[str]:
    """Say what a person may not have meant."""
    notes = [
        f"{name}: no class folders in it, so its images have no labels"
        for name in splits
        if not splits[name]
    ]
    for name, labels in written.items():
        empty = [repr(label) for label in labels if not counts[name][label]]
        if empty and name:
            notes.append(f"{name}: no images of {some(empty)}")
    notes += [
        f"{' and '.join(map(repr, same))} are {len(same)} classes; if they are one, give them "
        "one name"
        for same in twins(classes)
    ]
    return notes + split_notes(splits)


def _check_spelling(where: str, written: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse a class that one split writes otherwise than another, in case.

    Two such classes within a split are two: handwritten letters may well lie in "a" and "A".
    """
    spelled: dict[str, dict[str, str]] = {}
    for split, labels in written.items():
        for label in labels:
            spelled.setdefault(alike(label), {}).setdefault(label, split)
    for found in spelled.values():
        if len(found) > 1 and all(len(found.keys() & {*labels}) < 2 for labels in written.values()):
            (one, here), (two, there) = list(found.items())[:2]
            differs = f"the class {one!r} of {here} is {two!r} in {there}"
            raise UserError(f"{where}: {differs}; give both folders the same name")
