# SPDX-License-Identifier: Apache-2.0
"""Prune a run: score heads and MLP units on its training images, and cut out the lowest."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from vit_jax import data, models, objectives
from vit_jax.config.tree import Config
from vit_jax.data import Sample
from vit_jax.errors import UserError
from vit_jax.evals.passes import HOST_ONLY, watched
from vit_jax.evals.probes.features import split_batches
from vit_jax.inference.trained import Trained
from vit_jax.models import pruning
from vit_jax.models.pruning import Shares
from vit_jax.objectives import Objective


class Pruned(NamedTuple):
    """A smaller model.

    Attributes:
        model: its config.
        variables: {"params": ..., **model_state}.
        kept: for each layer with heads or units, by its name, which of the old ones it has.
        scored: the images that decided, in words; "" where nothing had to be decided.
    """

    model: Any
    variables: Mapping[str, Any]
    kept: Mapping[str, np.ndarray]
    scored: str


def check(found: Trained) -> Config:
    """Return the config of the run that a model is of.

    Raises UserError: a model that cannot be pruned, as it is or by this run's loss.
    """
    cfg = found.config
    if cfg is None:
        advice = "train from it first, by init.weights, and prune that run"
        raise UserError(f"{found.ref} is no run, whose loss and images say what matters; {advice}")
    pruning.check(found.model)
    objective, family = _objective(found, cfg), type(cfg.objective).__name__
    if objective.own_parameters or not cfg.objective.scores_images:
        advice = "fine-tune it on labels, and prune that run"
        raise UserError(
            f"{found.ref} learns by {family}, which needs more than the model; {advice}"
        )
    return cfg


def _objective(found: Trained, cfg: Config) -> Objective:
    reading = dataclasses.replace(cfg.data, mean=found.mean, std=found.std)
    return objectives.create(cfg.objective, found.model, reading)


def scores(
    trained: Trained, *, examples: int, seed: int, batch_size: int
) -> tuple[dict[str, np.ndarray], str]:
    """Score every head and MLP unit by `pruning.taylor`, the mean over some training images.

    The loss is the one that evaluations report, without augmentation.

    Args:
        trained: a run that `check` accepts, with its weights.
        examples: how many images, drawn by `seed` without repetition; at most all.
        seed: see above.
        batch_size: images read at once.

    Returns:
        The scores in the shapes of `pruning.open_gates`, and the images in words.
    """
    cfg = check(trained)
    objective, reading = _objective(trained, cfg), cfg.data
    split = reading.train_split
    how = {"classes": reading.classes, "bands": reading.bands}
    source = data.open_source(reading.name, reading.data_dir, split, **how)
    count = min(examples, len(source))
    chosen = np.random.default_rng(seed).choice(len(source), count, replace=False)
    sample = Sample(source, np.sort(chosen).astype(np.int32))
    params = jax.device_put(trained.variables["params"])
    state = {key: value for key, value in trained.variables.items() if key != "params"}
    gates = pruning.open_gates(params, trained.model)

    @jax.jit
    def score(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        def loss(params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
            return objective.example_losses({"params": params, **state}, batch)

        return pruning.taylor(loss, params, gates, batch)

    shape = models.input_shape(trained.model)
    patch = models.native_patch(trained.model)
    start = split_batches(sample, trained.transform, shape, trained.reading, patch=patch)
    batches = watched(start, count, source.name)
    total: dict[str, np.ndarray] = {}
    with contextlib.closing(batches(min(batch_size, count))) as stream:
        for batch in stream:
            found = score(params, {k: v for k, v in batch.items() if k not in HOST_ONLY})
            for name, each in found.items():
                total[name] = total.get(name, 0) + np.asarray(each, np.float64)
    bad = [name for name, value in total.items() if not np.isfinite(value).all()]
    if bad:
        raise UserError(f"{trained.ref}: the scores of {bad[0]} are not finite")
    words = f"{count:,} of {len(source):,} images of {source.name}"
    return {name: value / count for name, value in total.items()}, words


def prune(
    trained: Trained, shares: Shares, *, examples: int = 512, seed: int = 0, batch_size: int = 64
) -> Pruned:
    """Remove the heads and MLP units of the lowest scores, of each layer as large a share.

    Args:
        trained: a run, with its weights.
        shares: of heads and of MLP units.
        examples, seed, batch_size: as in `scores`.

    Raises UserError: what `check` and `pruning.pruned` refuse.
    """
    check(trained)
    small = pruning.pruned(trained.model, shares)
    if small == trained.model:
        return Pruned(small, trained.variables, {}, "")
    found, scored = scores(trained, examples=examples, seed=seed, batch_size=batch_size)
    kept = pruning.keep(found, trained.model, small)
    params = pruning.cut(trained.variables["params"], kept, trained.model)
    return Pruned(small, {**trained.variables, "params": params}, kept, scored)
