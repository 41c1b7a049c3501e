# SPDX-License-Identifier: Apache-2.0
"""The state of step 0 with the weights of `init`."""

import dataclasses
import functools
import zlib
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from vit_jax import objectives, trees, weights
from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config
from vit_jax.data import classes
from vit_jax.errors import UserError, setting
from vit_jax.models import ModelConfig
from vit_jax.objectives.base import own
from vit_jax.train import build as build_lib
from vit_jax.train.health import peers
from vit_jax.train.state import TrainState
from vit_jax.trees import PyTree
from vit_jax.weights import heads
from vit_jax.weights.apply import OtherHead
from vit_jax.weights.config import CHECKPOINT, InitConfig, split
from vit_jax.weights.heads import Move
from vit_jax.weights.layout import Own
from vit_jax.weights.readers.ckpt import Checkpoint


def check(cfg: Config, class_names: Sequence[str] = ()) -> None:
    """Raise UserError if `init.weights` are missing, or by names and shapes do not fit.

    Without the `class_names` of the data, which are not open yet, a head of other classes passes.
    """
    init, model, _ = _plan(cfg.init, cfg.model, class_names)
    _read(init, model, _own_of_pair(cfg), only_check=True)


def _own_of_pair(cfg: Config) -> Own | None:
    """Return what weights of two towers may have beside the model; None for all other runs."""
    if not cfg.objective.embeds_texts:
        return None
    objective = objectives.create(cfg.objective, cfg.model, cfg.data)
    params, _ = jax.eval_shape(objective.init, jax.eval_shape(lambda: jax.random.key(0)))
    return own(objective, params)


def _plan(
    init: InitConfig, model: ModelConfig, class_names: Sequence[str]
) -> tuple[InitConfig, ModelConfig, Move | None]:
    """Return what to read, into a model of which classes, and where the rows of its head go.

    No rows are moved of a head that is not read, or begun anew.

    Raises UserError: the weights have as many classes, and all of them are others.
    """
    if not model.num_classes or heads.skipped(model, init.skip):
        return init, model, None
    found = heads.move(init.weights, class_names, ema=init.ema)
    if not found.there:
        return init, model, found
    theirs = dataclasses.replace(model, num_classes=len(found.there))
    if not class_names:
        return init, theirs, None
    if len(found.new) < len(class_names):
        return init, theirs, found
    if len(found.there) != len(class_names):  # as its shapes will tell
        return init, model, None
    if init.new_head:
        return dataclasses.replace(init, skip=(*init.skip, "^head")), model, None
    skip = setting("config.init.skip=\"('^head',)\"")
    raise UserError(
        f"init.weights: {init.weights} has a head for {classes.shown(found.there)}, none of which "
        f"is a class here ({classes.shown(found.names)}); start the head anew: "
        f"{setting('config.init.new_head=true')}, or {skip}",
        field="init.weights",
    )


def _read(
    init: InitConfig, model: ModelConfig, own: Own | None = None, *, only_check: bool = False
) -> Mapping[str, np.ndarray]:
    read = functools.partial(
        weights.read,
        init.weights,
        model,
        resize=init.resize,
        ema=init.ema,
        headless=True,  # a missing head is initialised, and the message names it
        only_check=only_check,
        own=own,
    )
    if not init.new_head:
        return read(field="init.weights", skip=init.skip)
    try:
        return read(skip=init.skip)
    except OtherHead as error:
        return read(field="init.weights", skip=(*init.skip, *error.patterns))
    except UserError:
        return read(field="init.weights", skip=init.skip)  # which raises it with advice


def initial_state(
    cfg: Config, parts: build_lib.Parts, mesh: Mesh, class_names: Sequence[str] = ()
) -> tuple[TrainState, str]:
    """Make the state of step 0, each leaf in its sharding; returns it and lines to print.

    Parameters in `init.skip`, and a head that the file lacks, are initialised from the run's seed,
    as are the rows of a head for those of the data's `class_names` that the weights lack; without
    those rows keep their place. The moving average starts at the loaded parameters.

    Raises UserError: weights that are not there, are damaged, or do not fit.
    """
    # Read all on the host first, so that an error comes before a device is filled.
    init, model, move = cfg.init, cfg.model, None
    if class_names:
        init, model, move = _plan(init, model, class_names)
    values = _read(
        init, model, own(parts.objective, parts.abstract.params, parts.abstract.model_state)
    )
    head = ""
    if move and heads.leaves(cfg.model).keys() & values.keys():
        head = heads.told(cfg.init.weights, move)
        if not move.stays:
            values = heads.moved(values, cfg.model, move, lambda names: _fresh(cfg, parts, names))
    peers.agree_on_weights("weights to start from", _digest(values))
    state = build_lib.init_state(cfg, parts, mesh)
    variables = {"params": state.params, **state.model_state}
    rest = [name for name, _ in trees.named_leaves(variables) if name not in values]
    state = dataclasses.replace(
        state,
        params=_filled(state.params, values, "params/"),
        model_state=_filled(state.model_state, values, ""),
        ema=_filled(state.ema, values, ""),
    )
    anew = f"; started anew: {', '.join(rest)}" if rest else ""
    told = f"starting from {len(values)} arrays of {cfg.init.weights}{anew}"
    lines = (told, head, _other_normalisation(cfg))
    return state, "\n".join(line for line in lines if line)


def _fresh(cfg: Config, parts: build_lib.Parts, names: set[str]) -> dict[str, np.ndarray]:
    """Return some parameters as the run would have them without weights, computing no others."""

    @jax.jit
    def values(seed: jax.Array) -> dict[str, jax.Array]:
        state = parts.init(jax.random.key(seed))
        leaves = trees.named_leaves({"params": state.params, **state.model_state})
        return {name: leaf for name, leaf in leaves if name in names}

    found = values(np.asarray(cfg.seed))
    return {name: np.asarray(value) for name, value in found.items()}


def _other_normalisation(cfg: Config) -> str:
    """Return a warning if the weights are of images normalised otherwise."""
    # Late: a run that starts from random parameters needs nothing of what is published.
    from vit_jax.weights.published.describe import preprocessing
    from vit_jax.weights.published.table import GUESS, per_channel

    ref, data = cfg.init.weights, cfg.data
    if split(ref)[0] == CHECKPOINT:
        theirs = config_json.from_json(Checkpoint(split(ref)[1]).metadata["config"]).data
        if theirs.bands != data.bands:  # a mean of other things
            return ""
        mean, std, source = theirs.mean, theirs.std, "that run"
    elif data.bands:  # which are no pictures
        return ""
    else:
        found = preprocessing(ref, cfg.model)
        mean, std, source = found.mean, found.std, found.source
        if source.startswith(GUESS):
            return ""
    channels = cfg.model.channels
    mean, std = (per_channel(values, cfg.model) for values in (mean, std))
    same = [
        np.allclose(np.broadcast_to(own, channels), np.broadcast_to(other, channels), atol=1e-3)
        for own, other in ((data.mean, mean), (data.std, std))
    ]
    if all(same):
        return ""
    values = (",".join(f"{x:.6g}" for x in each) for each in (mean, std))
    flags = " and ".join(map(setting, map("config.data.{}={}".format, ("mean", "std"), values)))
    return f"warning: {ref} is of images normalised otherwise, by {source}; set {flags}"


def _digest(values: Mapping[str, np.ndarray]) -> str:
    """Return a checksum of named arrays; "" for a run of one process, which has no peers."""
    if jax.process_count() == 1:
        return ""
    total = 0
    for name in sorted(values):
        total = zlib.crc32(values[name].tobytes(), zlib.crc32(name.encode(), total))
    return f"{total:08x}"


def _filled(tree: PyTree, values: Mapping[str, np.ndarray], prefix: str) -> PyTree:
    """Replace the leaves in `values` one at a time, so that no device holds all of them twice."""

    def replaced(name: str, leaf: jax.Array) -> jax.Array:
        value = values.get(prefix + name)
        if value is None:
            return leaf
        shape, sharding, dtype = leaf.shape, leaf.sharding, leaf.dtype
        leaf.delete()
        # Every process has the whole value and places the shards of its own devices.
        return jax.make_array_from_callback(shape, sharding, lambda at: value[at].astype(dtype))

    return trees.map_named(replaced, tree)
