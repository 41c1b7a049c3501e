# SPDX-License-Identifier: Apache-2.0
"""Training examples that cannot be read: each is logged once and counted; too many end the run.

The pipeline replaces them by other examples (`data.stream.batches`). Only examples of executed
steps are counted, not prefetched ones; the count survives a resume.
"""

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from vit_jax.errors import DataError, some

KEY, _OLD_KEY = "unreadable", "broken"  # in a checkpoint's metadata; in that of an older one


def counted_in(metadata: Mapping[str, Any]) -> Sequence[int]:
    """Return the indices that a checkpoint's metadata has of `Unreadable.to_json`."""
    return metadata.get(KEY, metadata.get(_OLD_KEY, []))


class Unreadable:
    """The distinct unreadable examples of a run, by their index in the source."""

    def __init__(
        self,
        limit: int,
        example_id: Callable[[int], str],
        *,
        counted: Iterable[int] = (),
        log: Callable[[str], None] = print,
    ) -> None:
        """Begin after `counted`, indices from before a resume; `limit` is data.max_broken.

        `example_id` turns an index into a name. `log` prints a line, on process 0; the other
        processes print to stderr.
        """
        self._limit, self._example_id = limit, example_id
        self._seen = dict.fromkeys(counted)  # a set in order of arrival
        self._log = log if jax.process_index() == 0 else functools.partial(print, file=sys.stderr)

    def add(self, batch: Mapping[str, np.ndarray]) -> None:
        """Count the unreadable examples of a batch of `data.train_batches`.

        Raises DataError: more than the limit. With several processes only `agree` raises it.
        """
        broken, reasons = batch["broken"].reshape(-1), batch["reason"].reshape(-1)
        for row in np.flatnonzero(broken >= 0).tolist():
            index = int(broken[row])
            if index in self._seen:
                continue
            self._seen[index] = None
            reason = reasons[row].decode(errors="replace")
            self._log(
                f"warning: {self._example_id(index)}: {reason}; the next example that can be read "
                f"takes its place ({len(self._seen)} of data.max_broken={self._limit})"
            )
        if jax.process_count() == 1:
            self._check()

    def agree(self) -> None:
        """Add the other processes' counts, after the same step in all; raises what `add` does."""
        if not self._limit or jax.process_count() == 1:
            return
        # One index more than the limit is enough to end the run.
        mine = np.full(self._limit + 1, -1, np.int32)
        mine[: len(self._seen)] = list(self._seen)[: len(mine)]
        every = np.asarray(multihost_utils.process_allgather(mine))
        self._seen |= dict.fromkeys(np.unique(every[every >= 0]).tolist())
        self._check()

    def scalars(self) -> dict[str, float]:
        """Return the count as data/broken; nothing where data.max_broken is 0."""
        return {"data/broken": float(len(self._seen))} if self._limit else {}

    def to_json(self) -> dict[str, Any]:
        """Return the indices for `counted`, to be merged into a checkpoint's metadata."""
        return {KEY: sorted(self._seen)} if self._seen else {}

    def _check(self) -> None:
        count = len(self._seen)
        if count <= self._limit or not self._limit:
            return
        names = some([self._example_id(index) for index in self._seen], 3)
        raise DataError(
            f"{count} training examples cannot be read, more than data.max_broken={self._limit}: "
            f"{names}; repair them, or continue with a larger data.max_broken"
        )
