# SPDX-License-Identifier: Apache-2.0
"""Linear segmentation: its loss in numpy, its dropout, what it refuses."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import Told, refused_as
from vit_jax import models
from vit_jax.data import DataConfig, MixConfig
from vit_jax.data.targets import TargetKind
from vit_jax.models.dense.linear import LinearHead, LinearSegmenter
from vit_jax.objectives import EomtConfig, SegmentConfig
from vit_jax.objectives.dense.segment import entropy


def test_ignored_pixels_have_no_loss_and_count() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (2, 3, 4, 5)).astype(np.float32)
    labels = rng.integers(-1, 5, (2, 3, 4)).astype(np.int16)
    labels[0, 0, 0] = -1
    said = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    each = -np.log(np.take_along_axis(said, labels.clip(0)[..., None], axis=-1))[..., 0]
    loss, accuracy = entropy(jnp.asarray(logits), jnp.asarray(labels))
    known = labels >= 0
    np.testing.assert_allclose(loss, each[known].sum() / labels.size, rtol=1e-5)
    np.testing.assert_allclose(accuracy, (logits.argmax(-1) == labels)[known].mean(), rtol=1e-6)


def test_dropout_takes_whole_channels_of_an_image() -> None:
    head = LinearHead(num_classes=1, dropout_rate=0.5)
    layer = LinearSegmenter(head, train=True)
    maps = jnp.ones((4, 2, 3, 64))
    variables = layer.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, maps)
    # The layer sees channels of mean 1; what a step saw of them is in the running mean.
    rngs = {"dropout": jax.random.key(2)}
    _, seen = layer.apply(variables, maps, rngs=rngs, mutable=["batch_stats"])
    means = np.asarray(seen["batch_stats"]["norm"]["mean"]) / 0.1  # PyTorch's momentum
    # A channel that is kept is 2, else 0: its mean over four images is 0, 0.5, 1, 1.5 or 2.
    assert set(np.round(means * 2).astype(int)) <= {0, 1, 2, 3, 4}
    assert len(set(np.round(means, 3))) > 2
    kernel = np.asarray(variables["params"]["classifier"]["kernel"])
    assert 0.005 < kernel.std() < 0.02


def _model(**fields: Any) -> Any:
    small = {"num_classes": 0, "image_size": (16, 16), "patch": (4, 4), "dim": 16, "num_heads": 2}
    return models.variant("vit_mu8", **{**small, **fields})


MIXED = DataConfig(mix=MixConfig(mixup_alpha=0.2))


@pytest.mark.parametrize(
    ("cfg", "model", "data", "named"),
    [
        (SegmentConfig(), {}, MIXED, ("data.checks.check_dense_data", "data.mix.mixup_alpha")),
        (SegmentConfig(), {"drop_path_rate": 0.1}, None, "model.drop_path_rate=0.1"),
        (SegmentConfig(), {"token_merging": 2}, None, "model.token_merging=0"),
        (EomtConfig(), {}, None, ("models.dense.eomt.validate", "objective.blocks")),
        (EomtConfig(blocks=1), {"fc_norm": True, "pool": "gap"}, None, "model.fc_norm"),
        (EomtConfig(blocks=1, target=TargetKind.DEPTH), {}, None, "objective.target"),
        (EomtConfig(blocks=1, anneal_start=("1%", "2%")), {}, None, "objective.anneal_start"),
        (EomtConfig(blocks=1, anneal_end=("1%",)), {}, None, "objective.anneal_start"),
    ],
)
def test_refusals(cfg: Any, model: dict, data: DataConfig | None, named: Told) -> None:
    with refused_as(named):
        cfg.check(_model(**{"depth": 2, **model}), data or DataConfig())


def test_what_is_frozen_needs_weights() -> None:
    with refused_as(("objectives.dense.pixels.PixelHeadConfig.check_start", "objective.frozen")):
        SegmentConfig().check_start("")
    SegmentConfig(frozen=False).check_start("")
