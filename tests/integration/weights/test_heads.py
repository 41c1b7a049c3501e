# SPDX-License-Identifier: Apache-2.0
"""A run that starts from another one, or learns from it, goes by the names of its classes."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from configs.vit_mu_digits import get_config
from tests.refusals import refused_by
from tests.unit.weights.test_init import small
from vit_jax import trees
from vit_jax.config.tree import Config
from vit_jax.data import DataConfig
from vit_jax.devices import sharding
from vit_jax.distill import TeacherConfig
from vit_jax.errors import UserError
from vit_jax.objectives.distill import taught
from vit_jax.optim import OptimConfig, Optimizer
from vit_jax.train import build as build_lib
from vit_jax.train.initial_state import initial_state
from vit_jax.train.loop import fit
from vit_jax.weights.config import InitConfig

ORDER = (3, 0, 4, 1, 2)


def five(classes: tuple[int, ...] = (0, 1, 2, 3, 4)) -> Config:
    """Two steps on some digits, with a head whose rows differ from the start."""
    cfg = small(get_config())
    cfg.model.zero_head = False
    cfg.data = DataConfig(name="digits", train_split="train[:200]", batch_size=16, classes=classes)
    cfg.data.mean, cfg.data.std = get_config().data.mean, get_config().data.std
    cfg.model.num_classes = len(classes)
    return cfg


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    place = tmp_path_factory.mktemp("five") / "run"
    state = fit(five(), place).state
    assert state is not None
    return place, heads_of(state.params)


def heads_of(params: object) -> dict[str, np.ndarray]:
    leaves = trees.named_leaves(params)
    return {name: np.asarray(x) for name, x in leaves if name.startswith("head/")}


def start(cfg: Config) -> tuple[dict[str, np.ndarray], str]:
    mesh = sharding.make_mesh(cfg.mesh)
    with jax.set_mesh(mesh):
        names = build_lib.open_train(cfg).class_names
        parts = build_lib.build(cfg, 48)
        state, told = build_lib.init_state(cfg, parts, mesh), ""
        if cfg.init.weights:
            state, told = initial_state(cfg, parts, mesh, names)
    ema = heads_of(state.ema["params"])
    found = heads_of(state.params)
    for name, value in found.items():
        np.testing.assert_array_equal(ema[name], value)
    return found, told


def test_rows_move_with_their_names(source) -> None:
    place, old = source
    cfg = five(ORDER)
    cfg.init = InitConfig(weights=f"ckpt:{place}@latest")
    found, told = start(cfg)
    for name, value in old.items():
        np.testing.assert_array_equal(found[name], value[..., list(ORDER)])
    assert "head: 5 of 5 classes keep their rows by name" in told
    # One more and two fewer: the new one starts as it would have without weights.
    cfg = five((7, 2, 0, 1))
    fresh, _ = start(cfg)
    cfg.init = InitConfig(weights=f"ckpt:{place}@latest", new_head=True)
    found, told = start(cfg)
    for name, value in old.items():
        np.testing.assert_array_equal(found[name][..., 1:], value[..., [2, 0, 1]])
        np.testing.assert_array_equal(found[name][..., 0], fresh[name][..., 0])
    assert "3 of 4 classes keep their rows by name, 1 starts anew: '7'; dropped: '3', '4'" in told


def test_as_many_classes_of_other_names_are_no_head_to_start_from(source, tmp_path: Path) -> None:
    place, old = source
    cfg = five((9, 8, 7, 6, 5))
    cfg.init = InitConfig(weights=f"ckpt:{place}@latest")
    with refused_by("train.initial_state._plan", "init.weights") as caught:
        fit(cfg, tmp_path / "refused")
    assert "'0', '1', '2' and 2 more" in str(caught.value)
    cfg.init.new_head = True
    found, told = start(cfg)
    assert "started anew: params/head/bias, params/head/kernel" in told
    assert not np.array_equal(found["head/kernel"], old["head/kernel"])


def test_a_teacher_of_more_classes_in_another_order(source, tmp_path: Path, capsys) -> None:
    place, _ = source
    cfg = five((4, 0, 2))
    teacher = dataclasses.replace(cfg.model, num_classes=5)
    base = {"teacher": teacher, "weights": f"ckpt:{place}@latest", "alpha": 0.5}
    cfg.objective = taught(cfg.objective, TeacherConfig(**base))
    cfg.model.num_classes = 0  # the data's
    # A student that is the teacher agrees with it in every guess, if classes are paired by name.
    cfg.init = InitConfig(weights=f"ckpt:{place}@latest")
    cfg.optim = OptimConfig(name=Optimizer.SGD, lr=1e-9, momentum=0.0)
    cfg.log.every = "1 steps"
    fit(cfg, tmp_path / "run")
    said = capsys.readouterr().out
    assert "teacher: 3 of its 5 classes, by name" in said
    assert "head: 3 of 3 classes keep their rows by name; dropped: '1', '3'" in said
    rows = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert '"train/teacher_agreement": 1.0' in rows
    cfg = five((4, 7))
    cfg.objective = taught(cfg.objective, TeacherConfig(**base))
    with pytest.raises(UserError, match=r"does not know '7' of the student's 2 \('4', '7'\)"):
        fit(cfg, tmp_path / "refused")
