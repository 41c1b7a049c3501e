# SPDX-License-Identifier: Apache-2.0
"""The laws that the finished runs of a sweep follow, or why they follow none."""

import dataclasses
import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from vit_jax.config import saved as config_json
from vit_jax.settings.measures import is_accuracy
from vit_jax.storage import foreign
from vit_jax.sweeps import scaling
from vit_jax.sweeps.results import Outcome
from vit_jax.sweeps.scaling import CannotFit
from vit_jax.workdir import folder as workdir

# Runs that differ in these follow one law: size, length, and what is set by either.
_OF_SIZE = ("model.", "duration", "optim.lr", "optim.warmup", "data.batch_size", "seed")
SHAPES = ("model.dim", "model.depth", "model.mlp_dim")
_ONE_BUDGET = 0.1  # by which FLOPs of runs planned for the same may differ
Law = TypeVar("Law")


class FinishedRun(NamedTuple):
    """A finished run as a point of a law; of several that differ in their seed, their mean."""

    name: str
    params: int
    examples: int
    flops: float
    value: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Laws:
    """What was fitted to one group of runs.

    Attributes:
        others: by what sets them apart, runs that may follow another law: fewer images, say.
        frontier: the runs that none beats.
        compute, held_out: value against compute on the frontier, and the largest predicted by it.
        joint: value against parameters and examples.
        isoflop: the best size for each compute.
        shapes: by field, the best width, depth or MLP width for each compute.
        refused: by law, why it could not be fitted.
    """

    runs: Sequence[FinishedRun]
    others: Mapping[str, Sequence[FinishedRun]]
    frontier: Sequence[FinishedRun]
    compute: scaling.PowerLaw | None
    held_out: scaling.HeldOut | None
    joint: scaling.Chinchilla | None
    isoflop: scaling.IsoFlop | None
    shapes: Mapping[str, scaling.ShapeLaw]
    refused: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the laws as plain JSON values."""
        fitted = {"compute": self.compute, "joint": self.joint, "isoflop": self.isoflop}
        return {
            **{name: law.to_json() for name, law in fitted.items() if law is not None},
            "held_out": None if self.held_out is None else dataclasses.asdict(self.held_out),
            "shapes": {field: law.to_json() for field, law in self.shapes.items()},
            "refused": dict(self.refused),
            "frontier": [run.name for run in self.frontier],
        }

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return (law, quantity, value, 95 % interval) of everything that was fitted."""
        rows = []
        fitted = [
            ("value against compute", self.compute, "abcd"),
            ("L(N, D)", self.joint, ("E", "A", "B", "alpha", "beta", "a", "b")),
            ("runs of equal compute", self.isoflop, "ab"),
            *((f"best {field.split('.')[1]}", law, "s") for field, law in self.shapes.items()),
        ]
        for name, law, quantities in fitted:
            if law is None:
                continue
            rows.append((name, law.describe(), "", ""))
            for quantity in quantities:
                low, high = law.intervals[quantity]
                if getattr(law, quantity) or high:
                    value = f"{getattr(law, quantity):.3g}"
                    rows.append(("", quantity, value, f"{low:.3g} to {high:.3g}"))
        if self.held_out is not None:
            what = f"error of predicting the {len(self.held_out.compute)} of most compute"
            rows.append(("held out", what, f"{100 * self.held_out.worst:+.1f} %", ""))
        return rows


def measure(metric: str) -> str:
    """Return what laws are fitted to: the metric itself, or of an accuracy its error, 1 - it."""
    return f"1 - {metric}" if is_accuracy(metric) else metric


def fit(place: Path, found: Sequence[Outcome]) -> Laws:
    """Fit every law to the finished runs of the sweep in `place`, by its metric's `measure`.

    Runs that differ in other fields than those of size and length, such as the training split, are
    apart: the laws are of the largest group.
    """
    groups = _groups(found)
    main = max(groups, key=lambda label: len(groups[label])) if groups else ""
    runs = [run for run, _ in groups.get(main, [])]
    refused: dict[str, str] = {}

    def tried(name: str, law: Callable[[], Law]) -> Law | None:
        try:
            return law()
        except CannotFit as error:
            refused[name] = str(error)
            return None

    params, examples, flops, values = _columns(runs)
    best = tried("frontier", lambda: scaling.frontier(flops, values, tolerance=_ONE_BUDGET))
    frontier = [] if best is None else [runs[i] for i in best]
    _, _, costs, losses = _columns(frontier)
    power, isoflop = scaling.fit_power_law, scaling.fit_isoflop
    return Laws(
        runs=runs,
        others={name: [run for run, _ in group] for name, group in groups.items() if name != main},
        frontier=frontier,
        compute=tried("compute", lambda: power(costs, losses)),
        held_out=tried("held out", lambda: scaling.held_out(power, (costs,), losses, costs)),
        joint=tried("joint", lambda: scaling.fit_chinchilla(params, examples, values, flops=flops)),
        isoflop=tried("isoflop", lambda: isoflop(params, values, flops, examples=examples)),
        shapes=_shapes(place, groups.get(main, []), tried),
        refused=refused,
    )


def _columns(runs: Sequence[FinishedRun]) -> tuple[list[float], ...]:
    """Return parameters, examples, FLOPs and values."""
    return tuple([float(run[i]) for run in runs] for i in range(1, 5))


def _groups(found: Sequence[Outcome]) -> dict[str, list[tuple[FinishedRun, Outcome]]]:
    """Put finished runs that may follow one law together, by what they have in common."""
    all_overrides = [result.point.overrides for result in found]
    fields = sorted({x for each in all_overrides for x in each if not x.startswith(_OF_SIZE)})
    texts = {x: {json.dumps(o[x]) if x in o else None for o in all_overrides} for x in fields}
    differing = [field for field in fields if len(texts[field]) > 1]
    same = defaultdict(list)  # finished runs that differ in the seed alone
    for result in found:
        if result.value is not None:
            rest = {k: v for k, v in result.point.overrides.items() if k != "seed"}
            same[json.dumps([result.point.config, rest])].append(result)
    groups = defaultdict(list)
    for results in same.values():
        point = results[0].point
        apart = {x: point.overrides[x] for x in differing if x in point.overrides}
        label = " ".join(f"{field.rpartition('.')[2]}={value}" for field, value in apart.items())
        value = _mean([_measured(result) for result in results])
        run = FinishedRun(point.name, point.params, point.examples, point.flops, value)
        groups[label].append((run, results[0]))
    return groups


def _measured(result: Outcome) -> float:
    last, metric = result.curve[-1][1], result.point.metric
    return last if measure(metric) == metric else 1 - last


def _mean(values: Sequence[float]) -> float:
    """Return the geometric mean, or that of sums where a value is not above 0: laws refuse it."""
    return statistics.geometric_mean(values) if min(values) > 0 else statistics.fmean(values)


def _shapes(
    place: Path,
    group: Sequence[tuple[FinishedRun, Outcome]],
    tried: Callable[[str, Callable[[], scaling.ShapeLaw]], scaling.ShapeLaw | None],
) -> dict[str, scaling.ShapeLaw]:
    """Fit the law of each dimension of the shape that is varied alone, around a centre."""
    sizes = []
    for _, result in group:
        file = result.point.workdir(place) / workdir.CONFIG
        tree = config_json.flatten(foreign.tree(foreign.read(file), str(file)))
        sizes.append([tree.get(field) for field in SHAPES])
    if not all(isinstance(side, int) for size in sizes for side in size):
        return {}  # a network without these dimensions
    centre = [Counter(column).most_common(1)[0][0] for column in zip(*sizes, strict=True)]
    laws = {}
    for i, field in enumerate(SHAPES):
        rays = [
            (size[i], run)
            for size, (run, _) in zip(sizes, group, strict=True)
            if all(size[j] == centre[j] for j in range(len(SHAPES)) if j != i)
        ]
        if len({size for size, _ in rays}) < 3:
            continue  # not requested
        columns = [[float(size) for size, _ in rays], *_columns([run for _, run in rays])[2:]]
        law = tried(field, lambda columns=columns: scaling.fit_shape(*columns))
        if law is not None:
            laws[field] = law
    return laws
