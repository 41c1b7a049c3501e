# SPDX-License-Identifier: Apache-2.0
"""What datasets of many files share, tar and Parquet: splits by file names, class ids by labels."""

import os
import re
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int

from vit_jax import remote
from vit_jax.data.names import KNOWN_SPLITS, with_known_names
from vit_jax.data.partition import WHOLE, check_no_seed, options, partition
from vit_jax.data.sources import Labelled, absolute_slices, digest_of
from vit_jax.errors import DataError, UserError, shown
from vit_jax.files import refused

MAX_CLASSES = 1 << 20  # a larger class id is some other number
_CLASSNAMES = "classnames.txt"


class ShardSource(Labelled):
    """Examples of one split of some files; `read` is the format's own.

    `drawn` stays False where splits are: no table can list what is no file.
    """

    def __init__(
        self,
        name: str,
        classes: tuple[str, ...],
        files: Sequence[remote.FileInfo],
        labels: Int[np.ndarray, " M"],
        places: Int[np.ndarray, " M"],
    ) -> None:
        """Take the files of the split, and of each example its class id or -1, and its place."""
        self.name, self.class_names = name, classes
        self._files = tuple(files)
        self.is_remote = remote.is_remote(files[0].path)
        self.labels, self._places = labels.astype(np.int32), places.astype(np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def digest(self) -> str:
        """Digest names and sizes of the files, labels and places."""
        files = [f"{base_name(file.path)} {file.size}".encode() for file in self._files]
        return digest_of([*files, self.labels.tobytes(), self._places.tobytes()])


def where_of(pattern: str) -> str:
    """Write a pattern for messages; one of this machine so that it looks like a path."""
    pattern = os.path.expanduser(pattern)
    is_plain = pattern.startswith("/") or remote.is_remote(pattern)
    return shown(pattern if is_plain else f"./{pattern.removeprefix('./')}")


def base_name(path: str) -> str:
    """Return the last part of a path or an address."""
    return _unsigned(path).rpartition("/")[2]


def _unsigned(path: str) -> str:
    """Return an address without the signature behind it, which is another every day."""
    return path.partition("?")[0] if path.startswith("http") and remote.is_remote(path) else path


def find(name: str, kind: str) -> tuple[str, list[remote.FileInfo], dict[str, str]]:
    """Return what messages call "PATTERN?label=...", the files of the pattern, and the options.

    Raises UserError: no file is there, or one that the pattern names is not; an option of others.
    """
    pattern, chosen = options(name)
    if "config" in chosen:
        raise UserError(f"{kind}:{shown(name)}: ?config= is for hf: alone; leave it out")
    pattern = os.path.expanduser(pattern)
    with refused(where_of(pattern)):
        files = remote.find(pattern) if pattern else []
    named = {name for name in remote.braces(pattern) if not re.search(r"[*?[]", name)}
    lacking = sorted(named - {file.path for file in files})
    if files and lacking:
        raise UserError(f"{where_of(pattern)} names {shown(lacking[0])}, which is not there")
    if not files:
        example = f"{kind}:DIR/train-*.{kind} or {kind}:gs://BUCKET/train-{{0000..1023}}.{kind}"
        raise UserError(f"{kind}:{shown(pattern)} matches no file; write it as {example}")
    return where_of(pattern), files, chosen


def splits_of(files: Sequence[remote.FileInfo]) -> list[str]:
    """Return the split of each file by its name, or "" for all where no name tells one.

    It is the first word of the name that is one, as in "imagenet1k-train-0000.tar", else the folder
    if that is, else what stands before "-00000-of-00008", as the Hub writes its splits.

    Raises UserError: the names of some files tell a split, and of others not.
    """
    names = [_split_of(file.path) for file in files]
    lacking = names.index("") if "" in names else -1
    if lacking >= 0 and any(names):
        other = next(file for file, name in zip(files, names, strict=True) if name)
        raise UserError(
            f"the name of {shown(files[lacking].path)} tells no split (train, val, test), as that "
            f"of {shown(base_name(other.path))} does; take a pattern that leaves out one of them"
        )
    return names


def _split_of(path: str) -> str:
    *folders, name = _unsigned(path).split("/")
    for word in (*re.findall("[A-Za-z]+", name), *folders[-1:]):
        if word.lower() in KNOWN_SPLITS:
            return word
    written = re.match(r"(\w+)-\d{5}-of-\d{5}\b", name)
    return written[1] if written else ""


def choose(
    split: str,
    splits: Sequence[str],
    counts: Sequence[int],
    keys: Callable[[], Sequence[str]],
    labels: Int[np.ndarray, " M"],
    seed: int,
    where: str,
) -> tuple[str, Int[np.ndarray, " m"]]:
    """Return a source's name and the indices of the examples of a split, with TFDS-style slices.

    Args:
        split: as `DataConfig.train_split`.
        splits: of each file; "" is none, and splits are those of `partition`, and "whole".
        counts: the number of examples of each file.
        keys: names of the examples, each another; asked for only where splits are drawn.
        labels: of all examples.
        seed: of the draw.
        where: the dataset in messages.

    Raises SplitError: no such split.
    """
    members: dict[str, np.ndarray] = {}
    if not any(splits):
        drawn = partition(keys(), labels.tolist(), seed)
        members = {name: np.array(found, int) for name, found in drawn.items()}
        members[WHOLE] = np.arange(len(labels))
    else:
        check_no_seed(seed, where)
        of_example = np.repeat(np.arange(len(splits)), counts)
        for name in dict.fromkeys(splits):
            files = [i for i, each in enumerate(splits) if each == name]
            members[name] = np.flatnonzero(np.isin(of_example, files))
    split = with_known_names(split, list(members))
    slices = absolute_slices(split, {name: len(found) for name, found in members.items()}, where)
    chosen = np.concatenate([members[name][start:stop] for name, start, stop in slices])
    return f"{where}[{split}]" + (f", split seed {seed}" if seed else ""), chosen


def class_ids(
    labels: np.ndarray, names: tuple[str, ...], tell: Callable[[int], str]
) -> tuple[tuple[str, ...], Int[np.ndarray, " M"]]:
    """Return the names of the classes and the class id of every example.

    Whole numbers are ids, and name their classes where nothing else does; -1 and b"" are no label.
    Other words are sorted, or have their place in `names`.

    Args:
        labels: integers, or bytes.
        names: of the classes, or ().
        tell: names an example by its index.

    Raises DataError: a label that is none of the classes.
    """
    words, of_word = np.unique(labels, return_inverse=True)
    # One word for all: a label that is no number makes all of them words.
    texts = [
        w.decode(errors="backslashreplace") if isinstance(w, bytes) else w for w in words.tolist()
    ]
    numeric = all(not isinstance(t, str) or re.fullmatch(r"-?\d{1,18}|", t) for t in texts)
    if numeric:
        ids = [-1 if text == "" else int(text) for text in texts]
        count = len(names) or min(max(ids, default=-1) + 1, MAX_CLASSES)
        names = names or tuple(map(str, range(count)))
    else:
        names = names or tuple(sorted({*texts} - {""}))
        known = {name: i for i, name in enumerate(names)} | {"": -1}
        ids = [known.get(text, -2) for text in texts]
    for word, k in enumerate(ids):
        if not -1 <= k < len(names):
            at = tell(int(np.flatnonzero(of_word == word)[0]))
            known_ids = f"classes are {names[0]!r} to {names[-1]!r}" if names else "there is none"
            raise DataError(f"{at}: the label is {texts[word]!r}; {known_ids}")
    return names, np.array(ids, np.int64)[of_word]


def class_names_beside(files: Sequence[remote.FileInfo]) -> tuple[str, ...]:
    """Return the lines of classnames.txt beside the files, or above their folder "train"; or ()."""
    folder = files[0].path.rpartition("/")[0]
    above, _, name = folder.rpartition("/")
    for place in (folder, above) if name.lower() in KNOWN_SPLITS else (folder,):
        try:
            text = remote.read(f"{place}/{_CLASSNAMES}" if place else _CLASSNAMES)
            lines = text.decode("utf-8-sig", errors="backslashreplace").strip().splitlines()
            return tuple(line.strip() for line in lines)
        except (FileNotFoundError, remote.MissingError, remote.ForbiddenError):
            continue
    return ()
