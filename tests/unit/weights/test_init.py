# SPDX-License-Identifier: Apache-2.0
"""A run starts from the weights that `init` names, once, and on any mesh alike."""

import dataclasses
from pathlib import Path

import pytest

from configs.vit_mu_digits import get_config
from vit_jax import config as config_lib
from vit_jax.config.tree import Config
from vit_jax.devices.sharding import MeshConfig
from vit_jax.errors import UserError
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
    "scheme": (
        {"weights": "tmm:x.safetensors"},
        "valid: ckpt:DIR, hf:USER/NAME, hub:USER/NAME, npz:FILE, timm:FILE",
    ),
    "no path": ({"weights": "timm:"}, r"'timm:' names no file: give timm:FILE"),
    "regex": ({"weights": "timm:x", "skip": ("(",)}, r"init.skip: '\(' is not a regex"),
    "average": ({"weights": "timm:x", "ema": True}, r"set init.weights=ckpt:DIR"),
    "skip alone": ({"skip": ("head",)}, r"need init.weights"),
    "resize alone": ({"resize": ResizeRule.TIMM}, r"need init.weights"),
}


@pytest.mark.parametrize("case", BAD)
def test_settings_that_cannot_be(case: str) -> None:
    fields, message = BAD[case]
    cfg = small(get_config())
    cfg.init = InitConfig(**fields)
    with pytest.raises(UserError, match=message):
        config_lib.check(cfg)


@pytest.mark.parametrize("ref", ["timm:no.safetensors", "npz:no.npz", "ckpt:no"])
def test_a_missing_file_is_told_before_the_data_are_opened(ref: str, tmp_path: Path) -> None:
    cfg = small(get_config())
    cfg.data.name = "folder:/nowhere"
    cfg.init.weights = ref
    with pytest.raises(UserError, match=r"no\.safetensors|no\.npz|/no is no directory"):
        fit(cfg, tmp_path / "run")
