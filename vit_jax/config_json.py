# SPDX-License-Identifier: Apache-2.0
"""A run's config as JSON: written beside its checkpoints, read back, compared with a later one."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from vit_jax import models, trees
from vit_jax.config import Config
from vit_jax.errors import UserError
from vit_jax.evals import EvalConfig
from vit_jax.fields import annotations, conformed, is_free
from vit_jax.objectives import Distillation


def to_json(cfg: Config) -> dict[str, Any]:
    """Return the config as plain JSON values, with the model's class name under model.family.

    A teacher is written likewise, and only where there is one.
    """
    tree = json.loads(json.dumps(dataclasses.asdict(cfg)))
    tree["model"] = {"family": type(cfg.model).__name__, **tree["model"]}
    distill = tree["objective"]["distill"]
    if cfg.objective.distill.kind is Distillation.NONE:
        tree["objective"]["distill"] = {"kind": distill["kind"]}
    else:
        family = type(cfg.objective.distill.teacher).__name__
        distill["teacher"] = {"family": family, **distill["teacher"]}
    return tree


# Fields that an older version wrote under another name.
_RENAMED = {"data.mixup_alpha": "data.mix.mixup_alpha"}


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """List "field: old -> new" for fields that change what is computed, of two `to_json` trees.

    A field that the version which wrote `old` did not have was at its default.
    """
    defaults = Config(model=models.from_json({"family": new["model"]["family"]}))
    was = {_RENAMED.get(key, key): value for key, value in flatten(old).items()}
    after = flatten(new)
    distill = "objective.distill."
    kinds = {tree.get(f"{distill}kind", "none") for tree in (was, after)}
    if Distillation.NONE in kinds:  # a teacher more or less is one change, not one a field
        was, after = (
            {k: v for k, v in tree.items() if not k.startswith(distill) or k == f"{distill}kind"}
            for tree in (was, after)
        )
    else:
        family = {"family": new["objective"]["distill"]["teacher"]["family"]}
        defaults.objective.distill.kind = Distillation(was[f"{distill}kind"])
        defaults.objective.distill.teacher = models.from_json(family)
    before = {**flatten(to_json(defaults)), **was}
    if not after["faults.skip_spikes"]:  # then spikes are only logged
        before["faults.spike_sigmas"] = after["faults.spike_sigmas"]
    return [
        f"{key}: {before.get(key, 'absent')!r} -> {after.get(key, 'absent')!r}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and not is_free(defaults, key)
    ]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return {"optim.lr": 0.001, ...} of a `to_json` tree."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def from_json(saved: Mapping[str, Any]) -> Config:
    """Rebuild a config from its `to_json` tree; fields that its writer did not have get defaults.

    Raises:
        UserError: a field or choice that this version does not have.
    """
    flat = {_RENAMED.get(key, key): value for key, value in flatten(saved).items()}
    tree = trees.nest({key.replace(".", "/"): value for key, value in flat.items()})
    cfg = Config(model=models.from_json(tree.pop("model")))
    for name, values in tree.pop("evals", {}).items():
        cfg.evals[name] = EvalConfig()
        _fill(cfg.evals[name], values, f"evals.{name}.")
    teacher = tree.get("objective", {}).get("distill", {}).pop("teacher", None)
    if teacher is not None:
        cfg.objective.distill.teacher = models.from_json(teacher)
    _fill(cfg, tree, "")
    return cfg


def _fill(node: Any, tree: Mapping[str, Any], path: str) -> None:
    kinds = annotations(type(node))
    for name, value in tree.items():
        if name not in kinds:
            raise UserError(
                f"the run was saved with a config field {path}{name} that this version does not "
                "have; use the version that trained it"
            )
        if dataclasses.is_dataclass(kinds[name]):
            _fill(getattr(node, name), value, f"{path}{name}.")
        else:
            setattr(node, name, conformed(kinds[name], path + name, value))
