# SPDX-License-Identifier: Apache-2.0
"""Read a checkpoint of another run, whole or in part, and change nothing there."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vit_jax import trees
from vit_jax.checkpoints import DIRECTORY, copies, manifest, storage
from vit_jax.checkpoints.config import ranked, steps_in
from vit_jax.checkpoints.failures import silence_orbax
from vit_jax.checkpoints.manifest import Damaged, Manifest
from vit_jax.errors import UserError, shown, unknown
from vit_jax.settings.measures import Mode, resolved
from vit_jax.storage import bucket as bucket_folder
from vit_jax.storage import foreign

BEST, LATEST = "best", "latest"


class Saved(NamedTuple):
    """One checkpoint: its place and its manifest."""

    path: Path
    step: int
    manifest: Manifest
    origin: str  # the directory of all of the run's checkpoints, or its address in a bucket


def find(directory: str | Path, which: str = "") -> Saved:
    """Return one checkpoint of a run, given its directory or that of its checkpoints.

    `which` is a step, "latest", "best" (by the run's `checkpoint.metric`), or "": the best if the
    run keeps the best and has measured it, else the latest.

    Raises UserError: no such checkpoint, or one that is damaged.
    """
    silence_orbax()
    url, fetch = bucket_folder.address(directory), None
    if url:
        directory, fetch = copies.readable(url)
    place = _checkpoints(Path(directory).expanduser().absolute(), url)
    steps = steps_in(place)
    if which.isdecimal():
        step = int(which)
        if step not in steps:
            there = ", ".join(map(str, steps))
            raise UserError(f"no checkpoint of step {step} in {place}; there: {there}")
    elif which == LATEST:
        step = steps[-1]
    else:
        step = _best(place, steps, must=which == BEST)
    path = place / str(step)
    if fetch is not None:
        fetch(step)
    try:
        return Saved(path, step, storage.read_manifest(path), url or str(place))
    except Damaged as damage:
        raise _unusable(path, damage) from None


def load(saved: Saved, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Read whole arrays by name to host memory and verify their digests.

    Every process of a run must call it.
    """

    def read() -> trees.PyTree:
        wanted = {}
        for name in names:
            dtype, shape, _ = saved.manifest.leaves[name]
            wanted[name] = storage.HostLeaf(tuple(shape), np.dtype(dtype))
        arrays = storage.load(saved.path, trees.nest(wanted), saved.manifest)
        manifest.verify(saved.manifest, arrays)
        return arrays

    try:
        return dict(trees.named_leaves(manifest.on_all_processes(read)))
    except Damaged as damage:
        raise _unusable(saved.path, damage) from None


def restore(saved: Saved, abstract: trees.PyTree) -> trees.PyTree:
    """Read the state of a checkpoint into its shardings, as `Checkpointer.restore` does.

    Raises UserError: it is damaged, or of another model or optimizer.
    """
    manifest.check_structure(saved.manifest, abstract, saved.path)
    try:
        state = manifest.on_all_processes(
            lambda: storage.load(saved.path, abstract, saved.manifest)
        )
        manifest.verify(saved.manifest, state)
    except Damaged as damage:
        raise _unusable(saved.path, damage) from None
    return state


def _checkpoints(directory: Path, url: str) -> Path:
    for place in (directory, directory / DIRECTORY):
        foreign.check_link(place)
    for place in (directory / DIRECTORY, directory):
        if place.is_dir() and steps_in(place):
            return place
    what = "has no finished checkpoint" if url or directory.is_dir() else "is no directory"
    raise UserError(f"{url or directory} {what}; name the workdir of a run")


def _best(place: Path, steps: list[int], *, must: bool) -> int:
    """Return the step that the run itself ranks best, by its newest readable settings."""
    metrics, settings = {}, {}
    for step in steps:
        try:
            found = storage.read_manifest(place / str(step))
        except Damaged:  # only the requested checkpoint must be intact
            continue
        metrics[step] = found.metrics
        settings = found.metadata.get("config", {}).get("checkpoint", {})
    metric, mode = settings.get("metric", ""), settings.get("mode", Mode.MAX)
    if mode not in tuple(Mode):
        raise unknown(f"checkpoint.mode in {place}:", shown(str(mode)[:80]), Mode)
    if mode == Mode.MAX:  # the default of earlier versions, whatever the metric was
        mode = resolved(metric, Mode.AUTO)
    best = ranked(metrics, metric, Mode(mode)) if must or settings.get("keep_best") else []
    if must and not best:
        raise UserError(f"no checkpoint in {place} has the metric {metric!r}; name a step")
    return best[0] if best else steps[-1]


def _unusable(path: Path, damage: Damaged) -> UserError:
    others = (step for step in steps_in(path.parent) if step != int(path.name))
    rest = ", ".join(map(str, others)) or "none"
    return UserError(f"checkpoint {path} is unusable: {damage}; other steps there: {rest}")
