# SPDX-License-Identifier: Apache-2.0
"""Facts of many files, measured once and kept in the user's cache by path, size and time."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from vit_jax.data.sources.look import CHUNK, Known, Seen, threads_for
from vit_jax.process import waiting

_VERSION = 2  # raise it when what is measured changes


def measured(paths: Sequence[str], name: str, measure: Callable[[str], str]) -> list[str]:
    """Return a text about each file, as `measure` makes it; "!" and why where it raises an error.

    Args:
        paths: of files on this machine.
        name: of the dataset and of what is measured, under which the cache keeps the texts.
        measure: reads a file; may raise ValueError or OSError.
    """
    if not paths:
        return []
    known = Known(f"{name} {_VERSION}")
    found: list[str] = []
    with (
        waiting.counted(f"looking at {name}", len(paths)) as done,
        ThreadPoolExecutor(threads_for(paths[0])) as pool,
    ):
        for at in range(0, len(paths), CHUNK):
            chunk = list(paths[at : at + CHUNK])
            seen = list(pool.map(lambda path: _one(path, known.entries, measure), chunk))
            known.add(chunk, seen)
            found += [each.why or each.head for each in seen]
            done(len(chunk))
    known.close(paths)
    return found


def _one(path: str, entries: Mapping[str, Seen], measure: Callable[[str], str]) -> Seen:
    try:
        status = os.stat(path)
        stamp, before = str(status.st_mtime_ns), entries.get(path)
        if before and (before.size, before.stamp) == (status.st_size, stamp):
            return before
        return Seen(status.st_size, stamp, "", measure(path))
    except FileNotFoundError:
        return Seen(-1, "", "!gone")
    except (ValueError, OSError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return Seen(-1, "", f"!{' '.join(str(why).split())[:200]}")
