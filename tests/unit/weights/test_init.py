# SPDX-License-Identifier: Apache-2.0
"""A run starts from the weights that `init` names, once, and on any mesh alike."""

import dataclasses
from pathlib import Path

import pytest

from configs.vit_mu_digits import get_config
from tests.refusals import refused_by
from vit_jax import config as config_lib
from vit_jax.config.tree import Config
from vit_jax.devices.sharding import MeshConfig
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.optim import OptimConfig
from vit_jax.train.loop import fit
from vit_jax.weights.config import InitConfig
from vit_jax.weights.resize import ResizeRule

ONE, EIGHT = MeshConfig(data=1), MeshConfig(data=2, fsdp=2, tensor=2)


def small(cfg: Config) -> Config:
    """Cut the digits run to two steps of a tiny model with learned positions."""
    cfg.model = dataclasses.replace(
        cfg.model,
        dim=16,
        depth=2,
        num_heads=2,
        mlp_dim=32,
        pos_embed=PosEmbed.LEARNED,
        scan_unroll=1,
    )
    cfg.data.batch_size, cfg.duration, cfg.log.every = 16, "2 steps", "1 steps"
    cfg.data.mix.mixup_alpha, cfg.ema_decay = 0.0, 0.9
    cfg.optim = OptimConfig(lr=0.01)
    cfg.evals, cfg.log.tensorboard = {}, False
    cfg.mesh = ONE
    return cfg


BAD = {
    "scheme": ({"weights": "tmm:x.safetensors"}, "weights.config.split", ""),
    "no path": ({"weights": "timm:"}, "weights.config.split", ""),
    "regex": ({"weights": "timm:x", "skip": ("(",)}, "settings.fields.regex", "init.skip"),
    "average": ({"weights": "timm:x", "ema": True}, "weights.config.InitConfig.check", "init.ema"),
    "skip alone": ({"skip": ("head",)}, "weights.config.InitConfig.check", "init.skip"),
    "resize alone": (
        {"resize": ResizeRule.TIMM},
        "weights.config.InitConfig.check",
        "init.skip",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_settings_that_cannot_be(case: str) -> None:
    fields, code, field = BAD[case]
    cfg = small(get_config())
    cfg.init = InitConfig(**fields)
    with refused_by(code, field):
        config_lib.check(cfg)


@pytest.mark.parametrize(
    "ref, code",
    [
        ("timm:no.safetensors", "weights.files.first_bytes"),
        ("npz:no.npz", "weights.files.first_bytes"),
        ("ckpt:no", "checkpoints.reader._checkpoints"),
    ],
)
def test_a_missing_file_is_told_before_the_data_are_opened(
    ref: str, code: str, tmp_path: Path
) -> None:
    cfg = small(get_config())
    cfg.data.name = "folder:/nowhere"
    cfg.init.weights = ref
    with refused_by(code) as caught:
        fit(cfg, tmp_path / "run")
    assert ref.partition(":")[2] in str(caught.value)
