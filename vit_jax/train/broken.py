# SPDX-License-Identifier: Apache-2.0
"""Training examples that could not be read: told once each, counted, and too many end the run.

The pipeline has put others in their place (`data.batches`). What is counted here belongs to the
steps done: a batch prepared ahead for no step is not, and a run that continues counts on.
"""

import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from vit_jax.errors import DataError

KEY = "broken"  # in a checkpoint's metadata


class Broken:
    """The distinct broken examples of a run, by their numbers in the source."""

    def __init__(
        self,
        limit: int,
        example_id: Callable[[int], str],
        *,
        known: Iterable[int] = (),
        say: Callable[[str], None] = print,
    ) -> None:
        """Take data.max_broken, how to name an example, those counted before, where to warn.

        A process other than the first warns of its own on stderr.
        """
        self._limit = limit
        self._example_id = example_id
        self._seen = dict.fromkeys(known)  # a set in the order of their coming
        self._say = say if jax.process_index() == 0 else functools.partial(print, file=sys.stderr)

    def note(self, batch: Mapping[str, np.ndarray]) -> None:
        """Count those of a batch of `data.train_batches`.

        Raises:
            DataError: more than the limit. Of several processes `agree` raises it, in all at once.
        """
        for row in np.flatnonzero(batch["broken"] >= 0).tolist():
            index = int(batch["broken"][row])
            if index in self._seen:
                continue
            self._seen[index] = None
            reason = batch["reason"][row].decode(errors="replace")
            self._say(
                f"warning: {self._example_id(index)}: {reason}; the next example that can be read "
                f"takes its place ({len(self._seen)} of data.max_broken={self._limit})"
            )
        if jax.process_count() == 1:
            self._check()

    def agree(self) -> None:
        """Count what other processes met too; all call this after the same step.

        Raises:
            DataError: more than the limit.
        """
        if not self._limit or jax.process_count() == 1:
            return
        # One more than the limit is all that anyone needs to know.
        mine = np.full(self._limit + 1, -1, np.int32)
        first = list(self._seen)[: len(mine)]
        mine[: len(first)] = first
        every = np.asarray(multihost_utils.process_allgather(mine))
        self._seen |= dict.fromkeys(np.unique(every[every >= 0]).tolist())
        self._check()

    def scalars(self) -> dict[str, float]:
        """Return their number as data/broken; nothing where none is allowed."""
        return {"data/broken": float(len(self._seen))} if self._limit else {}

    def to_json(self) -> dict[str, Any]:
        """Return what `known` takes, to be merged into a checkpoint's metadata."""
        return {KEY: sorted(self._seen)} if self._seen else {}

    def _check(self) -> None:
        count = len(self._seen)
        if count <= self._limit or not self._limit:
            return
        names = [self._example_id(index) for index in list(self._seen)[:3]]
        more = f" and {count - len(names)} more" if count > len(names) else ""
        raise DataError(
            f"{count} training examples cannot be read, more than data.max_broken={self._limit}: "
            f"{', '.join(names)}{more}; repair them, or continue with a larger data.max_broken"
        )
