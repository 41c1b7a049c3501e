# SPDX-License-Identifier: Apache-2.0
"""RegNetY against timm: any widths, sizes and options, in evaluation and in training."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.parity.harness import TOLERANCE, check_forward, images, random_configs, to_torch
from tests.parity.torch_models import gradients, randomise, state, timm, torch
from vit_jax import models, weights
from vit_jax.models.families.regnet import RegNetConfig, stages


def timm_model(cfg: RegNetConfig) -> "torch.nn.Module":
    fields = timm.models.regnet.RegNetCfg(
        depth=cfg.depth,
        w0=cfg.w0,
        wa=cfg.wa,
        wm=cfg.wm,
        group_size=cfg.group_width,
        se_ratio=cfg.se_ratio,
        group_min_ratio=cfg.group_min_ratio,
        stem_width=cfg.stem_width,
    )
    return timm.models.regnet.RegNet(fields, in_chans=cfg.channels, num_classes=cfg.num_classes)


@st.composite
def configs(draw: st.DrawFn) -> RegNetConfig:
    side = st.integers(17, 80)
    return RegNetConfig(
        depth=draw(st.integers(4, 6)),
        w0=draw(st.sampled_from((8, 16, 24))),
        wa=draw(st.floats(6, 24)),
        wm=draw(st.floats(1.4, 2.4)),
        group_width=draw(st.sampled_from((5, 8, 12, 20, 96))),
        group_min_ratio=draw(st.sampled_from((0.0, 0.9))),
        stem_width=draw(st.integers(4, 18)),
        se_ratio=draw(st.sampled_from((0.0, 0.25, 0.5, 0.3))),
        image_size=(draw(side), draw(side)),
        channels=draw(st.sampled_from((1, 3))),
        num_classes=draw(st.integers(2, 9)),
    )


def buildable(cfg: RegNetConfig) -> bool:
    made = stages(cfg)  # timm has networks of four stages only
    return len(made) == 4 and made[-1].width < 100


@pytest.mark.slow
@random_configs
@given(cfg=configs(), seed=st.integers(0, 99))
def test_logits(cfg: RegNetConfig, seed: int) -> None:
    assume(buildable(cfg))
    check_forward(timm_model(cfg), cfg, seed)


SMALL = RegNetConfig(
    depth=5,
    w0=8,
    wa=6.0,
    wm=1.6,
    group_width=4,
    stem_width=6,
    num_classes=5,
    image_size=(41, 34),
)


def test_training_mode() -> None:
    """Outputs, new running statistics and the gradient of every weight are PyTorch's."""
    model = randomise(timm_model(SMALL), seed=1).train()
    before = {name: value.copy() for name, value in state(model).items()}
    image = images(SMALL, seed=1, batch=6)
    target = np.random.default_rng(2).normal(size=(6, SMALL.num_classes)).astype(np.float32)
    logits = model(to_torch(image))
    loss = (logits * torch.from_numpy(target)).sum()
    expected = weights.from_timm({**state(model), **gradients(model, loss)}, SMALL)

    @jax.jit
    def step(variables: Any) -> Any:
        def loss(params: Any) -> Any:
            out, new = models.create(SMALL).apply(
                {**variables, "params": params},
                jnp.asarray(image),
                train=True,
                mutable=["batch_stats"],
            )
            return (out.logits * target).sum(), (out.logits, new["batch_stats"])

        return jax.grad(loss, has_aux=True)(variables["params"])

    with jax.default_matmul_precision("highest"):
        grads, (ours, stats) = step(weights.from_timm(before, SMALL))

    def compare(path: Any, a: Any, b: Any) -> None:
        scale = max(1.0, float(np.abs(b).max()))
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(a / scale, b / scale, atol=TOLERANCE, rtol=0, err_msg=name)

    compare((), ours, logits.detach().numpy())
    jax.tree_util.tree_map_with_path(compare, stats, expected["batch_stats"])
    jax.tree_util.tree_map_with_path(compare, grads, expected["params"])


def test_batch_norm_moves_as_pytorch_does_over_several_steps() -> None:
    from vit_jax.models.layers.norm import BatchNorm

    theirs, ours = torch.nn.BatchNorm2d(4), BatchNorm(1e-5, jnp.float32, train=True)
    variables = ours.init(jax.random.key(0), jnp.zeros((1, 1, 1, 4)))
    for seed in range(5):
        x = np.random.default_rng(seed).normal(seed, 1 + seed, (2, 3, 2, 4)).astype(np.float32)
        expected = theirs(to_torch(x)).detach().numpy().transpose(0, 2, 3, 1)
        y, new = ours.apply(variables, jnp.asarray(x), mutable=["batch_stats"])
        variables = {**variables, **new}
        np.testing.assert_allclose(y, expected, atol=5e-6)
    stats = variables["batch_stats"]
    np.testing.assert_allclose(stats["mean"], theirs.running_mean.numpy(), rtol=1e-6)
    np.testing.assert_allclose(stats["var"], theirs.running_var.numpy(), rtol=1e-6)


def test_initial_values_have_timms_spread() -> None:
    cfg = RegNetConfig(depth=4, w0=24, wa=30.0, wm=1.8, group_width=8, image_size=(32, 32))
    torch.manual_seed(0)
    theirs = weights.from_timm(state(timm_model(cfg)), cfg)
    module = models.create(cfg)
    params, stats = jax.jit(lambda key: models.init(module, cfg, key))(jax.random.key(0))

    def compare(path: Any, a: Any, b: Any) -> None:
        name = jax.tree_util.keystr(path)
        # The standard error of a standard deviation of n draws is 1/sqrt(2n) of it.
        margin = 5 / np.sqrt(2 * a.size)
        np.testing.assert_allclose(np.std(a), np.std(b), rtol=2 * margin, err_msg=name)
        if not np.std(b):
            np.testing.assert_array_equal(a, b, err_msg=name)

    jax.tree_util.tree_map_with_path(compare, {"params": params, **stats}, theirs)
