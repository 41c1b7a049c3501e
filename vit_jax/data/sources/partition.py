# SPDX-License-Identifier: Apache-2.0
"""Splits: drawn where one's own images have none, and slices of them as they are written.

A draw is seeded and takes alike of every class; "train[:99%]+val" is read and rounded as TFDS does.
"""

import contextlib
import hashlib
import os
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from vit_jax.data.names import parts_of, with_known_names
from vit_jax.errors import UserError, setting, shown, unknown

SPLITS = ("train", "val", "test")
WHOLE = "whole"  # all examples; TFDS reads "all" in its own way
_HELD_OUT = 0.1  # the share of val, and of test
# Prefixes of names of a user's own images, which may lie elsewhere on another machine.
DENSE = ("masks:", "coco:", "voc:", "yolo:", "depth:")  # those of images with targets
KINDS = ("folder:", "csv:", "tar:", "parquet:", "hf:", *DENSE)
_ENDS = {
    "csv": (".csv", ".csv.gz", ".tsv"),
    "tar": (".tar",),
    "parquet": (".parquet",),
    "coco": (".json",),
    "yolo": ("data.yaml", "data.yml"),
}
# The end of a name that chooses fields of tar and Parquet files, or how files are read.
_OPTION = re.compile(
    r"[?&](?:((?:split_seed|rules)(?==\d)|labels?|image|captions|config|target"
    r"|images|masks|mask|ignore|zero|ids|objects|depth|scale)=([^?&]+))$"
)
_OF_DRAW = re.compile(r"[?&](split_seed|rules)=(\d+)$")
_RULES = re.compile(r"[?&]rules=\d+(?=$|[?&])")
# Suffixes of archives; ".tar" is none, but a dataset.
ARCHIVES = (
    *(".zip", ".7z", ".rar", ".tgz", ".tbz", ".txz", ".gz", ".bz2", ".xz", ".zst", ".cab", ".iso"),
)
_FROM_SHARE = re.compile(r"(\w+)\[(\d+)%:\2%\+(\d+)\]")


class SplitDraw(NamedTuple):
    """How splits are drawn if there are none, and how a folder or a table is read.

    Attributes:
        seed: of the draw.
        rules: 2, or 1 as in runs that began before there were two kinds of rules.
    """

    seed: int = 0
    rules: int = 2

    def told(self) -> str:
        """Return a suffix for the name of a split that tells a seed other than 0."""
        return f", split seed {self.seed}" if self.seed else ""


def draw_of(chosen: Mapping[str, str]) -> SplitDraw:
    """Return the draw that a name's options choose; raises UserError: no such rules."""
    seed, rules = (chosen.get(key, default) for key, default in (("split_seed", 0), ("rules", 2)))
    try:
        draw = SplitDraw(int(seed), int(rules))
    except ValueError:
        raise UserError(f"?split_seed={seed}&rules={rules}: give whole numbers") from None
    if draw.rules not in (1, 2):
        raise UserError(f"?rules={rules}: rules are 2, or 1, those of runs begun before them")
    return draw


def split_draw(name: str) -> tuple[str, SplitDraw]:
    """Separate the draw from "DIR?split_seed=3&rules=1"."""
    chosen: dict[str, str] = {}
    while found := _OF_DRAW.search(name):
        chosen[found[1]], name = found[2], name[: found.start()]
    return name, draw_of(chosen)


def as_draw(draw: SplitDraw | int) -> SplitDraw:
    """Return the draw of a seed, or the draw itself."""
    return draw if isinstance(draw, SplitDraw) else SplitDraw(draw)


def check_no_seed(draw: SplitDraw | int, where: str) -> None:
    """Raise UserError if a seed is given for data, `where` in messages, that have splits."""
    if seed := as_draw(draw).seed:
        raise UserError(f"{where} has splits of its own; leave out split_seed={seed}")


def options(name: str) -> tuple[str, dict[str, str]]:
    """Separate "PATTERN?label=fine_label&image=img" into the pattern and its options."""
    found: dict[str, str] = {}
    while match := _OPTION.search(name):
        found[match[1]], name = match[2], name[: match.start()]
    return name, found


def with_rules(name: str, other: str) -> str:
    """Add the rules in `other`, another name of the same dataset, to a name without rules."""
    name = full_name(name)
    if name.startswith(KINDS) and not _RULES.search(name) and (rules := _RULES.search(other)):
        return f"{name}{'&' if options(name)[1] else '?'}{rules[0][1:]}"
    return name


def without_rules(name: str) -> str:
    """Return the full name of a dataset without its rules."""
    return _RULES.sub("", re.sub(r"\?rules=\d+&", "?", full_name(name)))


def as_in_run(name: str, *of_run: str) -> str:
    """Return the name in `of_run` of the same dataset, with the run's rules; else `name` itself.

    An evaluation of an older run on its own dataset so has the splits that the run had. Captions
    that `name` chooses stay.
    """
    plain = _place(without_rules(name))
    if _RULES.search(name):
        return name
    found = next((each for each in of_run if each and _place(without_rules(each)) == plain), name)
    chosen = options(name)[1].get("captions")
    place, others = options(found)
    if chosen is None or others.get("captions") == chosen:
        return found
    words = {**dict(reversed(others.items())), "captions": chosen}
    return f"{place}?{'&'.join(f'{key}={value}' for key, value in words.items())}"


def same_dataset(name: str, other: str) -> bool:
    """Return whether two names mean the same dataset, whatever the draw of its splits."""
    return _place(name, drawn=False) == _place(other, drawn=False)


def same_draw(name: str, other: str) -> bool:
    """Return whether two names mean the same dataset and the same draw of its splits."""
    return _place(name) == _place(other)


def _place(name: str, *, drawn: bool = True) -> str:
    """Return a normal form of a dataset's name: kind, absolute path, sorted options."""
    full = full_name(name)
    kind, _, path = full.partition(":")
    if f"{kind}:" not in KINDS:
        return full
    path, chosen = options(path)
    if "://" in path:
        path = path.rstrip("/")
    elif kind != "hf" or path.startswith((".", "/", "~")):
        path = os.path.abspath(os.path.expanduser(path))
    defaults = {"split_seed": "0", "rules": "2"} if drawn else {}
    beside = ("captions",) if drawn else ("captions", "split_seed", "rules")
    kept = {k: v for k, v in chosen.items() if k not in beside}
    return f"{kind}:{path} {sorted((defaults | kept).items())}"


def full_name(name: str) -> str:
    """Complete a plain path to the name of a dataset: "photos/birds" to "folder:photos/birds".

    With the suffix .csv, .csv.gz, .tsv, .tar or .parquet it is "csv:FILE", "tar:PATTERN" or
    "parquet:PATTERN", with .json "coco:FILE". A folder on this machine of images and masks is
    "masks:DIR", and so with the other layouts of targets; other names stay as they are.

    Raises UserError: a folder of two layouts.
    """
    plain = options(name)[0]
    if name.startswith(KINDS) and not name.startswith("hf://"):
        return name
    for kind, ends in _ENDS.items():
        if plain.lower().endswith(ends):
            return f"{kind}:{name}"
    is_path = plain.startswith(("/", "./", "../", "~")) or "://" in plain
    is_path = is_path or ("/" in plain and os.path.isdir(plain))
    is_path = is_path or plain.lower().endswith(ARCHIVES)  # which is refused there
    if not is_path:
        return name
    from vit_jax.data.sources.layouts import kind_of  # late: most names say what they are

    return f"{kind_of(plain) or 'folder'}:{name}"


def check_no_archive(path: str) -> None:
    """Raise UserError for the path of an archive."""
    if path.lower().endswith(ARCHIVES):
        if path.lower().endswith((".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tgz")):
            what = "is a packed archive; unpack it and name the folder, or leave it a plain .tar"
        else:
            what = "is an archive; unpack it and name the folder"
        raise UserError(f"{shown(path)} {what}")


def partition(
    paths: Sequence[str],
    labels: Sequence[int],
    draw: SplitDraw | int = 0,
    contents: Iterable[str] = (),
) -> Mapping[str, list[int]]:
    """Divide examples into train, val and test, 80 %, 10 % and 10 %, nearly so in each class.

    Each goes where the seed and its content say, and copies go together; it stays there when others
    come or go. Where few are there, val and test have one at least, of three or more. By rules 1
    it is the names that decide, and each class of three or more has its exact shares, so that a
    few move when others come.

    Args:
        paths: names of the examples, each another.
        labels: their class ids.
        draw: its seed, or all of it.
        contents: what is equal for copies; () are the names.

    Returns:
        The indices of each split, in an order that is mixed over the classes.
    """
    draw = as_draw(draw)
    keys = [_key(path, draw.seed) for path in paths]
    if draw.rules == 1:
        found = _by_counts(keys, labels)
    else:
        contents = list(contents)
        found = _by_shares([_key(c, draw.seed) for c in contents] if contents else keys)
    return {name: sorted(members, key=lambda index: keys[index]) for name, members in found.items()}


def _by_shares(keys: Sequence[bytes]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {name: [] for name in SPLITS}
    for index, key in enumerate(keys):
        share = int.from_bytes(key) / 2 ** (8 * len(key))
        held = "val" if share < _HELD_OUT else "test" if share < 2 * _HELD_OUT else "train"
        found[held].append(index)

    def contents(name: str) -> list[bytes]:
        return sorted({keys[index] for index in found[name]})

    # Where few are there, a split without any takes one from the largest, with its copies.
    for name in SPLITS if len(set(keys)) > 2 else SPLITS[:1]:
        donor = max(SPLITS, key=lambda each: len(contents(each)))
        if not found[name] and found[donor]:
            first = contents(donor)[0]
            found[name] = [index for index in found[donor] if keys[index] == first]
            found[donor] = [index for index in found[donor] if keys[index] != first]
    return found


def _by_counts(keys: Sequence[bytes], labels: Sequence[int]) -> dict[str, list[int]]:
    by_class: dict[int, list[int]] = {}
    for index in sorted(range(len(keys)), key=lambda index: keys[index]):
        by_class.setdefault(labels[index], []).append(index)
    found: dict[str, list[int]] = {name: [] for name in SPLITS}
    for members in by_class.values():
        held = max(1, round(_HELD_OUT * len(members))) if len(members) > 2 else 0
        found["val"] += members[:held]
        found["test"] += members[held : 2 * held]
        found["train"] += members[2 * held :]
    return found


def _key(path: str, seed: int) -> bytes:
    salt = seed.to_bytes(8, "little")
    return hashlib.blake2b(os.fsencode(path), digest_size=8, salt=salt).digest()


class SplitError(UserError):
    """A dataset has no such split, or none that is written so."""

    splits: tuple[str, ...] = ()  # those that there are


@contextlib.contextmanager
def split_of(flag: str, *, in_training: bool = False) -> Iterator[None]:
    """Name the flag that chooses a split that does not exist.

    `in_training` says that an evaluation reads it, of the dataset that the run trains on.
    """
    try:
        yield
    except SplitError as error:
        only = error.splits[0] if len(error.splits) == 1 else ""
        if only and in_training:
            own = setting("config.data.train_split")
            raise UserError(
                f"{error}, on which the run trains: what is measured there is no validation; cut "
                f"it in two, {own}='{only}[:90%]' {flag}='{only}[90%:]'"
            ) from None
        raise UserError(f"{error}; choose another by {flag}=SPLIT") from None


def absolute_slices(split: str, sizes: dict[str, int], where: str) -> list[tuple[str, int, int]]:
    """Resolve "train[:99%]+val" to (split, start, stop), as TFDS rounds it.

    "train[90%:90%+200]" is 200 examples from 90 % on, rounded down, as task_adaptation has it.

    `sizes` has the number of examples of every split there is; `where` is the dataset in messages.

    Raises SplitError: unreadable text, an unknown split, an empty or a reversed slice.
    """
    import tensorflow_datasets as tfds  # late: it takes half a second, and not every run needs it

    keys = {name: f"split{i}" for i, name in enumerate(sizes)}  # TFDS reads plain names alone
    counts = {keys[name]: size for name, size in sizes.items()}

    def numbered(found: re.Match[str]) -> str:
        start = counts[found[1]] * int(found[2]) // 100
        return f"{found[1]}[{start}:{start + int(found[3])}]"

    parts = []
    for name, part in parts_of(split):
        if name not in sizes:
            why = unknown(f"split of {where}", shown(name), map(shown, sizes))
            error = SplitError(str(why).rstrip("."))
            error.splits = tuple(sizes)
            raise error
        parts.append(_FROM_SHARE.sub(numbered, keys[name] + part))
    infos = {key: types.SimpleNamespace(num_examples=count) for key, count in counts.items()}
    try:
        instruction = tfds.core.ReadInstruction.from_spec("+".join(parts))
        pieces = instruction.to_absolute(infos)  # type: ignore[arg-type]  # reads num_examples only
    except (AssertionError, ValueError) as error:
        why = str(error).splitlines()[0]
        for name, key in keys.items():
            why = why.replace(key, name)
        raise SplitError(
            f"cannot read the split {split!r} of {where} ({why}); "
            "write it as 'train', 'train[:99%]' or 'train[1000:2000]'"
        ) from error
    names = dict(zip(keys.values(), keys, strict=True))
    ends = [counts[p.splitname] if p.to is None else p.to for p in pieces]  # None: not given
    slices = [(names[p.splitname], p.from_ or 0, end) for p, end in zip(pieces, ends, strict=True)]
    lengths = [stop - start for _, start, stop in slices]
    if min(lengths) < 0 or not sum(lengths):
        raise SplitError(f"the split {split!r} of {where} holds no examples; choose a larger slice")
    return slices


_NOMINAL = 10_000_000  # examples of a split whose number is not known; slices are shares of it


def overlaps(one: str, two: str, sizes: Mapping[str, int]) -> bool:
    """Return whether "train[90%:]" and "train[:95%]" have examples in common.

    Args:
        one: a split, as `DataConfig.train_split`.
        two: another.
        sizes: the number of examples of each split, where known.
    """
    names = [*sizes, *(name for name in SPLITS if name not in sizes)]
    slices = []
    for split in (one, two):
        split = with_known_names(split, names)
        bases = {name for name, _ in parts_of(split)}
        known = {name: sizes.get(name) or _NOMINAL for name in bases}
        if WHOLE in bases:
            known[WHOLE] = sum(sizes.values()) or _NOMINAL
        try:
            slices.append(absolute_slices(split, known, ""))
        except UserError:
            return False
    return any(
        (name == other and max(start, begin) < min(stop, end)) or WHOLE in (name, other)
        for name, start, stop in slices[0]
        for other, begin, end in slices[1]
    )
