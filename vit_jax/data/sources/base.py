# SPDX-License-Identifier: Apache-2.0
"""Random access to examples of named fields: a TFDS dataset or a folder, one interface."""

import concurrent.futures
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float32, Int32

from vit_jax.data.account import Account
from vit_jax.data.order import ClassBalance
from vit_jax.data.sources.partition import SplitError as SplitError
from vit_jax.data.sources.partition import absolute_slices as absolute_slices
from vit_jax.data.sources.partition import split_of as split_of
from vit_jax.errors import UserError
from vit_jax.process import waiting

if TYPE_CHECKING:  # most runs have one label an image
    from vit_jax.data.several import LabelSets, Numbers

# The fields of one example: "image", encoded; "label", a class id or uint8 (K,) multi-hot, int8
# with -1 where it is not known; or "value", float32 (K,), NaN where it is not known; whatever else
# `Source.spec` names; and of a source that `has_captions`, "captions", a tuple of texts.
Example: TypeAlias = dict[str, Any]


def short_name(name: str) -> str:
    """Name a source as what leaves this machine may: without the folders or the bucket above it."""
    outside = ("/", "./", "../", "'", '"')  # quoted where its characters are odd
    elsewhere = name.startswith(outside) or "://" in name
    return name.rpartition("/")[2] if elsewhere else name


@runtime_checkable
class Source(Protocol):
    """Examples by index. Implementations can be pickled, for worker processes."""

    name: str  # what messages call it, such as "imagenet2012[train]"
    class_names: tuple[str, ...]  # the name of each class id
    multi_label: bool  # whether a label is a multi-hot vector instead of a class id
    drawn: bool  # whether its split was drawn here (`partition`): the images came without any

    @property
    def num_classes(self) -> int: ...  # K

    @property
    def labels(self) -> Int32[np.ndarray, " M"] | None:
        """The class id of every example, if available without reading the examples."""

    @property
    def spec(self) -> Mapping[str, jax.ShapeDtypeStruct]:
        """Shape and dtype of every field of an example but its encoded images and its captions."""
        ...

    def __len__(self) -> int: ...

    def read(self, index: int) -> Example:
        """Return the fields of an example."""
        ...

    def example_id(self, index: int) -> str:
        """Name one example such that a person can find it: a file's path, a record's number."""
        ...

    def digest(self) -> str:
        """Return 16 hex digits of which files the examples are, by names and sizes of shards."""
        ...


class Labelled:
    """What sources of one image and its label share.

    Attributes:
        account: of the whole dataset, all splits of it; None where nobody has counted.
        target_kind: a `TargetKind`, of what `target(index)` gives; "" is none.
        things: of a panoptic set, which classes are things; () is all.
    """

    account: Account | None = None
    target_kind: str = ""
    things: tuple[bool, ...] = ()

    class_names: tuple[str, ...]
    multi_label = False
    drawn = False
    is_remote = False  # whether a read waits for a network: many at a time
    has_captions = False  # whether `read` gives captions
    bands: tuple[str, ...] = ()  # of images that are arrays, as it was opened with
    has_unknown = False  # whether a multi-hot label may say that it is not known
    numbers = False  # whether `read` gives "value"; `class_names` are then what each number is
    labels: Any  # of each example, as `Source.labels`
    _targets: "LabelSets | Numbers | None" = None

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def spec(self) -> Mapping[str, jax.ShapeDtypeStruct]:
        """The label: a class id, or K numbers for images of several labels."""
        if self.numbers:
            return {"value": jax.ShapeDtypeStruct((self.num_classes,), np.float32)}
        if self.multi_label:
            dtype = np.int8 if self.has_unknown else np.uint8
            return {"label": jax.ShapeDtypeStruct((self.num_classes,), dtype)}
        return {"label": jax.ShapeDtypeStruct((), np.int32)}

    @property
    def values(self) -> Float32[np.ndarray, "M K"] | None:
        """The numbers of every example of a source of these."""
        return getattr(self._targets, "values", None)

    def take_targets(self, targets: "LabelSets | Numbers") -> None:
        """Give each example several labels, or numbers, in place of its label."""
        self._targets, self.labels = targets, None
        self.numbers, self.multi_label = targets.are_numbers, not targets.are_numbers
        self.has_unknown = targets.has_unknown

    def _target(self, index: int) -> Example:
        """Return the field of an example that says what it shows."""
        if self._targets is not None:
            return self._targets.example(index)
        assert self.labels is not None, "a source without `take_targets` lists its labels"
        return {"label": int(self.labels[index])}


def digest_of(pieces: Iterable[bytes]) -> str:
    """Return 16 hex digits of some texts, in any order."""
    found = hashlib.sha256()
    for piece in sorted(pieces):
        found.update(piece + b"\0")
    return found.hexdigest()[:16]


class Wrapped(Labelled):
    """A source with the examples, or some of the examples, of another one."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.name, self.class_names = source.name, source.class_names
        self.multi_label, self.labels = source.multi_label, source.labels
        self.has_unknown, self.numbers = has_unknown(source), gives_numbers(source)
        self.drawn, self.is_remote = source.drawn, is_remote(source)
        self.account, self.has_captions = account_of(source), has_captions(source)
        self.target_kind = getattr(source, "target_kind", "")
        self.things = getattr(source, "things", ())
        self.bands = bands_of(source)

    @property
    def spec(self) -> Mapping[str, jax.ShapeDtypeStruct]:
        return self._source.spec

    @property
    def values(self) -> Float32[np.ndarray, "M K"] | None:
        return getattr(self._source, "values", None)

    def digest(self) -> str:
        return self._source.digest()


class CachedSource(Wrapped):
    """Keeps each encoded example of another source in memory once it has been read.

    Worker processes fill a cache each: what is cached is not pickled.
    """

    def __init__(self, source: Source, seen: dict[int, Example] | None = None) -> None:
        """Take the source, and those of its examples that have been read already."""
        super().__init__(source)
        self._seen = {} if seen is None else seen

    def __len__(self) -> int:
        return len(self._source)

    def read(self, index: int) -> Example:
        if index not in self._seen:
            self._seen[index] = self._source.read(index)
        return self._seen[index]

    def captions(self, index: int) -> tuple[str, ...]:
        return captions_of(self._source, index)

    def target(self, index: int) -> Any:
        return target_of(self._source, index)

    def example_id(self, index: int) -> str:
        return self._source.example_id(index)

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedSource, (self._source,)


class Sample(Wrapped):
    """Some examples of another source, by their indices there."""

    def __init__(self, source: Source, chosen: Int32[np.ndarray, " M"]) -> None:
        super().__init__(source)
        self._chosen = chosen
        self.labels = None if source.labels is None else source.labels[chosen]

    @property
    def values(self) -> Float32[np.ndarray, "M K"] | None:
        whole = super().values
        return None if whole is None else whole[self._chosen]

    def __len__(self) -> int:
        return len(self._chosen)

    def read(self, index: int) -> Example:
        return self._source.read(int(self._chosen[index]))

    def captions(self, index: int) -> tuple[str, ...]:
        return captions_of(self._source, int(self._chosen[index]))

    def target(self, index: int) -> Any:
        return target_of(self._source, int(self._chosen[index]))

    def example_id(self, index: int) -> str:
        return self._source.example_id(int(self._chosen[index]))


class ClassSubset(Sample):
    """Some of the classes of another source, renumbered, with their examples in the same order."""

    def __init__(
        self,
        source: Source,
        classes: tuple[int, ...],
        chosen: Int32[np.ndarray, " M"],
        labels: Int32[np.ndarray, " M"],
    ) -> None:
        """Take the ids of the classes and, of each example kept, its index and its new label."""
        super().__init__(source, chosen)
        self.labels = labels
        self.class_names = tuple(source.class_names[k] for k in classes)
        self.name = f"{source.name}, {len(classes)} of {source.num_classes} classes"

    def read(self, index: int) -> Example:
        return {**super().read(index), "label": int(self.labels[index])}


def select_classes(source: Source, classes: tuple[int, ...], *, cache: bool) -> Source:
    """Keep the examples of the classes with these ids; classes[k] becomes class k.

    If the source lists no labels, every example is read once, without decoding its image. With
    `cache` the encoded examples stay in memory once read, here or later.

    Raises UserError: a source with several labels per image, an unknown or repeated id, or no
    example left.
    """
    field = f"data.classes={classes!r}"
    if source.multi_label or gives_numbers(source):
        has = "several labels per image" if source.multi_label else "numbers and no classes"
        raise UserError(f"{source.name} has {has}; leave data.classes=()")
    highest = source.num_classes - 1
    for k in classes:
        if not 0 <= k <= highest:
            raise UserError(f"{field}: {source.name} has no class {k}; ids are 0..{highest}")
    for k in classes:
        if classes.count(k) > 1:
            raise UserError(f"{field} names class {k} twice; give each id once")
    seen: dict[int, Example] = {}

    def keep(index: int, example: Example) -> None:
        if cache and example["label"] in classes:
            seen[index] = example

    labels = _read_labels(source, keep)
    chosen = np.flatnonzero(np.isin(labels, classes)).astype(np.int32)
    if not len(chosen):
        raise UserError(f"{field}: {source.name} has no example of these classes")
    new_ids = {k: new for new, k in enumerate(classes)}
    renumbered = np.array([new_ids[k] for k in labels[chosen].tolist()], np.int32)
    return ClassSubset(CachedSource(source, seen) if cache else source, classes, chosen, renumbered)


def _read_labels(
    source: Source, take: Callable[[int, Example], None] | None = None
) -> Int32[np.ndarray, " M"]:
    """Return every example's class id; unless it is listed, read all and give each to `take`."""
    if source.labels is not None:
        return source.labels
    labels = np.empty(len(source), np.int32)
    with waiting.said(f"reading the labels of {source.name}"):
        for index, example in enumerate(_read_all(source, source.read)):
            labels[index] = example["label"]
            if take is not None:
                take(index, example)
    return labels


def is_remote(source: Source) -> bool:
    """Return whether its reads wait for a network."""
    return getattr(source, "is_remote", False)


def bands_of(source: Source) -> tuple[str, ...]:
    """Return which bands of its images are read; () where they are pictures."""
    return getattr(source, "bands", ())


def account_of(source: Source) -> Account | None:
    """Return what its dataset holds and what of it is used, where that is known."""
    return getattr(source, "account", None)


def has_unknown(source: Source) -> bool:
    """Return whether its multi-hot labels may be not known."""
    return getattr(source, "has_unknown", False)


def gives_numbers(source: Source) -> bool:
    """Return whether its examples have a field "value", and no label."""
    return getattr(source, "numbers", False)


def values_of(source: Source) -> Float32[np.ndarray, "M K"]:
    """Return the numbers of all examples of a source that `gives_numbers`."""
    found = getattr(source, "values", None)
    return (
        np.stack([source.read(i)["value"] for i in range(len(source))]) if found is None else found
    )


def has_captions(source: Source) -> bool:
    """Return whether its examples have a field "captions"."""
    return getattr(source, "has_captions", False)


def captions_of(source: Source, index: int) -> tuple[str, ...]:
    """Return an example's captions, without reading its image where the source can."""
    own = getattr(source, "captions", None)
    return own(index) if own else source.read(index)["captions"]


def target_kind(source: Source) -> Any:
    """Return the `TargetKind` of its examples' targets."""
    from vit_jax.data.targets import TargetKind  # late: few runs have any

    return TargetKind(getattr(source, "target_kind", ""))


def target_of(source: Source, index: int) -> Any:
    """Return an example's `PixelTarget`, in pixels of the upright image.

    Raises UserError: the source has none; DataError: it cannot be read, or is of another size.
    """
    own = getattr(source, "target", None)
    if own is None or not getattr(source, "target_kind", ""):
        raise UserError(f"{source.name} has no masks, boxes or depth; {WITH_TARGETS} have some")
    return own(index)


# Names of datasets whose pixels have targets.
WITH_TARGETS = "masks:, coco:, voc:, yolo:, depth:, parquet:, hf: and TFDS's datasets"


def all_captions(source: Source) -> list[tuple[str, ...]]:
    """Return the captions of every example of a source that has some, in the stored order."""
    with waiting.said(f"reading the captions of {source.name}"):
        return list(_read_all(source, functools.partial(captions_of, source)))


_Read = TypeVar("_Read")


def _read_all(source: Source, read: Callable[[int], _Read]) -> Iterator[_Read]:
    if not is_remote(source):
        yield from map(read, range(len(source)))
        return
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        for start in range(0, len(source), 1024):  # so many are in memory
            yield from pool.map(read, range(start, min(start + 1024, len(source))))


def balance_of(source: Source, power: float) -> ClassBalance | None:
    """Return how `data.balance` orders a source, or None for 0; reads labels that are not listed.

    Raises UserError: examples with several labels, or without.
    """
    if not power:
        return None
    numbers = gives_numbers(source)
    labels = None if source.multi_label or numbers else _read_labels(source)
    if labels is None or labels.min() < 0:
        has = "several labels per image" if labels is None else "images without a label"
        has = "numbers and no classes" if numbers else has
        raise UserError(f"data.balance={power:g}: {source.name} has {has}; set data.balance=0")
    return ClassBalance(labels, power)
