# SPDX-License-Identifier: Apache-2.0
"""Random access to encoded images and their labels: a TFDS dataset or a folder, one interface."""

import types
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from vit_jax.errors import UserError, unknown

Label: TypeAlias = int | np.ndarray  # a class id, or uint8 (K,) multi-hot


@runtime_checkable
class Source(Protocol):
    """Encoded images by index. Implementations can be pickled, for worker processes.

    Attributes:
        name: what messages call it, such as "imagenet2012[train]".
        class_names: the name of each class id.
        num_classes: K.
        multi_label: whether a label is a multi-hot vector instead of a class id.
    """

    name: str
    class_names: tuple[str, ...]
    multi_label: bool

    @property
    def num_classes(self) -> int:
        """K."""
        ...

    def __len__(self) -> int: ...

    def read(self, index: int) -> tuple[bytes, Label]:
        """Return an example's encoded image and its label."""
        ...

    def example_id(self, index: int) -> str:
        """Name one example such that a person can find it: a file's path, a record's number."""
        ...


class CachedSource:
    """Keeps each encoded example of another source in memory once it has been read.

    Worker processes fill a cache each: what is cached is not pickled.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._seen: dict[int, tuple[bytes, Label]] = {}
        self.name = source.name
        self.class_names = source.class_names
        self.multi_label = source.multi_label

    @property
    def num_classes(self) -> int:
        """K."""
        return self._source.num_classes

    def __len__(self) -> int:
        return len(self._source)

    def read(self, index: int) -> tuple[bytes, Label]:
        """Return an example's encoded image and its label."""
        found = self._seen.get(index)
        if found is None:
            found = self._seen[index] = self._source.read(index)
        return found

    def example_id(self, index: int) -> str:
        """Name one example such that a person can find it."""
        return self._source.example_id(index)

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedSource, (self._source,)


def absolute_slices(split: str, sizes: dict[str, int], where: str) -> list[tuple[str, int, int]]:
    """Resolve "train[:99%]+val" to (split, start, stop), as TFDS rounds it.

    Args:
        split: the text.
        sizes: number of examples of every split there is.
        where: the dataset, for messages.

    Raises:
        UserError: unreadable text, an unknown split, an empty or a reversed slice.
    """
    import tensorflow_datasets as tfds  # late: it takes half a second, and not every run needs it

    infos = {key: types.SimpleNamespace(num_examples=size) for key, size in sizes.items()}
    bases = [part.split("[")[0].strip() for part in split.split("+")]
    for base in bases:
        if base not in infos:
            raise unknown(f"split of {where}", base, infos)
    try:
        instruction = tfds.core.ReadInstruction.from_spec(split)
        pieces = instruction.to_absolute(infos)  # type: ignore[arg-type]  # reads num_examples only
    except (AssertionError, ValueError) as error:
        raise UserError(
            f"cannot read the split {split!r} of {where} ({str(error).splitlines()[0]}); "
            "write it as 'train', 'train[:99%]' or 'train[1000:2000]'"
        ) from error
    slices = [  # a bound that is not given is None
        (p.splitname, p.from_ or 0, sizes[p.splitname] if p.to is None else p.to) for p in pieces
    ]
    lengths = [stop - start for _, start, stop in slices]
    if min(lengths) < 0 or not sum(lengths):
        raise UserError(f"the split {split!r} of {where} holds no examples; choose a larger slice")
    return slices
