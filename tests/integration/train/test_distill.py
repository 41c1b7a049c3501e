# SPDX-License-Identifier: Apache-2.0
"""Distilled runs: on any layout, continued, checked before they start; a dry run of them."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.refusals import refused_by
from tests.unit.train import teachers
from tests.unit.train.distilled_digits import TEACHER, get_config
from vit_jax import models, trees
from vit_jax.cli.dry_run import dry_run
from vit_jax.config.tree import Config
from vit_jax.cost.flops import count
from vit_jax.data import MixConfig
from vit_jax.devices import sharding
from vit_jax.distill import Distillation
from vit_jax.distill import teacher as teacher_lib
from vit_jax.errors import UserError
from vit_jax.objectives import SupervisedConfig, create
from vit_jax.train import build as build_lib
from vit_jax.train.loop import fit


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return teachers.save(tmp_path_factory.mktemp("teacher"), TEACHER)


def config(weights: str, **distill: Any) -> Config:
    cfg = get_config()
    cfg.objective.distill = dataclasses.replace(
        cfg.objective.distill, weights=weights, **{"kind": Distillation.KL, **distill}
    )
    # Masks of dropout are drawn for each micro-batch.
    cfg.model = dataclasses.replace(cfg.model, dropout_rate=0.0, drop_path_rate=0.0)
    cfg.data.mix.cutmix_alpha = cfg.data.erasing_prob = 0.0
    if "cache" in distill:
        cfg.data.mix = MixConfig()
    cfg.data.transform.auto_augment, cfg.duration, cfg.mesh.data = "", "2 steps", 1
    cfg.optim.warmup, cfg.evals = "1 steps", {}
    return cfg


def steps(cfg: Config, devices: int, count: int = 2) -> tuple[list[dict[str, float]], Any, Any]:
    """Run steps on random images; returns metrics, the last state and the teacher's variables."""
    cfg.mesh.data, cfg.mesh.fsdp = (2, devices // 2) if devices > 1 else (1, 1)
    mesh = sharding.make_mesh(cfg.mesh, jax.devices()[:devices])
    parts = build_lib.build(cfg, num_examples=1000)
    state = build_lib.init_state(cfg, parts, mesh)
    abstract = build_lib.placed(parts.objective.frozen, mesh)
    frozen = sharding.place(
        {"teacher": teacher_lib.read_weights(cfg.objective.distill)[0]}, abstract
    )
    where = jax.tree.map(lambda leaf, wanted: leaf.sharding == wanted.sharding, frozen, abstract)
    assert all(jax.tree.leaves(where))
    step, rng, rows = build_lib.compile_steps(parts, mesh)[0], np.random.default_rng(0), []
    with jax.set_mesh(mesh):
        for _ in range(count):
            batch = {
                "image": rng.integers(0, 256, (16, *models.input_shape(cfg.model)), np.uint8),
                "label": rng.integers(0, 10, 16, np.int32),
            }
            batch = sharding.global_batch(batch, mesh, batch_size=16)
            state, metrics = step(state, frozen, batch)
            rows.append({name: float(value) for name, value in metrics.items()})
    return rows, state, frozen


def test_one_device_and_eight_agree_and_the_teacher_stays(weights: str) -> None:
    one, state, frozen = steps(config(weights), devices=1)
    many, _, sharded = steps(dataclasses.replace(config(weights), accum_steps=2), devices=8)
    for a, b in zip(one, many, strict=True):
        for name in ("loss", "distill_loss", "base_loss", "grad_norm"):
            assert a[name] == pytest.approx(b[name], rel=1e-4), name
    assert one[0]["loss"] != one[1]["loss"]
    assert one[0]["loss"] == pytest.approx(
        0.5 * one[0]["base_loss"] + 0.5 * one[0]["distill_loss"], rel=1e-6
    )
    # Statistics of BatchNorm too: what was read is what is there after the steps.
    before, _ = teacher_lib.read_weights(config(weights).objective.distill)
    for tree in (frozen, sharded):
        jax.tree.map(np.testing.assert_array_equal, tree["teacher"], before)
    assert "batch_stats" in before
    assert state.model_state == {}
    spread = [leaf for leaf in jax.tree.leaves(sharded) if not leaf.sharding.is_fully_replicated]
    assert spread, "fsdp cuts the teacher as well"


def test_a_broken_teacher_teaches_nothing(weights: str) -> None:
    cfg = config(weights, kind=Distillation.HARD)
    mesh = sharding.make_mesh(cfg.mesh, jax.devices()[:1])
    parts = build_lib.build(cfg, num_examples=1000)
    state = build_lib.init_state(cfg, parts, mesh)
    before = jax.tree.map(np.asarray, state.params)
    variables = teacher_lib.read_weights(cfg.objective.distill)[0]
    variables["params"]["head"]["bias"] = np.full(10, np.nan, np.float32)
    frozen = sharding.place({"teacher": variables}, build_lib.placed(parts.objective.frozen, mesh))
    batch = {
        "image": np.zeros((16, *models.input_shape(cfg.model)), np.uint8),
        "label": np.zeros(16, np.int32),
    }
    with jax.set_mesh(mesh):
        batch = sharding.global_batch(batch, mesh, batch_size=16)
        state, metrics = build_lib.compile_steps(parts, mesh)[0](state, frozen, batch)
    assert metrics["nonfinite"] == 1
    jax.tree.map(np.testing.assert_array_equal, state.params, before)


@pytest.mark.slow
def test_a_run_goes_on_with_its_own_teacher_only(weights: str, tmp_path: Path) -> None:
    cfg = config(weights)
    cfg.checkpoint.every = "1 steps"
    whole = fit(cfg, tmp_path / "whole").state
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    shutil.rmtree(tmp_path / "part" / "checkpoints" / "2")
    (tmp_path / "part" / "finished.json").unlink()
    other = config(teachers.save(tmp_path / "other", TEACHER, seed=1))
    code, field = "train.metadata.check_extras_unchanged", "objective.distill.weights"
    with refused_by(code, field) as error:
        fit(other, tmp_path / "part")
    assert "\n" not in str(error.value)
    # The same weights may lie elsewhere.
    moved = config(teachers.save(tmp_path / "moved", TEACHER))
    again = fit(moved, tmp_path / "part").state
    jax.tree.map(np.testing.assert_array_equal, again.params, whole.params)
    assert fit(moved, tmp_path / "part").state is None


def test_weights_that_do_not_fit(weights: str, tmp_path: Path) -> None:
    wider = dataclasses.replace(TEACHER, stem_width=16)
    for cfg, code in (
        (config("ckpt:nowhere"), "checkpoints.reader._checkpoints"),
        (config("npz:nowhere"), "weights.files.first_bytes"),
        (config(weights, teacher=wider), "weights.apply._check_keys"),
    ):
        with refused_by(code, "objective.distill.weights") as error:
            teacher_lib.check_source(cfg.objective.distill)
        assert "\n" not in str(error.value)
        assert "init." not in str(error.value)
        with refused_by(code, "objective.distill.weights"):
            fit(cfg, tmp_path / "run")
    with pytest.raises(UserError, match=r"^objective\.distill\.weights: .* with ema=false"):
        teacher_lib.check_source(config(weights, ema=True).objective.distill)


def test_a_dry_run_shows_the_teacher(weights: str) -> None:
    cfg = config(weights)
    report, missing = dry_run(cfg)
    assert missing is None
    teacher = models.abstract(TEACHER)
    size = trees.num_params(teacher["params"])
    assert f"learns from a RegNet of {size:,} parameters, {weights}" in report
    (line,) = [line for line in report.splitlines() if line.startswith("frozen parameters")]
    assert float(line.split()[2]) == pytest.approx(trees.num_bytes(teacher) / 1024, abs=0.01)
    plain = get_config()
    plain.objective = SupervisedConfig()
    student = build_lib.example_flops(build_lib.build(plain, 1000))
    both = build_lib.example_flops(build_lib.build(cfg, 1000))
    objective = create(cfg.objective, cfg.model, cfg.data)
    flops = count(objective.teacher, teacher, jax.ShapeDtypeStruct((1, 8, 8, 1), "float32"))
    assert both == student + flops
    # SAM asks both networks twice.
    cfg.optim.sam_rho = 0.1
    assert build_lib.example_flops(build_lib.build(cfg, 1000)) == 2 * both
    assert "distill.weights" in str(dry_run(config("ckpt:nowhere"))[1])
    report, missing = dry_run(config(weights, cache="nowhere"))
    assert "learns from the logits in nowhere" in report
    assert "holds no cached logits" in str(missing)
