# SPDX-License-Identifier: Apache-2.0
"""Hiera against timm: logits at several configs, and the gradient of every weight."""

import dataclasses
import functools

import pytest

from tests.parity.harness import check_forward, check_gradients
from tests.parity.torch_models import timm, torch
from vit_jax.models import HieraConfig
from vit_jax.models.base import pair
from vit_jax.models.layers.mlp import Gelu


def build(cfg: HieraConfig) -> "torch.nn.Module":
    assert cfg.gelu is Gelu.ERF, "the only one of timm's Hiera"
    stages, kernel = len(cfg.depths), cfg.stem_kernel
    more = {"global_pos_size": pair(cfg.global_grid, "global_grid")} if cfg.global_grid else {}
    return timm.models.Hiera(
        img_size=pair(cfg.image_size, "image_size"),
        in_chans=cfg.channels,
        num_classes=cfg.num_classes,
        embed_dim=cfg.dim,
        num_heads=cfg.num_heads[0],
        stages=cfg.depths,
        q_pool=stages - 1,
        mask_unit_size=(2 ** (stages - 1),) * 2,
        mask_unit_attn=tuple(i < cfg.local_stages for i in range(stages)),
        use_expand_proj=cfg.expand,
        patch_kernel=(kernel, kernel),
        patch_stride=(cfg.stem_stride, cfg.stem_stride),
        patch_padding=(kernel // 2, kernel // 2),
        mlp_ratio=cfg.mlp_ratio,
        init_values=cfg.layer_scale or None,
        abs_win_pos_embed=bool(cfg.global_grid),
        norm_layer=functools.partial(torch.nn.LayerNorm, eps=cfg.norm_eps),
        **more,
    )


# Three stages, of which the second alone attends globally after a first block that does not.
UNEVEN = HieraConfig(
    image_size=(16, 24),
    stem_kernel=3,
    stem_stride=2,
    num_classes=3,
    dim=8,
    depths=(1, 2, 1),
    num_heads=(2, 4, 8),
    local_stages=1,
    mlp_ratio=1.7,
)
CONFIGS = {
    "one local stage": UNEVEN,
    "all local": dataclasses.replace(UNEVEN, local_stages=3, global_grid=(3, 5), channels=1),
    "none local": dataclasses.replace(UNEVEN, local_stages=0, expand=False, layer_scale=0.3),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_timm(name: str) -> None:
    check_forward(build(CONFIGS[name]), CONFIGS[name])


def test_gradients_equal_timm() -> None:
    check_gradients(build(UNEVEN), UNEVEN)
