# SPDX-License-Identifier: Apache-2.0
"""From one run to the next: other classes, other pixels, slower layers, a linear probe."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from configs import vit_mu_digits
from tests.unit.models.tiny import TINY
from vit_jax import models, trees, weights
from vit_jax.config.tree import Config
from vit_jax.data import DataConfig
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.optim import OptimConfig, Optimizer
from vit_jax.optim.rules import make_rules
from vit_jax.train import build as build_lib
from vit_jax.train.loop import fit
from vit_jax.weights.apply import fill, in_memory
from vit_jax.weights.config import InitConfig
from vit_jax.weights.readers import ckpt

# docs/finetune.md: everything but the heads.
PROBE = "^(?!head)"


def config(steps: int) -> Config:
    cfg = vit_mu_digits.get_config()
    cfg.model.dim, cfg.model.depth, cfg.model.num_heads, cfg.model.mlp_dim = 16, 1, 2, 32
    cfg.model.pos_embed = models.variant("vit_b16").pos_embed  # a table, to be resized
    cfg.data.batch_size = 64
    cfg.optim = OptimConfig(name=Optimizer.SGD, lr=0.1, clip_norm=0.0)
    cfg.duration, cfg.log.every = f"{steps} steps", "1 steps"
    cfg.log.tensorboard = False
    cfg.evals = {"val": dataclasses.replace(cfg.evals["val"], split="train[1293:1357]")}
    cfg.checkpoint.every = "1 step"
    cfg.mesh.data = 1
    return cfg


def arrays(tree: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(leaf) for name, leaf in trees.named_leaves(tree)}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on the first five digits, at 32 pixels."""
    cfg = config(2)
    cfg.data.classes, cfg.model.num_classes = (0, 1, 2, 3, 4), 5
    place = tmp_path_factory.mktemp("chain") / "pretrained"
    fit(cfg, place)
    return place


@pytest.mark.slow
def test_other_classes_more_pixels_slower_layers_and_an_average(pretrained, tmp_path, capsys):
    cfg = config(1)
    cfg.model.image_size = (48, 48)
    cfg.model.zero_head = False  # else no gradient would pass it in the first step
    cfg.init = InitConfig(weights=f"ckpt:{pretrained}")
    fit(cfg, tmp_path / "kept")  # five of its ten classes are the other run's
    assert "head: 5 of 10 classes keep their rows by name, 5 start anew" in capsys.readouterr().out
    cfg.init.skip = ("^head",)
    cfg.optim.layer_decay = 0.01
    cfg.ema_decay = 0.75
    result = fit(cfg, tmp_path / "run")
    assert "; started anew: params/head/bias, params/head/kernel" in capsys.readouterr().out
    begun = weights.read(cfg.init.weights, cfg.model, skip=cfg.init.skip)
    params, ema = arrays(result.state.params), arrays(result.state.ema["params"])
    assert params["head/kernel"].shape == (16, 10)
    assert params["pos_embed"].shape == (1, 36, 16)
    start = {name: begun[f"params/{name}"] for name in params if not name.startswith("head")}
    for name, value in start.items():
        np.testing.assert_allclose(
            ema[name], 0.75 * value + 0.25 * params[name], rtol=1e-6, atol=1e-7
        )
    # One step of plain gradient descent: what lies deeper moved by a hundredth, and that again.
    moved = [
        np.abs(params[name] - start[name]).max()
        for name in ("patch_embed/kernel", "blocks/mlp/fc2/kernel", "norm/scale")
    ]
    assert moved[0] * 10 < moved[1] < moved[2] / 10
    assert moved[2] > 1e-4


@pytest.mark.slow
def test_a_linear_probe_changes_nothing_but_the_head(pretrained, tmp_path):
    cfg = config(2)
    cfg.init = InitConfig(weights=f"ckpt:{pretrained}", skip=("^head",))
    cfg.optim = OptimConfig(lr=0.1, weight_decay=0.1, freeze=PROBE)
    result = fit(cfg, tmp_path / "run")
    begun = weights.read(cfg.init.weights, cfg.model, skip=cfg.init.skip)
    params = arrays(result.state.params)
    assert {name for name in params if f"params/{name}" not in begun} == {
        "head/kernel",
        "head/bias",
    }
    for name, value in begun.items():
        np.testing.assert_array_equal(params[name.removeprefix("params/")], value, err_msg=name)
    assert np.abs(params["head/kernel"]).max() > 0.01  # from zero


def test_a_frozen_batch_norm_goes_on_averaging():
    cfg = Config(
        model=dataclasses.replace(TINY["resnet"], depths=(1,), widths=(16,)),
        data=DataConfig(batch_size=4),
        optim=OptimConfig(freeze=PROBE),
        duration="1 steps",
        mesh=MeshConfig(data=1),
    )
    mesh = sharding.make_mesh(cfg.mesh, jax.devices()[:1])
    parts = build_lib.build(cfg, num_examples=100)
    state = build_lib.init_state(cfg, parts, mesh)
    before = arrays({"params": state.params, **state.model_state})
    shape = (4, *models.input_shape(cfg.model))
    rng = np.random.default_rng(0)
    batch = {
        "image": rng.integers(0, 256, shape, np.uint8),
        "label": np.arange(4, dtype=np.int32) % 3,
    }
    with jax.set_mesh(mesh):
        batch = sharding.global_batch(batch, mesh, batch_size=4)
        state, _ = build_lib.compile_steps(parts, mesh)[0](state, {}, batch)
    after = arrays({"params": state.params, **state.model_state})
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    statistics = {name for name in before if not name.startswith("params/")}
    assert changed == statistics | {"params/head/kernel", "params/head/bias"}


@pytest.mark.parametrize("family", TINY)
def test_one_regex_names_the_heads_of_every_family(family):
    narrow = {
        name.split("/", 1)[1]: np.zeros(leaf.shape, np.float32)
        for name, leaf in trees.named_leaves(models.abstract(TINY[family]))
    }
    entries = ckpt.entries(models.abstract(dataclasses.replace(TINY[family], num_classes=7)))
    found = fill(entries, in_memory(narrow), skip=("^head",))
    anew = {entry.name for entry in entries} - set(found)
    heads = ("head", "head_dist") if family == "deit" else ("head",)
    assert anew == {f"params/{head}/{leaf}" for head in heads for leaf in ("kernel", "bias")}
    trained = [entry for entry in entries if entry.name.startswith("params/")]
    params = {e.name.split("/", 1)[1]: np.empty(e.shape, np.float32) for e in trained}
    frozen = make_rules(OptimConfig(freeze=PROBE), trees.nest(params)).frozen
    assert {name: value.all() for name, value in frozen.items()} == {
        name: f"params/{name}" not in anew for name in params
    }
