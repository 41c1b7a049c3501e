# SPDX-License-Identifier: Apache-2.0
"""Model soups: the average of the weights of several checkpoints (arXiv 2203.05482).

Uniform averages all; greedy takes them from the best down, and keeps one where the average gets no
worse by an evaluation (alg. 1). Nothing is trained.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from vit_jax import config as config_lib
from vit_jax import data, errors, evals, trees
from vit_jax.checkpoints import CheckpointConfig, reader
from vit_jax.checkpoints.checkpointer import Checkpointer
from vit_jax.checkpoints.config import steps_in
from vit_jax.checkpoints.reader import Saved
from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.errors import UserError, some
from vit_jax.inference import trained
from vit_jax.objectives import Context
from vit_jax.settings.measures import Mode, resolved
from vit_jax.train import branch, early_stop, metadata, texts
from vit_jax.train import build as build_lib
from vit_jax.train.batches import device_batches
from vit_jax.weights.config import BASE, InitConfig
from vit_jax.workdir import folder as workdir

HISTORY = "soup"  # in a checkpoint's metadata: of what, how, and what each measured
_ALL = "all"  # after "DIR@": every checkpoint that the run keeps
_BATCHES = 50  # by which BatchNorm's statistics are measured anew: of the old ones 0.9^50 is left
# Fields that must be equal, or that begin so: what the network computes, of which input.
_SAME = ("model.", "objective.family", "data.mean", "data.std")

Arrays = dict[str, np.ndarray]  # by "params/..." and, of other collections, "batch_stats/..."
Scores = dict[str, float]


class Ingredient(NamedTuple):
    """A checkpoint of a run, of which the parameters or, with `ema`, their average is taken."""

    place: str
    saved: Saved
    cfg: Config
    ema: bool

    @property
    def name(self) -> str:
        """The run and the step, as `find` takes them."""
        return f"{self.place}@{self.saved.step}"

    @property
    def leaves(self) -> dict[str, str]:
        """The names of the arrays in the checkpoint, by those in the soup."""
        inside = re.compile(r"^ema/" if self.ema else r"^(?=params/)|^model_state/")
        names = self.saved.manifest.leaves
        return {inside.sub("", name, count=1): name for name in names if inside.match(name)}


class Kitchen(NamedTuple):
    """What a soup is measured with: a run's data, evaluations and model, on the devices."""

    cfg: Config
    source: data.Source
    parts: build_lib.Parts
    mesh: Mesh
    evaluators: Mapping[str, evals.Evaluator]


class Soup(NamedTuple):
    """An average of checkpoints.

    Attributes:
        arrays: the average.
        used: which of the ingredients it is of.
        each: what the evaluations measure of each ingredient; {} without evaluations.
        scores: what they measure of the soup.
    """

    arrays: Arrays
    used: Sequence[Ingredient]
    each: Mapping[str, Scores]
    scores: Scores


def find(refs: Sequence[str], ema: bool | None = None) -> list[Ingredient]:
    """Find the checkpoints "DIR", "DIR@STEP", "DIR@best", "DIR@latest" or "DIR@all" of runs.

    With `ema` the moving averages are taken; by default, if a run is ranked by them.

    Raises UserError: no such checkpoint, fewer than two, or checkpoints that cannot be averaged.
    """
    found = [each for ref in refs for each in _of_run(ref, ema)]
    names = [each.name for each in found]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise UserError(f"--from names {twice[0]} twice; leave one out")
    if len(found) < 2:
        raise UserError(
            f"a soup is of two checkpoints or more, not of {', '.join(names)} alone; add others, "
            "or take all of a run: --from=DIR@all"
        )
    for other in found[1:]:
        _check_same(found[0], other)
    return found


def _of_run(ref: str, ema: bool | None) -> Iterator[Ingredient]:
    match = re.fullmatch(rf"(?:ckpt:)?(.+?)(?:@(\d+|{reader.BEST}|{reader.LATEST}|{_ALL}))?", ref)
    if match is None:
        raise UserError(f"--from={ref!r} names no run; give DIR, DIR@STEP or DIR@all")
    place, which = match[1], match[2] or ""
    if which == _ALL:
        steps = steps_in(reader.find(place, reader.LATEST).path.parent)
    else:
        steps = [reader.find(place, which).step]
    for step in steps:
        saved = reader.find(place, str(step))
        described = trained.describe(f"ckpt:{place}@{step}", ema=ema)
        assert described.config is not None, "it is a run"
        yield Ingredient(place, saved, described.config, described.ema)


def _check_same(first: Ingredient, other: Ingredient) -> None:
    """Raise UserError unless two checkpoints hold the same network."""
    here, there = (config_json.to_json(each.cfg) for each in (first, other))
    lines = [line for line in config_json.changes(here, there) if line.startswith(_SAME)]
    names = [each.saved.manifest.metadata.get("class_names", []) for each in (first, other)]
    lines += ["other classes"] if names[0] != names[1] else []
    kinds = [
        {name: each.saved.manifest.leaves[of][:2] for name, of in each.leaves.items()}
        for each in (first, other)
    ]
    differing = [n for n in {**kinds[0], **kinds[1]} if kinds[0].get(n) != kinds[1].get(n)]
    lines += [] if lines else differing
    if lines:
        raise UserError(
            f"{other.name} is another model than {first.name} ({some(lines, 3)}); a soup is of "
            "checkpoints of one model"
        )
    if first.ema != other.ema:
        raise UserError(
            f"of {first.name} and {other.name} one is a moving average; add --ema or --noema"
        )
    for each in (first, other):
        if each.saved.manifest.metadata.get(BASE):
            raise UserError(
                f"{each.name} holds low-rank changes (lora), whose average is not that of the "
                "weights; take runs that train all of them"
            )


def told(ingredients: Sequence[Ingredient]) -> str:
    """Return a warning if the runs did not begin with the same weights, else ""."""

    def origin(each: Ingredient) -> str:
        trunk = each.cfg.optim.branch
        place = trunk.partition(":")[2].rpartition("@")[0] if trunk else each.place
        return each.cfg.init.weights or (place if "://" in place else str(Path(place).resolve()))

    origins = list(dict.fromkeys(map(origin, ingredients)))
    if len(origins) < 2:
        return ""
    return (
        f"warning: these runs did not begin with the same weights ({some(origins, 2)}); their "
        "average is seldom any good: train them from one checkpoint, by init.weights"
    )


def open_kitchen(first: Ingredient, *, measures: bool) -> Kitchen:
    """Open a run's data and build its model; without `measures` no evaluations.

    Raises UserError: the data is not here.
    """
    path, url = workdir.resolve(first.place)
    cfg = texts.settled(first.cfg, path, url)
    if not measures:
        cfg = dataclasses.replace(cfg, evals={})
    source = build_lib.open_train(cfg)
    cfg = build_lib.fitted(cfg, source)
    sources = build_lib.open_evals(cfg, source)
    mesh = sharding.make_mesh(MeshConfig())
    parts = build_lib.build(cfg, len(source))
    evaluators = build_lib.evaluators(cfg, sources, source, mesh, lambda: None)
    return Kitchen(cfg, source, parts, mesh, evaluators)


def needs_data(first: Ingredient) -> bool:
    """Return whether an average needs the run's data: for BatchNorm's statistics, for texts."""
    statistics = any(not name.startswith("params/") for name in first.leaves)
    return statistics or first.cfg.objective.embeds_texts


def cook(
    ingredients: Sequence[Ingredient],
    kitchen: Kitchen | None,
    *,
    greedy: str = "",
    say: Callable[[str], None] = print,
) -> Soup:
    """Average checkpoints, all or, by the metric that `greedy` names, a choice of them.

    Args:
        ingredients: from `find`.
        kitchen: from `open_kitchen`; None where nothing is measured.
        greedy: "val/top1"; "" averages all.
        say: is told what an ingredient measures, as soon as that is known.

    Raises UserError: no evaluation measures the metric, or no ingredient has a finite one.
    """
    measures = kitchen is not None and bool(kitchen.evaluators)
    if greedy:
        known = config_lib.metric_periods(ingredients[0].cfg) if measures else {}
        if greedy not in known:
            raise errors.unknown("metric of a greedy soup:", greedy, known)
    each: dict[str, Scores] = {}
    mixed = _Mix(kitchen)
    for ingredient in ingredients:
        arrays = _read(ingredient)
        if measures:
            assert kitchen is not None
            each[ingredient.name] = scores = measured(kitchen, arrays)
            say(f"{ingredient.name}: {shown(scores)}")
        if not greedy:
            mixed.add(arrays)
    used = ingredients
    if greedy:
        assert kitchen is not None
        used = _chosen(ingredients, kitchen, each, greedy, mixed, say)
    arrays = mixed.average()
    scores = measured(kitchen, arrays) if measures and kitchen is not None else {}
    return Soup(arrays, used, each, scores)


def _chosen(
    ingredients: Sequence[Ingredient],
    kitchen: Kitchen,
    each: Mapping[str, Scores],
    metric: str,
    mixed: "_Mix",
    say: Callable[[str], None],
) -> list[Ingredient]:
    """Mix the best ingredient with those that make it no worse; return them."""
    sign = 1 if resolved(metric, kitchen.cfg.checkpoint.mode) is Mode.MAX else -1
    name = metric.partition("/")[0].removesuffix("_ema")
    able = [i for i in ingredients if math.isfinite(each[i.name][metric])]
    if not able:
        raise UserError(f"no checkpoint has a finite {metric}")
    able.sort(key=lambda i: sign * each[i.name][metric], reverse=True)  # stable: equals as named
    used, best = [able[0]], each[able[0].name][metric]
    mixed.add(_read(able[0]))
    for ingredient in able[1:]:
        arrays = _read(ingredient)
        value = measured(kitchen, mixed.average(arrays), [name])[metric]
        kept = sign * value >= sign * best
        say(f"with {ingredient.name}: {metric} {value:.6g}, {'kept' if kept else 'left out'}")
        if kept:
            mixed.add(arrays)
            used.append(ingredient)
            best = value
    return used


class _Mix:
    """A running sum of checkpoints, in float64."""

    def __init__(self, kitchen: Kitchen | None) -> None:
        self._kitchen, self._count = kitchen, 0
        self._sum: Arrays = {}

    def add(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Add a checkpoint for good."""
        for name, array in arrays.items():
            if name in self._sum:
                self._sum[name] += array
            else:
                self._sum[name] = array.astype(np.float64)
        self._count += 1

    def average(self, more: Mapping[str, np.ndarray] | None = None) -> Arrays:
        """Return the average, as if `more` had been added, with BatchNorm's statistics of it."""
        count = self._count + (more is not None)
        more = more or {}
        found = {n: ((x + more.get(n, 0)) / count).astype(np.float32) for n, x in self._sum.items()}
        has_statistics = any(not name.startswith("params/") for name in found)
        if self._kitchen is None or not has_statistics:
            return found
        return _with_statistics(self._kitchen, found)


def _read(ingredient: Ingredient) -> Arrays:
    leaves = ingredient.leaves
    found = reader.load(ingredient.saved, leaves.values())
    return {name: found[of] for name, of in leaves.items()}


def _placed(kitchen: Kitchen, arrays: Arrays) -> dict[str, Any]:
    """Lay a soup's variables over the devices: {"params": ..., **model_state}."""
    state = build_lib.abstract_state(kitchen.parts, kitchen.mesh)
    abstract = {"params": state.params, **state.model_state}
    return sharding.place(trees.nest(arrays), abstract)


def measured(kitchen: Kitchen, arrays: Arrays, names: Sequence[str] = ()) -> Scores:
    """Run evaluations, by default all, on parameters; returns the metrics as "name/key".

    Of a run with a moving average they stand as "name_ema/key" besides: here both are the same.
    """
    found: Scores = {}
    with jax.set_mesh(kitchen.mesh):
        variables = _placed(kitchen, arrays)
        for name in names or kitchen.evaluators:
            of = kitchen.parts.objective.of_patch(kitchen.cfg.evals[name].patch)
            scores = kitchen.evaluators[name].run(of.predictors, variables, None, "")
            for suffix in ("", "_ema") if kitchen.cfg.ema_decay else ("",):
                found |= {f"{name}{suffix}/{key}": float(value) for key, value in scores.items()}
    return found


def _with_statistics(kitchen: Kitchen, arrays: Arrays) -> Arrays:
    """Measure BatchNorm's statistics anew: those of averaged weights are no average of them.

    On `_BATCHES` batches of the run's training stream, as a step measures them.
    """
    cfg, parts = kitchen.cfg, kitchen.parts
    if jax.tree.leaves((parts.frozen, parts.abstract.objective)):
        learns = f"{type(cfg.objective).__name__} needs more than the model"
        raise UserError(f"{learns} to measure BatchNorm's statistics anew, as a soup has to")
    objective = parts.objective

    @jax.jit
    def step(variables: Any, state: Any, batch: Any, i: jax.Array) -> Any:
        mix, rng = jax.random.split(jax.random.fold_in(jax.random.key(cfg.seed), i))
        ctx = Context(frozen=parts.frozen, model_state=state, ema=None, objective=None, step=i)
        return objective.loss(variables, ctx, objective.prepare(batch, mix), rng)[1].model_state

    with jax.set_mesh(kitchen.mesh):
        state = _placed(kitchen, arrays)
        params = state.pop("params")
        stream = device_batches(
            cfg.data, objective, kitchen.source, kitchen.mesh, seed=cfg.seed, start=0
        )
        for i, batch in zip(range(_BATCHES), stream, strict=False):
            state = step(params, state, batch, np.int32(i))
        stream.close()
    found = {name: np.asarray(leaf) for name, leaf in trees.named_leaves(state)}
    return {**arrays, **found}


def shown(scores: Mapping[str, float]) -> str:
    """Write metrics in one line."""
    return ", ".join(f"{name} {value:.6g}" for name, value in scores.items())


def write(soup: Soup, kitchen: Kitchen | None, folder: Path, how: str) -> None:
    """Write a workdir with one checkpoint, which every verb takes as a run.

    It is at the latest step of those that it is made of. A run with a moving average gets the same
    parameters as its average. `how` is "uniform", or the metric of a greedy soup.
    """
    first = soup.used[0]
    saved = first.saved.manifest.metadata
    cfg = dataclasses.replace(
        branch.alone(first.cfg, saved), init=InitConfig(weights=f"ckpt:{folder}")
    )
    history = {
        "how": how,
        "of": [each.name for each in soup.used],
        "each": trees.finite({name: dict(scores) for name, scores in soup.each.items()}),
        "ema": first.ema,
    }
    kept = {key: value for key, value in saved.items() if key != early_stop.KEY}
    described = {**kept, "config": config_json.to_json(cfg), HISTORY: history}
    of = trees.nest(soup.arrays)
    state: dict[str, Any] = {"params": of["params"]}
    if statistics := {key: value for key, value in of.items() if key != "params"}:
        state["model_state"] = statistics
    if cfg.ema_decay:
        state["ema"] = of
    with workdir.lock(folder):
        checkpoints = Checkpointer(folder / workdir.CHECKPOINTS, CheckpointConfig())
        step = max(each.saved.step for each in soup.used)
        finite = {name: x for name, x in soup.scores.items() if math.isfinite(x)}
        checkpoints.save(step, state, metadata=described, metrics=finite)
        checkpoints.wait()
        metadata.write(folder, described)
        if kitchen is not None:
            texts.keep(kitchen.source, folder)
