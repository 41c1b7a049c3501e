# SPDX-License-Identifier: Apache-2.0
"""Whether two splits of one dataset, as they are written, have examples in common."""

from collections.abc import Mapping

from vit_jax.data.names import parts_of, with_known_names
from vit_jax.data.sources.partition import SPLITS, WHOLE
from vit_jax.data.sources.slices import absolute_slices
from vit_jax.errors import UserError

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
