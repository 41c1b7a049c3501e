# SPDX-License-Identifier: Apache-2.0
"""Slices of splits, "train[:99%]+val", in numbers, as TFDS reads and rounds them."""

import contextlib
import re
import types
from collections.abc import Iterator

from vit_jax.data.names import parts_of
from vit_jax.errors import UserError, setting, shown, unknown


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


_FROM_SHARE = re.compile(r"(\w+)\[(\d+)%:\2%\+(\d+)\]")


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
