# SPDX-License-Identifier: Apache-2.0
"""A run's config as JSON: written beside its checkpoints, read back, compared with a later one.

`load` reads a config from either kind of file, a config file in Python or a run's config.json.
"""

import dataclasses
import importlib.util
import inspect
import json
import re
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit_jax import evals, models, objectives
from vit_jax.config.tree import Config
from vit_jax.data.config import OLD_READING
from vit_jax.data.sources.partition import KINDS, with_rules
from vit_jax.errors import UserError
from vit_jax.evals import ClassifyEval, EvalConfig
from vit_jax.models import ModelConfig
from vit_jax.objectives import ObjectiveConfig, SupervisedConfig
from vit_jax.settings.fields import annotations, conformed, flatten, is_free, plain
from vit_jax.settings.names import nearest
from vit_jax.storage import foreign

if TYPE_CHECKING:
    from vit_jax.config.tree import Config


Tree = dict[str, Any]

# How runs read their data that were begun before these fields were there: they keep it. A name of
# a field below "data", and its value in a run that did not record it.
_BEFORE: Mapping[str, Any] = {
    "background": OLD_READING.background,
    "upright": OLD_READING.upright,
}

# A field of "data" whose absence says that a run was begun when the name of a dataset of one's own
# images had no rules yet: they are its rules 1.
_MARK = "strict"

# A field of each of these has a value of one of several classes, which are found by name.
_CLASSES: dict[type, Callable[[str], type]] = {
    ModelConfig: models.config_class,
    ObjectiveConfig: objectives.config_class,
    EvalConfig: evals.config_class,
}


def to_json(cfg: Config) -> Tree:
    """Return the config as plain JSON values, with the class of model and objective as "family"."""
    return plain(cfg)


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """List "field: old -> new" for fields that change what is computed, of two `to_json` trees.

    A field that the version which wrote `old` did not have was at its default.
    """
    old, new = upgraded(old), upgraded(new)
    was, after = flatten(old), flatten(new)
    for prefix in _other_families(was, after):  # one change, not one for each field
        was, after = (
            {k: v for k, v in tree.items() if not k.startswith(prefix) or k == f"{prefix}family"}
            for tree in (was, after)
        )
    defaults = _defaults(new)
    before = {**flatten(plain(defaults)), **was}
    if not after["faults.skip_spikes"]:  # then spikes are only logged
        before["faults.spike_sigmas"] = after["faults.spike_sigmas"]
    return [
        f"{key}: {before.get(key, 'absent')!r} -> {after.get(key, 'absent')!r}"
        for key in sorted(was.keys() | after.keys())
        if before.get(key) != after.get(key) and not is_free(defaults, key)
    ]


def _other_families(was: Tree, after: Tree) -> list[str]:
    """Return the prefixes, "model." and so on, below which two configs have different classes."""
    both = (was.keys() & after.keys()) - {"model.family"}
    keys = [key for key in both if key.endswith(".family") and was[key] != after[key]]
    return [key.removesuffix("family") for key in keys]


def _defaults(tree: Mapping[str, Any]) -> Config:
    """Return a config of the same classes with every field at its default."""

    def bare(node: Any) -> Any:
        if not isinstance(node, dict):
            return None
        inside = {key: bare(value) for key, value in node.items()}
        family = {"family": node["family"]} if "family" in node else {}
        return family | {key: value for key, value in inside.items() if value}

    return _build(Config, bare(tree), "")


def _as_it_was(data: Tree, evals: Mapping[str, Tree]) -> tuple[Tree, dict[str, Tree]]:
    """Add the old rules to names of a user's own images, which runs without a choice read by."""
    rules = f"{KINDS[0]}?rules=1"  # any name that has them

    def named(values: Tree, key: str) -> Tree:
        name = str(values.get(key, ""))
        return {**values, key: with_rules(name, rules)} if name else values

    return named(data, "name"), {name: named(values, "dataset") for name, values in evals.items()}


def upgraded(tree: Mapping[str, Any]) -> Tree:
    """Return a tree that an earlier version wrote as this version would write it."""
    tree = {**tree}
    objective = dict(tree.get("objective", {}))
    if "family" not in objective:  # objectives had one class, which had a teacher of kind "none"
        teacher = objective.pop("distill", {})
        if teacher.get("kind", "none") == "none":
            objective = {"family": SupervisedConfig.__name__, **objective}
        else:
            objective = {"family": "DistillConfig", **objective, "distill": teacher}
    tree["objective"] = objective
    tree["evals"] = {
        name: {"family": ClassifyEval.__name__, **values}
        for name, values in tree.get("evals", {}).items()
    }
    data = dict(tree.get("data", {}))
    if "mixup_alpha" in data:
        data["mix"] = {"mixup_alpha": data.pop("mixup_alpha"), **data.get("mix", {})}
    if _MARK not in data:
        data, tree["evals"] = _as_it_was(data, tree["evals"])
    return {**tree, "data": {**_BEFORE, _MARK: False, **data}}


def continued(cfg: Config, saved: Mapping[str, Any]) -> tuple[Config, list[str]]:
    """Let a continued run read its data as before some fields existed.

    Args:
        cfg: the config that is asked for now.
        saved: the `to_json` tree with which the run began; {} for a run that begins now.

    Returns:
        The config with those of the fields that `saved` lacks and that `cfg` leaves at their
        defaults, and "data.field=value" for each that is not the default. Names of datasets have
        the rules by which the run reads them.
    """
    if not saved:
        return cfg, []
    usual, lacking = type(cfg.data)(), _BEFORE.keys() - saved.get("data", {}).keys()
    kept = {
        name: _BEFORE[name]
        for name in sorted(lacking)
        if getattr(cfg.data, name) == getattr(usual, name) != _BEFORE[name]
    }
    before = upgraded(saved)
    if (name := with_rules(cfg.data.name, before["data"].get("name", ""))) != cfg.data.name:
        kept["name"] = name
    each = {}
    for key, own in cfg.evals.items():
        there = before["evals"].get(key, {}).get("dataset", "")
        each[key] = dataclasses.replace(own, dataset=with_rules(own.dataset, there or name))
    lines = [f"data.{k}={v}" for k, v in kept.items()]
    if not kept and each == cfg.evals:
        return cfg, []
    data = dataclasses.replace(cfg.data, **kept)
    return dataclasses.replace(cfg, data=data, evals=each), lines


def from_json(saved: Mapping[str, Any]) -> Config:
    """Rebuild a config from its `to_json` tree; fields that its writer did not have get defaults.

    Raises UserError: a field or choice that this version does not have, or no config at all.
    """
    try:
        return _build(Config, upgraded(saved), "")
    except UserError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(f"what was saved is no config of a run ({error})") from None


def _build(kind: Any, tree: Mapping[str, Any], path: str) -> Any:
    """Make a dataclass of `kind`, or of the class that the tree names, of a tree."""
    tree = dict(tree)
    if kind in _CLASSES:
        kind = _CLASSES[kind](str(tree.pop("family", None)))
    kinds, values = annotations(kind), {}
    for name, value in tree.items():
        if name not in kinds:
            raise UserError(
                f"the run was saved with a config field {path}{name} that this version does not "
                "have; use the version that trained it"
            )
        of, inner = kinds[name], f"{path}{name}."
        if dataclasses.is_dataclass(of):
            values[name] = _build(of, value, inner)
        elif typing.get_origin(of) is dict:
            each = typing.get_args(of)[1]
            values[name] = {k: _build(each, item, f"{inner}{k}.") for k, item in value.items()}
        else:
            values[name] = conformed(of, path + name, value)
    return kind(**values)


def load(path: Path, argument: str | None, words: Sequence[str] = ()) -> "Config":
    """Return what get_config() of a file returns, called with the argument where there is one.

    Without an argument, a file that has one is asked for get_config_for(given): the fields that the
    `words` of a command line set, as text by their paths, and its "workdir". One whose function has
    a parameter `run` is asked so with an argument, too. For a run's
    config.json, return the config with which the run was started.

    Raises UserError: whatever the file raises, or a get_config() that returns something else.
    """
    from vit_jax.config import check_types
    from vit_jax.config.tree import Config

    if path.suffix == ".json":
        return _load_json(path, argument)
    spec = importlib.util.spec_from_file_location("vit_jax_config", path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        asked = getattr(module, "get_config_for", None)
        if asked is not None and "run" in inspect.signature(asked).parameters:
            run = {} if argument is None else {"run": argument}
            base = asked(_given(words), **run)
        elif argument is not None:
            base = module.get_config(argument)
        elif asked is not None:
            base = asked(_given(words))
        else:
            base = module.get_config()
        if not isinstance(base, Config):
            raise UserError(f"{path}: get_config() must return a vit_jax.config.Config")
        check_types(base)
    except UserError:
        raise
    except Exception as error:  # whatever a user's own file does
        if argument and str(error).startswith("get_config() takes 0 positional arguments"):
            raise UserError(f"{path} takes no argument; drop ':{argument}'") from error
        text = str(error)
        unknown = re.search(r"(?:attribute|keyword argument) '(\w+)'", text)
        near = nearest(Config(), unknown[1]) if unknown else []
        if unknown and near:  # for what Python 3.14 adds, which knows only the group's own fields
            text = f"{text[: unknown.end()]}; did you mean {' or '.join(near)}?"
        raise UserError(f"{path} cannot be read: {type(error).__name__}: {text}") from error
    return base


def _given(words: Sequence[str]) -> dict[str, str]:
    """Return the fields that a command line sets, "--config.init.weights=REF", and its workdir."""
    found: dict[str, str] = {}
    before = ""
    for word in words:
        if before:  # "--workdir DIR"
            found[before], before = word, ""
        elif flag := re.fullmatch(r"--?(?:config\.([\w.]+)|(workdir))(?:=(.*))?", word, re.DOTALL):
            name = flag[1] or flag[2]
            if flag[3] is None:
                before = name
            else:
                found[name] = flag[3]
    return found


def _load_json(path: Path, argument: str | None) -> "Config":
    from vit_jax.config import check_types

    if argument is not None:
        raise UserError(f"{path} takes no argument; drop ':{argument}'")
    try:
        base = from_json(json.loads(foreign.read(path)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is no config.json of a run: {error}") from error
    check_types(base)
    return base
