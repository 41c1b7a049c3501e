# SPDX-License-Identifier: Apache-2.0
"""Steps on mixed, erased and repeated images are the same on every layout; SAM's state resumes."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import data, models
from vit_jax.checkpoints import CheckpointConfig
from vit_jax.checkpoints.checkpointer import Checkpointer
from vit_jax.config.tree import Config
from vit_jax.data import DataConfig, MixConfig, Partner
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.errors import UserError
from vit_jax.models.losses import Loss
from vit_jax.objectives import Supervised, SupervisedConfig
from vit_jax.optim import OptimConfig, make_climb, make_optimizer
from vit_jax.settings.durations import Clock
from vit_jax.train import build as build_lib
from vit_jax.train.state import make_init
from vit_jax.train.step import jit_step, make_train_step

BATCH, SIZE, CLASSES, HIDDEN = 16, 8, 8, 16
BOTH = {"mixup_alpha": 0.8, "cutmix_alpha": 1.0}
RECIPES = {
    "batch": (
        MixConfig(**BOTH, partner=Partner.REVERSED),
        SupervisedConfig(loss=Loss.BCE, binarize=True),
        0.0,
    ),
    "per_example": (
        MixConfig(**BOTH, prob=0.8, switch_prob=0.4, per_example=True),
        SupervisedConfig(label_smoothing=0.1),
        0.1,
    ),
}


class Linear(Supervised):
    """Two layers in place of a model."""

    def apply(self, params, model_state, image, rng, *, train):
        hidden = jnp.tanh(image.reshape(image.shape[0], -1) @ params["fc1"]["kernel"])
        return types.SimpleNamespace(logits=hidden @ params["head"]["kernel"]), {}


def _init_model(key):
    one, two = jax.random.split(key)
    fc1 = jax.random.normal(one, (SIZE * SIZE * 3, HIDDEN)) / 14
    return {"fc1": {"kernel": fc1}, "head": {"kernel": jax.random.normal(two, (HIDDEN, 8))}}, {}


def _batch() -> dict[str, np.ndarray]:
    """Draw two copies of each image."""
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (BATCH // 2, SIZE, SIZE, 3), np.uint8)
    label = rng.integers(0, CLASSES, BATCH // 2, np.int32)
    return {"image": image.repeat(2, axis=0), "label": label.repeat(2)}


class Run:
    """A small network on a mesh."""

    def __init__(self, recipe: str, mesh: MeshConfig, devices: int, accum_steps: int = 1) -> None:
        mix, cfg, sam_rho = RECIPES[recipe]
        self.mesh = sharding.make_mesh(mesh, jax.devices()[:devices])
        data = DataConfig(mean=(0.5,), std=(0.25,), mix=mix, erasing_prob=0.5)
        objective = Linear(cfg, models.variant("vit_mu16", num_classes=CLASSES), data)
        params = jax.eval_shape(_init_model, jax.random.key(0))[0]
        clock = Clock(batch_size=BATCH, num_examples=100, total_steps=10)
        optim = OptimConfig(lr=1e-2, sam_rho=sam_rho)
        (tx, schedule), climb = (f(optim, params, clock) for f in (make_optimizer, make_climb))
        init = make_init(_init_model, tx, with_ema=False)
        self.abstract = build_lib.placed(jax.eval_shape(init, jax.random.key(0)), self.mesh)
        places = jax.tree.map(lambda leaf: leaf.sharding, self.abstract)
        step = make_train_step(objective, tx, schedule, accum_steps=accum_steps, climb=climb)
        self.step = jit_step(step, places, {}, self.mesh)
        self.start = jax.device_put(jax.jit(init)(jax.random.key(0)), places)

    def advance(self, state, count: int):
        """Return the state after `count` steps, and [loss, norm of the gradient] of each."""
        rows = []
        with jax.set_mesh(self.mesh):
            for _ in range(count):
                batch = sharding.global_batch(_batch(), self.mesh, batch_size=BATCH)
                state, metrics = self.step(state, {}, batch)
                rows.append([float(metrics["loss"]), float(metrics["grad_norm"])])
        return state, np.array(rows)


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_neither_layout_nor_accumulation_change_a_step(recipe: str) -> None:
    one = Run(recipe, MeshConfig(), 1)
    state, here = one.advance(one.start, 4)
    assert len(np.unique(here[:, 0])) == 4  # each step mixes anew
    many = Run(recipe, MeshConfig(data=2, fsdp=2, tensor=2), 8, accum_steps=2)
    other, there = many.advance(many.start, 4)
    np.testing.assert_allclose(there, here, rtol=1e-5)
    head, there = state.params["head"]["kernel"], other.params["head"]["kernel"]
    np.testing.assert_allclose(there, head, atol=1e-5)


def test_several_labels_per_image_need_a_loss_for_each_class(monkeypatch, tmp_path) -> None:
    cfg = Config(
        model=models.variant("vit_mu8", num_classes=10), data=DataConfig(data_dir=str(tmp_path))
    )
    source = build_lib.open_train(cfg)
    monkeypatch.setattr(source, "multi_label", True)
    monkeypatch.setattr(data, "open_source", lambda *args, **kwargs: source)
    with pytest.raises(UserError, match=r"several labels per image; set objective.loss=.*bce"):
        build_lib.open_train(cfg)
    for loss in (Loss.SIGMOID, Loss.BCE):
        cfg.objective.loss = loss
        assert build_lib.open_train(cfg).multi_label


def test_sam_resumes_with_the_same_bits(tmp_path) -> None:
    run = Run("per_example", MeshConfig(), 1)
    state, _ = run.advance(run.start, 1)
    with jax.set_mesh(run.mesh):
        checkpoints = Checkpointer(tmp_path, CheckpointConfig())
        checkpoints.save(1, state, metadata={})
        checkpoints.wait()
        restored = checkpoints.restore(run.abstract)
    ends = [run.advance(start, 2)[0] for start in (state, restored.state)]
    for name in ("params", "opt_state"):
        jax.tree.map(np.testing.assert_array_equal, *(getattr(end, name) for end in ends))
