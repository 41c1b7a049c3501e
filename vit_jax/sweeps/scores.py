# SPDX-License-Identifier: Apache-2.0
"""The table of a sweep of cases, whose points are named GROUP/CASE, each once or by many seeds."""

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence

from vit_jax.recipes import vtab
from vit_jax.settings.measures import of
from vit_jax.sweeps.results import Outcome

_NAME = re.compile(r"([^/]+)/(.+?)(?: seed=\d+)?")
Cases = Mapping[str, Mapping[str, Sequence[float]]]  # group -> case -> one value for each seed


def cases(found: Sequence[Outcome]) -> Cases:
    """Return the values of the finished runs by group and case; {} if a point has another name."""
    grouped: dict[str, dict[str, list[float]]] = {}
    for result in found:
        match = _NAME.fullmatch(result.point.name)
        if match is None:
            return {}
        if result.value is not None:
            grouped.setdefault(match[1], {}).setdefault(match[2], []).append(result.value)
    return grouped


def table(grouped: Cases, metric: str) -> list[tuple[str, ...]]:
    """Return the rows of a table, header first: the mean of each case, of each group, of all.

    Shares, such as accuracies, are in per cent. `+-` is the standard error over the seeds. VTAB's
    scores have the published ones beside them.
    """
    found = of(metric)
    scale, digits = (100, 2) if found and found.unit == "%" else (1, 4)
    means = {
        g: {c: scale * statistics.fmean(v) for c, v in own.items()} for g, own in grouped.items()
    }
    every = [value for own in means.values() for value in own.values()]
    of_vtab = {case for own in grouped.values() for case in own} <= set(vtab.TASKS)
    published = vtab.PUBLISHED if of_vtab else {}

    def rows() -> Iterator[tuple[str, ...]]:
        yield ("group", "case", metric, "+-", "runs", *(["published"] if published else []))
        for group, own in means.items():
            for case, mean in own.items():
                seeds = [scale * value for value in grouped[group][case]]
                spread = statistics.stdev(seeds) / math.sqrt(len(seeds)) if seeds[1:] else None
                error = "" if spread is None else f"{spread:.{digits}f}"
                theirs = [f"{published[case]:.1f}"] if published else []
                yield (group, case, f"{mean:.{digits}f}", error, str(len(seeds)), *theirs)
        whole = {
            **means,
            "all": {f"{g}/{c}": x for g, own in means.items() for c, x in own.items()},
        }
        for group, own in whole.items():
            theirs = [published[case.rpartition("/")[2]] for case in own] if published else []
            last = [f"{statistics.fmean(theirs):.2f}"] if theirs else []
            mean = f"{statistics.fmean(own.values()):.{digits}f}"
            yield (group, f"mean of {len(own)}", mean, "", "", *last)
        for name, mean in vtab.MEANS.items() if len(every) == len(published) else ():
            yield ("all", f"published, {name}", f"{mean:.2f}", "", "", "")

    return list(rows())
