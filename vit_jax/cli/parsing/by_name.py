# SPDX-License-Identifier: Apache-2.0
"""Flags that set a group of fields by name: a model, a transform, an evaluation."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from vit_jax import errors, models
from vit_jax.config.tree import Config
from vit_jax.data import TransformConfig
from vit_jax.evals import EVALUATORS, EvalConfig
from vit_jax.models import ModelConfig
from vit_jax.recipes import transform
from vit_jax.settings.names import value_at

# What a model keeps of the one before it: the classes, the images, how it computes.
_KEPT = ("num_classes", "channels", "image_size", "dtype")
_NONE = "none"
_KINDS = {kind.__name__.removesuffix("Eval").lower(): kind for kind in EVALUATORS}


def set_groups(cfg: Config, words: Sequence[str]) -> list[str]:
    """Set the groups that flags name, in their order, and return the other words.

    --config.model=vit_s16 keeps the classes, image size and dtype of the model before, unless the
    name has a size of its own (vit_s16_384); --config.data.transform=inception;
    --config.evals.mine=knn adds an evaluation, or makes one that is there of that kind, and
    --config.evals.mine=none drops it. Flags for their fields act on what is set here.

    Raises UserError: an unknown name, with the valid ones.
    """
    rest = []
    for word in words:
        flag = re.fullmatch(r"--?config\.([\w.]+)=(.*)", word, re.DOTALL)
        if flag is None or not _set(cfg, flag[1], flag[2]):
            rest.append(word)
    return rest


def _set(cfg: Config, path: str, name: str) -> bool:
    """Set the group at a dotted path; returns False where the path is none that takes a name."""
    above, _, field = path.rpartition(".")
    parent, group = (value_at(cfg, above) if above else cfg), value_at(cfg, path)
    if above == "evals":
        _set_evaluation(cfg.evals, field, name)
    elif isinstance(group, ModelConfig):
        setattr(parent, field, _model(group, name))
    elif isinstance(group, TransformConfig):
        setattr(parent, field, transform(name, f"--config.{path}"))
    else:
        return False
    return True


def _model(before: ModelConfig, name: str) -> ModelConfig:
    model = models.variant(name)
    sized = re.search(r"_\d{2,4}$", name) is not None
    kept = {
        field: getattr(before, field)
        for field in _KEPT
        if hasattr(before, field) and hasattr(model, field)
    }
    if sized:
        kept.pop("image_size", None)
    return models.with_fields(model, kept, name)


def _set_evaluation(evals: dict[str, EvalConfig], name: str, kind: str) -> None:
    """Drop an evaluation, or make it one of a kind; a new one begins as the first that is there."""
    if kind == _NONE:
        if name not in evals:
            raise errors.unknown(f"evaluation to drop, --config.evals.{name}:", name, evals)
        del evals[name]
        return
    if kind not in _KINDS:
        raise errors.unknown(f"--config.evals.{name}", kind, [*_KINDS, _NONE])
    before: Any = evals.get(name) or next(iter(evals.values()), EvalConfig())
    own = {field.name for field in dataclasses.fields(_KINDS[kind])}
    same = {f.name: getattr(before, f.name) for f in dataclasses.fields(before) if f.name in own}
    same["transform"] = dataclasses.replace(before.transform)
    evals[name] = _KINDS[kind](**same)
