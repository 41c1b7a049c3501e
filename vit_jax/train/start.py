# SPDX-License-Identifier: Apache-2.0
"""The state that a run starts from where it has none to continue: random, or weights of `init`."""

import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from vit_jax import config_json, trees, weights
from vit_jax.config import Config
from vit_jax.models import ModelConfig
from vit_jax.train import build as build_lib
from vit_jax.train import identity, metadata, peers
from vit_jax.train.state import TrainState
from vit_jax.weights.config import InitConfig

PyTree = Any


def check(init: InitConfig, model: ModelConfig) -> None:
    """Compare every key and shape of `init.weights` with the model's, reading no array.

    Raises:
        UserError: weights that are not there or do not fit.
    """
    _read(init, model, only_check=True)


def _read(
    init: InitConfig, model: ModelConfig, *, only_check: bool = False
) -> Mapping[str, np.ndarray]:
    return weights.read(
        init.weights,
        model,
        field="init.weights",
        skip=init.skip,
        resize=init.resize,
        ema=init.ema,
        headless=True,  # a head starts anew where the file has none, and the start says so
        only_check=only_check,
    )


def check_unchanged(
    cfg: Config,
    saved: Mapping[str, Any],
    class_names: Sequence[str],
    splits: Mapping[str, Any],
    place: Path,
    *,
    allow_config_change: bool,
    allow_data_change: bool,
) -> dict[str, float]:
    """Compare a run's config and data with those of its checkpoint.

    Returns:
        what was changed on purpose, as metrics of the step where the run goes on.

    Raises:
        UserError: they differ, and no flag allows it.
    """
    if not saved:
        return {}
    settings = config_json.changes(saved["config"], config_json.to_json(cfg))
    moved = identity.moved(saved, splits)
    settings = [line for line in settings if line.partition(": ")[0] not in moved]
    if not allow_config_change:
        metadata.check_unchanged(settings, place)
    files = identity.changes(saved, class_names, splits)
    if not allow_data_change:
        identity.check_unchanged(files, place)
    found = {"run/config_changed": settings, "run/data_changed": files}
    return {name: float(len(lines)) for name, lines in found.items() if lines}


def initial_state(cfg: Config, parts: build_lib.Parts, mesh: Mesh) -> tuple[TrainState, str]:
    """Make the state of step 0, each leaf in its sharding; returns it and a line to print.

    Parameters that `init.skip` leaves out, and a head that the file lacks, have the values that the
    run's seed gives them. Optimizer state is that of step 0, and the moving average begins at the
    loaded parameters.

    Raises:
        UserError: weights that are not there, are damaged, or do not fit.
    """
    if not cfg.init.weights:
        return build_lib.init_state(cfg, parts, mesh), ""
    # All on the host first: what does not fit is known before a device is filled.
    values = _read(cfg.init, cfg.model)
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
    return state, f"starting from {len(values)} arrays of {cfg.init.weights}{anew}"


def place(variables: PyTree, abstract: PyTree) -> PyTree:
    """Put variables of the host into the shardings of `abstract`; each process has them whole."""

    def put(leaf: jax.ShapeDtypeStruct, value: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(
            leaf.shape, leaf.sharding, lambda at: value[at].astype(leaf.dtype)
        )

    return jax.tree.map(put, abstract, variables)


def _digest(values: Mapping[str, np.ndarray]) -> str:
    """Return a checksum of named arrays; "" for a run of one process, which has no peer."""
    if jax.process_count() == 1:
        return ""
    total = 0
    for name in sorted(values):
        total = zlib.crc32(values[name].tobytes(), zlib.crc32(name.encode(), total))
    return f"{total:08x}"


def _filled(tree: PyTree, values: Mapping[str, np.ndarray], prefix: str) -> PyTree:
    """Replace the leaves that `values` has, one at a time: no device holds all of them twice."""

    def replaced(name: str, leaf: jax.Array) -> jax.Array:
        value = values.get(prefix + name)
        if value is None:
            return leaf
        shape, sharding, dtype = leaf.shape, leaf.sharding, leaf.dtype
        leaf.delete()
        # Every process has the whole value, and gives its devices their parts.
        return jax.make_array_from_callback(shape, sharding, lambda at: value[at].astype(dtype))

    return trees.map_named(replaced, tree)
