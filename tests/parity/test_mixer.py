# SPDX-License-Identifier: Apache-2.0
"""MLP-Mixer at random configs against timm: logits and the gradient of every weight."""

import functools

from hypothesis import given
from hypothesis import strategies as st

from tests.parity.harness import check_forward, check_gradients, random_configs
from tests.parity.torch_models import timm, torch
from vit_jax.models import MixerConfig
from vit_jax.models.base import pair
from vit_jax.models.layers.mlp import Gelu


@st.composite
def mixers(draw: st.DrawFn) -> MixerConfig:
    patch = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    grid = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    dim = draw(st.integers(4, 24))
    return MixerConfig(
        image_size=(grid[0] * patch[0], grid[1] * patch[1]),
        patch=patch,
        channels=draw(st.sampled_from([1, 3])),
        num_classes=draw(st.integers(2, 5)),
        dim=dim,
        depth=draw(st.integers(1, 2)),
        token_mlp_dim=int(dim * draw(st.sampled_from([0.5, 1.3]))),
        channel_mlp_dim=int(dim * draw(st.sampled_from([0.7, 4.0]))),
        gelu=draw(st.sampled_from([Gelu.ERF, Gelu.TANH])),
        norm_eps=draw(st.sampled_from([1e-6, 1e-5])),
        scan_unroll=draw(st.integers(0, 1)),
    )


def build(cfg: MixerConfig) -> "torch.nn.Module":
    # timm takes both widths as ratios of dim, rounded down; half a unit more survives the division.
    ratios = tuple((w + 0.5) / cfg.dim for w in (cfg.token_mlp_dim, cfg.channel_mlp_dim))
    act = timm.layers.get_act_layer({Gelu.ERF: "gelu", Gelu.TANH: "gelu_tanh"}[cfg.gelu])
    return timm.models.MlpMixer(
        img_size=pair(cfg.image_size, "image_size"),
        patch_size=pair(cfg.patch, "patch"),
        in_chans=cfg.channels,
        num_classes=cfg.num_classes,
        embed_dim=cfg.dim,
        num_blocks=cfg.depth,
        mlp_ratio=ratios,
        act_layer=act,
        norm_layer=functools.partial(torch.nn.LayerNorm, eps=cfg.norm_eps),
    )


@random_configs
@given(mixers(), st.integers(0, 2**16))
def test_random_configs_equal_timm(cfg: MixerConfig, seed: int) -> None:
    check_forward(build(cfg), cfg, seed)


def test_gradients_equal_timm() -> None:
    cfg = MixerConfig(
        image_size=(12, 20),
        patch=(4, 5),
        num_classes=3,
        dim=12,
        depth=2,
        token_mlp_dim=6,
        channel_mlp_dim=31,
    )
    check_gradients(build(cfg), cfg)
