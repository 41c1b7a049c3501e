# SPDX-License-Identifier: Apache-2.0
"""A FlexiViT in training: draws, layouts, resume, evaluations by size, teachers, costs."""

import dataclasses
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from configs.vit_mu_digits import get_config
from tests.refusals import refused_by
from tests.unit.train.test_step import _batches, tiny
from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.cli import dry_run
from vit_jax.config.tree import Config
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.distill import Distillation, TeacherConfig
from vit_jax.evals import ClassifyEval
from vit_jax.models import patch_sizes
from vit_jax.objectives import MaeConfig, Supervised, SupervisedConfig, taught
from vit_jax.optim import OptimConfig
from vit_jax.sweeps import price
from vit_jax.train import build as build_lib
from vit_jax.train.loop import fit

SIDES = (4, 8, 16)
DRAWN = (4, 16)  # of the run that is trained, which is evaluated at all
FIELDS: dict[str, Any] = {
    "image_size": (32,),
    "channels": 1,
    "num_classes": 10,
    "patch": (8, 8),
    "base_patch": (8,),
    "base_grid": (4,),
    "drawn_patches": SIDES,
    "dim": 16,
    "depth": 1,
    "num_heads": 2,
    "mlp_dim": 32,
    "zero_head": False,
}


def config(**fields: Any) -> Config:
    cfg = get_config()
    cfg.model = models.variant("flexivit_s", **{**FIELDS, **fields})
    cfg.data.batch_size, cfg.duration = 16, "8 steps"
    cfg.optim = OptimConfig(lr=1e-3, weight_decay=0.1)
    cfg.log.every, cfg.log.tensorboard = "1 steps", False
    cfg.checkpoint = dataclasses.replace(cfg.checkpoint, every="4 steps", keep=9, keep_best=0)
    plain = cfg.evals["val"].transform
    cfg.evals = {
        f"p{side}": ClassifyEval(split="train[1293:]", transform=plain, patch=side)
        for side in SIDES
    }
    return cfg


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory):
    """Train a run with all that a step does; returns its workdir, result and traces by size."""
    traced: Counter[int] = Counter()
    loss = Supervised.loss

    def counted(self: Any, *args: Any) -> Any:
        traced[self.model.patch[0]] += 1
        return loss(self, *args)

    workdir = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Supervised, "loss", counted)
        result = fit(heavy(), workdir)
    return workdir, result, traced


def heavy() -> Config:
    cfg = config(remat=models.Remat.FULL, drop_path_rate=0.1, drawn_patches=DRAWN)
    cfg.accum_steps, cfg.ema_decay = 2, 0.9
    cfg.seed = 1  # which draws both before and after the checkpoint
    cfg.mesh = MeshConfig(data=2, fsdp=2, tensor=2)
    return cfg


def test_each_size_is_traced_once(whole: Any) -> None:
    _, result, traced = whole
    cfg = heavy()
    drawn = [DRAWN[patch_sizes.drawn(cfg.model, cfg.seed, step)] for step in range(8)]
    assert set(drawn) == set(DRAWN)
    once = traced[drawn[0]]
    assert traced == dict.fromkeys(DRAWN, once)
    assert result.step == 8


def test_a_run_continues_to_the_bit(whole: Any, tmp_path: Path) -> None:
    workdir, result, _ = whole
    shutil.copytree(workdir / "checkpoints" / "4", tmp_path / "run" / "checkpoints" / "4")
    again = fit(heavy(), tmp_path / "run")

    def data(leaf: Any) -> np.ndarray:
        key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if key else leaf)

    for a, b in zip(*map(jax.tree.leaves, (result.state, again.state)), strict=True):
        np.testing.assert_array_equal(data(a), data(b))
    assert again.metrics == result.metrics


def test_evaluations_see_their_size(whole: Any) -> None:
    metrics = whole[1].metrics
    for suffix in ("", "_ema"):
        losses = {metrics[f"p{side}{suffix}/loss"] for side in SIDES}
        assert len(losses) == len(SIDES)
        assert np.isfinite(list(losses)).all()


def steps(cfg: Config, devices: int, *of: int) -> dict[int, list[float]]:
    """Take two steps at some sizes, on a mesh; returns losses and norms of gradients."""
    mesh, found = sharding.make_mesh(cfg.mesh, jax.devices()[:devices]), {}
    parts = build_lib.build(cfg, num_examples=1000)
    first = build_lib.init_state(cfg, parts, mesh)
    with jax.set_mesh(mesh):
        each = build_lib.compile_steps(parts, mesh)
        for side, step in zip(patch_sizes.sides(cfg.model), each, strict=True):
            if side not in of:
                continue
            state, rows = jax.device_put(first, may_alias=False), []
            for batch in _batches(2):
                batch = sharding.global_batch(batch, mesh, batch_size=16)
                state, metrics = step(state, {}, batch)
                rows += [float(metrics["loss"]), float(metrics["grad_norm"])]
            found[side] = rows
    return found


def test_losses_do_not_depend_on_the_layout() -> None:
    cfg = tiny()
    fields = {"base_patch": (8,), "base_grid": (2,), "drawn_patches": (4, 8)}
    cfg.model = models.with_fields(cfg.model, {**fields, "depth": 1})
    one = steps(cfg, 1, 4, 8)
    assert abs(one[4][0] - one[8][0]) > 1e-4
    cfg.mesh = MeshConfig(data=2, fsdp=2, tensor=2)
    np.testing.assert_allclose(steps(cfg, 8, 4)[4], one[4], atol=1e-4, rtol=0)
    # At the kernel's own size it is the plain ViT, to the bit.
    cfg.model = models.with_fields(cfg.model, dict.fromkeys(fields, ()))
    cfg.mesh = MeshConfig()
    assert steps(cfg, 1, 0) == {0: one[8]}


def by_teacher(cfg: Config, **fields: Any) -> Config:
    teacher = models.with_fields(cfg.model, fields)
    by = TeacherConfig(
        kind=Distillation.KL, alpha=1.0, teacher=teacher, weights="ckpt:runs/teacher"
    )
    cfg.objective = taught(SupervisedConfig(), by)
    return cfg


def test_a_teacher_that_draws_has_the_students_size() -> None:
    for draws, sides in ((SIDES, SIDES), ((), (8, 8, 8))):
        cfg = by_teacher(config(), drawn_patches=draws, dim=32)
        config_lib.check(cfg)
        objective = build_lib.build(cfg, num_examples=1000).objective
        for side, theirs in zip(SIDES, sides, strict=True):
            found: Any = objective.of_patch(side)
            assert found.model.patch == (side, side)
            assert found.cfg.distill.teacher.patch == (theirs, theirs)
            assert found.frozen == objective.frozen


def test_costs_are_means_over_the_draws() -> None:
    cfg = config()
    each = [
        build_lib.build(config(drawn_patches=(), patch=(side,)), num_examples=1000)
        for side in SIDES
    ]
    costs = [build_lib.example_flops(parts) for parts in each]
    parts = build_lib.build(cfg, num_examples=1000)
    assert build_lib.example_flops(parts) == sum(costs) // 3
    report, missing = dry_run.dry_run(config())
    assert missing is None
    assert "means over model.drawn_patches" in report
    cfg.duration = "16 examples"
    found = price.price(cfg)
    assert found.flops == 16 * (sum(costs) // 3)
    assert found.tokens == 16 * round((64 + 16 + 4) / 3 + 1)
    memory = [
        dry_run.estimate_memory(config(), x, sharding.abstract_mesh(MeshConfig(), 1)).device_total
        for x in (parts, each[0])
    ]
    assert memory[0] == memory[1]  # that of the smallest patches


@pytest.mark.parametrize(
    "change, code, field",
    [
        (
            lambda cfg: by_teacher(cfg, drawn_patches=(4, 8)),
            "distill.config.check",
            "objective.distill.teacher.drawn_patches",
        ),
        (lambda cfg: setattr(cfg, "objective", MaeConfig()), "config.checks.patches_fit", ""),
        (lambda cfg: setattr(cfg.evals["p4"], "patch", 5), "models.base.grid", "evals.p4.patch"),
        (
            lambda cfg: setattr(cfg.model, "drawn_patches", (4, 5)),
            "models.base.grid",
            "model.drawn_patches",
        ),
    ],
)
def test_refusals(change: Any, code: str, field: str) -> None:
    cfg = config()
    change(cfg)
    cfg.model.num_classes *= cfg.objective.uses_labels
    cfg.evals = cfg.evals if cfg.objective.uses_labels else {}
    with refused_by(code, field):
        config_lib.check(cfg)
