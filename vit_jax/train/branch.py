# SPDX-License-Identifier: Apache-2.0
"""A branch: a run that leaves another one, its trunk, at a checkpoint, and cools down.

One run at a constant rate so gives models of several lengths, each for the price of its cooldown
(Haegele et al. 2024, arXiv 2405.18392). `optim.branch` names the trunk and the step.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from vit_jax import config as config_lib
from vit_jax import optim
from vit_jax.checkpoints.checkpointer import Restored
from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config
from vit_jax.errors import UserError
from vit_jax.settings.fields import flatten
from vit_jax.train import data_identity, early_stop
from vit_jax.train.metadata import TRUNK
from vit_jax.trees import PyTree

if TYPE_CHECKING:
    from vit_jax.checkpoints.reader import Saved

# What a branch sets itself, besides what any continued run may change.
_OWN = ("duration", "optim.branch", "optim.cooldown", "optim.cooldown_shape", "optim.min_lr")


def metadata(cfg: Config) -> dict[str, Any]:
    """Return what a branch that begins continues: its trunk's metadata; {} for another run.

    In its config are the branch's own settings, and under `TRUNK` stands which run it is.

    Raises UserError: no such checkpoint, or one from where no branch can cool down.
    """
    if not cfg.optim.branch:
        return {}
    for field in ("optim.weight_decay_end", "ema_decay_end"):
        if flatten(config_json.to_json(cfg))[field]:
            why = "goes by the length of the run, which a branch changes"
            raise UserError(f"{field} {why}; set {field}=0, in the trunk too", field=field)
    found = _find(cfg).manifest.metadata
    _check_rate(cfg, found)
    settings = {**found["config"], "optim": dict(found["config"]["optim"])}
    here = config_json.to_json(cfg)
    for field in _OWN:
        group, _, name = field.rpartition(".")
        (settings[group] if group else settings)[name] = (here[group] if group else here)[name]
    # What ends a run early begins anew: the trunk's best checkpoint is none of the branch's.
    kept = {key: value for key, value in found.items() if key != early_stop.KEY}
    return {**kept, "config": settings, TRUNK: cfg.optim.branch.partition(":")[2]}


def restored(cfg: Config, abstract: PyTree) -> Restored | None:
    """Restore the trunk's state where a branch leaves it; None for a run that is none.

    `abstract` is as of `Checkpointer.restore`. The state holds the step, by which data and random
    numbers go on as in the trunk.

    Raises UserError: the checkpoint is damaged, or of another model or optimizer.
    """
    if not cfg.optim.branch:
        return None
    from vit_jax.checkpoints import reader  # late: most runs leave no trunk

    saved = _find(cfg)
    state = reader.restore(saved, abstract)
    if jax.process_index() == 0:
        print(f"branching off from {saved.path}", flush=True)
    return Restored(state, saved.step, metadata(cfg))


def alone(cfg: Config, saved: Mapping[str, Any]) -> Config:
    """Return a branch's config as that of one run with the same cooldown; another's as it is.

    `saved` is the metadata of one of its checkpoints.
    """
    length = saved.get(data_identity.KEY, {}).get("train", {}).get("examples")
    if not cfg.optim.branch or not length:
        return cfg
    steps = config_lib.plan(cfg, length).total_steps - optim.trunk(cfg.optim)[1]
    rest = dataclasses.replace(cfg.optim, branch="", cooldown=f"{steps} steps")
    return dataclasses.replace(cfg, optim=rest)


def _find(cfg: Config) -> "Saved":
    from vit_jax.checkpoints import reader  # late, as above

    place, step = optim.trunk(cfg.optim)
    try:
        return reader.find(place if "://" in place else Path(place), str(step))
    except UserError as error:
        refusal = UserError(f"optim.branch: {error}", field="optim.branch")
        refusal.status = error.status
        raise refusal from None


def _check_rate(cfg: Config, found: Mapping[str, Any]) -> None:
    """Raise UserError unless the trunk's rate is constant where the branch leaves it."""
    trunk = config_json.from_json(found["config"])
    place, step = optim.trunk(cfg.optim)
    if trunk.optim.branch:
        raise UserError(
            f"optim.branch: {place} is a branch itself, of {trunk.optim.branch}; leave that one",
            field="optim.branch",
        )
    length = found.get(data_identity.KEY, {}).get("train", {}).get("examples")
    if not trunk.optim.cooldown or not length:
        return
    plan = config_lib.plan(trunk, length)
    begins = plan.total_steps - plan.clock.steps(trunk.optim.cooldown)
    if step > begins:
        raise UserError(
            f"optim.branch: {place} cools down itself from step {begins:,} on; leave it at a "
            f"checkpoint before step {step:,}",
            field="optim.branch",
        )
