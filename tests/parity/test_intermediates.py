# SPDX-License-Identifier: Apache-2.0
"""What layers return, against timm's `forward_intermediates` in every family."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.parity import test_bit as bit
from tests.parity import test_cait as cait
from tests.parity import test_convit as convit
from tests.parity import test_convnext as convnext
from tests.parity import test_hiera as hiera
from tests.parity import test_hybrid as hybrid
from tests.parity import test_mixer as mixer
from tests.parity import test_regnet as regnet
from tests.parity import test_resnet as resnet
from tests.parity import test_swin as swin
from tests.parity import test_vit as vit
from tests.parity.harness import TOLERANCE, images, to_torch
from tests.parity.torch_models import randomise, state, torch
from vit_jax import models, weights
from vit_jax.models.intermediates import layer_outputs

VIT = dataclasses.replace(vit.DISTILLED, distilled=False, num_registers=2, depth=3)
BIT = {"num_groups": 4, "conv_eps": 1e-8, "depths": (1, 2, 1, 1), "widths": (32, 48, 32, 40)}
CASES: dict[str, tuple[Callable[[Any], Any], models.ModelConfig]] = {
    "vit": (vit.build, VIT),
    "deit": (vit.build, vit.DISTILLED),
    "fc_norm": (vit.build, dataclasses.replace(VIT, pool=vit.Pool.GAP, fc_norm=True)),
    "cait": (
        cait.build,
        models.CaiTConfig(
            image_size=(8, 12),
            patch=(4, 4),
            dim=12,
            depth=3,
            num_heads=2,
            mlp_dim=24,
            token_depth=2,
            layer_scale=0.3,
        ),
    ),
    "convit": (convit.build, dataclasses.replace(convit.TINY, depth=3, local_up_to_layer=2)),
    "mixer": (
        mixer.build,
        models.MixerConfig(
            image_size=(8, 12),
            patch=(4, 4),
            dim=12,
            depth=3,
            token_mlp_dim=8,
            channel_mlp_dim=24,
        ),
    ),
    "hybrid": (hybrid.build, dataclasses.replace(hybrid.TWO_STAGES, depth=3)),
    "swin": (swin.build, swin.UNEVEN),
    "convnext": (convnext.build, convnext.UNEVEN),
    "convnext hnf": (convnext.build, convnext.NORM_FIRST),
    "hiera": (hiera.build, hiera.UNEVEN),
    "resnet": (
        resnet.timm_model,
        models.ResNetConfig(
            depths=(2, 1, 1, 1), widths=(8, 16, 16, 24), image_size=(37, 45), num_classes=5
        ),
    ),
    "regnet": (regnet.timm_model, regnet.SMALL),
    "bit": (bit.build, models.BiTConfig(**{**bit.SMALL, "stem_width": 16, **BIT})),
    "resnetv2": (
        bit.build,
        models.BiTConfig(
            **{**bit.SMALL, **BIT, "stem_width": 16},
            norm=bit.Norm.BATCH,
            padding=bit.Padding.SYMMETRIC,
        ),
    ),
}
UNNORMED = ("fc_norm", "resnet", "regnet", "convnext", "hiera")  # timm ignores norm=True there


@pytest.mark.parametrize("name", CASES)
def test_layers_equal_timms(name: str) -> None:
    build, cfg = CASES[name]
    model: Any = randomise(build(cfg), 1)
    image = images(cfg, 1)
    variables = weights.from_timm(state(model), cfg)

    def ours(layers: Any, norm: bool) -> list[Any]:
        with jax.default_matmul_precision("highest"):
            run = jax.jit(lambda v, x: layer_outputs(cfg, v, x, layers, norm=norm))
            return run(variables, jnp.asarray(image))

    # Of which timm's ResNets and Swin return neither tokens nor what comes before them.
    extra = {"return_prefix_tokens": True} if models.num_prefix(cfg) else {}
    for layers, norm in ((None, False), ([-1, 0], name not in UNNORMED), (2, False)):
        order = sorted(layers, key=lambda n: n < 0) if isinstance(layers, list) else layers
        with torch.no_grad():
            expected = model.forward_intermediates(
                to_torch(image), indices=order, norm=norm, intermediates_only=True, **extra
            )
        found = ours(order, norm)
        assert len(found) == len(expected)
        for layer, theirs in zip(found, expected, strict=True):
            patches, prefix = theirs if extra else (theirs, None)
            compare(layer.patches, patches.permute(0, 2, 3, 1))
            if prefix is not None:
                compare(layer.prefix, prefix)


def compare(actual: jax.Array, expected: "torch.Tensor") -> None:
    theirs = expected.numpy()
    scale = max(1.0, float(np.abs(theirs).max()))
    np.testing.assert_allclose(actual / scale, theirs / scale, atol=TOLERANCE, rtol=0)
