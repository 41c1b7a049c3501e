# SPDX-License-Identifier: Apache-2.0
"""A value of the wrong kind: one line, and the same one, from a config file and from Python."""

import dataclasses
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from configs import vit_mu_digits
from tests.refusals import refused_by
from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.cli.parsing import flags as cli_flags
from vit_jax.cli.train import main
from vit_jax.config.tree import Config
from vit_jax.evals import EvalConfig
from vit_jax.models.layers.pool import Pool
from vit_jax.objectives import DistillConfig
from vit_jax.optim import Schedule
from vit_jax.settings import fields

FILE = """
from configs import vit_mu_digits
from vit_jax.objectives import DistillConfig

def get_config():
    cfg = vit_mu_digits.get_config()
    {line}
    return cfg
"""
KIND = "settings.fields._wrong"
# What a file says; what refuses it, and the field.
WRONG = {
    "cfg.duration = 5": (KIND, "duration"),
    "cfg.optim.warmup = 500": (KIND, "optim.warmup"),
    "cfg.log.every = 10": (KIND, "log.every"),
    "cfg.evals['val'].every = 1": (KIND, "evals.val.every"),
    "cfg.data.batch_size = '64'": (KIND, "data.batch_size"),
    "cfg.optim.lr = '1e-3'": (KIND, "optim.lr"),
    "cfg.model.num_classes = '20'": (KIND, "model.num_classes"),
    "cfg.data.name = None": (KIND, "data.name"),
    "cfg.evals = None": (KIND, "evals"),
    "cfg.evals = {'val': 'val'}": (KIND, "evals.val"),
    "cfg.ema_decay = None": (KIND, "ema_decay"),
    "cfg.data.train_split = None": (KIND, "data.train_split"),
    "cfg.optim.lr_multipliers = {'^head': 10.0}": (KIND, "optim.lr_multipliers"),
    "cfg.seed = 'a'": (KIND, "seed"),
    "cfg.model.pool = 'gpa'": ("settings.fields._read_choice", "model.pool"),
    "cfg.model = 'vit_s16'": ("models.refuse_name", "model"),
    "cfg.model = 'vit_s166'": ("models.variant", ""),
    "cfg.model = None": (KIND, "model"),
    "cfg.optim = None": (KIND, "optim"),
    "cfg.objective = DistillConfig(); cfg.objective.distill.teacher = 'vit_s16'": (
        "models.refuse_name",
        "objective.distill.teacher",
    ),
}


@pytest.mark.parametrize("line", WRONG)
def test_a_config_file_and_python_are_told_the_same(
    line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cfg = vit_mu_digits.get_config()
    exec(line, {"cfg": cfg, "DistillConfig": DistillConfig})
    with refused_by(*WRONG[line]) as error:
        config_lib.check(cfg)

    (file := tmp_path / "wrong.py").write_text(FILE.format(line=line))
    assert main(["main.py", f"--config={file}", "--dry_run"]) == 2
    assert capfd.readouterr().err == f"error: {error.value}\n"
    # The flag of the same field is no way around it.
    assert main(["main.py", f"--config={file}", "--dry_run", "--config.seed=1"]) == 2
    assert capfd.readouterr().err == f"error: {error.value}\n"


# A value as Python has it, the same as a flag, and what both are read as.
SAME = {
    "model.image_size": (64, "64", (64,)),
    "model.patch": ([4, 4], "4,4", (4, 4)),
    "data.mean": (0.5, "0.5", (0.5,)),
    "data.std": ([1], "1", (1.0,)),
    "data.classes": (list(range(10)), "0,1,2,3,4,5,6,7,8,9", tuple(range(10))),
    "optim.lr": (1, "1", 1.0),
    "optim.lr_multipliers": ([["^head", 2]], "(('^head', 2),)", (("^head", 2.0),)),
    "init.skip": ("^head", "^head", ("^head",)),
    "data.transform.flip": (1, "1", True),
    "model.pool": ("GAP", "GAP", Pool.GAP),
    "optim.schedule": ("linear", "linear", Schedule.LINEAR),
}


@pytest.mark.parametrize("field", SAME)
def test_python_and_flags_take_the_same_values(field: str) -> None:
    value, text, read = SAME[field]
    argv = ["main.py", f"--config={vit_mu_digits.__file__}", f"--config.{field}={text}"]
    argv.append("--config.init.weights=npz:x.npz")  # which init.skip asks for
    flagged = cli_flags.read_config(argv)
    cfg = vit_mu_digits.get_config()
    cfg.init.weights = "npz:x.npz"
    group, _, name = field.rpartition(".")
    setattr(_at(cfg, group), name, value)
    config_lib.check(cfg)
    for found in (flagged, cfg):
        assert getattr(_at(found, group), name) == read
        assert type(getattr(_at(found, group), name)) is type(read)
    assert cfg == flagged


def _at(cfg: Config, path: str) -> Any:
    node: Any = cfg
    for part in path.split("."):
        node = getattr(node, part)
    return node


@pytest.mark.parametrize(
    "field, value", [("image_size", "a"), ("depth", 2.5), ("class_token", "no")]
)
def test_a_variant_of_a_wrong_value_is_named(field: str, value: Any) -> None:
    with refused_by("settings.fields._wrong", f"model.{field}"):
        models.variant("vit_s16", **{field: value})


# Numbers of any size: those that code checks together with others, and those that nothing limits.
ANY_NUMBER = {
    *("seed", "model.head_bias", "mesh.data", "mesh.fsdp", "mesh.tensor"),
    *("model.image_size", "model.patch", "model.token_merging", "model.layer_scale"),
    *("model.norm_eps", "model.group_norm_eps", "model.conv_eps", "model.locality_strength"),
    *("model.mlp_ratio", "model.group_min_ratio", "data.mean", "data.classes"),
}


def test_no_config_takes_a_field_that_it_does_not_have() -> None:
    """A config file assigns; a network is compiled once for equal configs, which have one hash."""

    def below(cls: type) -> Iterator[type]:
        yield cls
        kinds = (kind for each in fields.annotations(cls).values() for kind in _parts(each))
        for inner in [*kinds, *cls.__subclasses__()]:
            if dataclasses.is_dataclass(inner):
                yield from below(inner)

    # A class without slots, of which dataclasses makes another one, stays for a while.
    found = {c for c in below(Config) if getattr(sys.modules[c.__module__], c.__name__, None) is c}
    assert {DistillConfig, EvalConfig, models.ViTConfig} < found
    for cls in (cls for cls in found if cls.__module__.startswith("vit_jax.")):
        assert "__slots__" in vars(cls), cls
        assert cls.__hash__ or cls is Config, cls  # which has a dict


def _parts(kind: Any) -> tuple[Any, ...]:
    return (kind, *(part for inner in typing.get_args(kind) for part in _parts(inner)))


def test_every_number_has_a_range() -> None:
    """A new field must have one, or be listed; what an objective learns it checks itself."""
    unlimited: set[str] = set()

    def walk(cls: Any, path: str) -> None:
        kinds = fields.annotations(cls)
        for field in dataclasses.fields(cls):
            kind, name = kinds[field.name], f"{path}{field.name}"
            if dataclasses.is_dataclass(kind) and name != "objective":
                walk(kind, f"{name}.")
            elif {kind, *typing.get_args(kind)} & {int, float} and not field.metadata.get("bounds"):
                unlimited.add(name)

    walk(Config, "")
    for family in {type(cfg) for cfg in models.VARIANTS.values()}:
        walk(family, "model.")
    walk(EvalConfig, "evals.")
    assert unlimited == ANY_NUMBER
