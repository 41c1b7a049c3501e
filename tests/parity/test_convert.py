# SPDX-License-Identifier: Apache-2.0
"""What is exported loads into timm's own models with strict=True."""

import dataclasses
import importlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.torch import load_file

from tests.parity import test_convnext, test_eva, test_regnet, test_vit
from tests.parity.harness import TOLERANCE, images, to_torch
from tests.parity.torch_models import randomise, state, torch
from tests.unit.models.tiny import TINY
from vit_jax import models, weights
from vit_jax.models import ViTConfig
from vit_jax.models.families.resnet import ResNetConfig
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.weights import export

# timm has four stages only where the tiny ones have fewer, and one width of the ResNet's stem.
_RESNET = ResNetConfig(depths=(1, 1, 1, 1), widths=(8, 16, 16, 24), image_size=(32,), num_classes=5)
CONFIGS = {**TINY, "regnet": test_regnet.SMALL, "resnet": _RESNET}
CONFIGS["convnext"] = test_convnext.UNEVEN


def build(family: str) -> "torch.nn.Module":
    parity = importlib.import_module(f"tests.parity.test_{'vit' if family == 'deit' else family}")
    return getattr(parity, "build" if hasattr(parity, "build") else "timm_model")(CONFIGS[family])


@pytest.mark.parametrize("family", CONFIGS)
def test_every_family(family: str, tmp_path: Path) -> None:
    before = state(randomise(build(family), seed=0))
    variables = weights.from_timm(before, CONFIGS[family])
    export.save(tmp_path / "x.safetensors", weights.to_timm(variables, CONFIGS[family]))
    model = build(family)
    model.load_state_dict(load_file(tmp_path / "x.safetensors"), strict=True)
    after = state(model)
    assert after.keys() == before.keys()
    for key, value in before.items():
        np.testing.assert_array_equal(after[key], value, err_msg=key)


@pytest.mark.parametrize("name", test_eva.PUBLISHED)
def test_every_form_of_eva(name: str, tmp_path: Path) -> None:
    cfg = dataclasses.replace(test_eva.BASE, **test_eva.PUBLISHED[name])
    before = state(randomise(test_eva.build(cfg), seed=0))
    written = weights.to_timm(weights.from_timm(before, cfg), cfg)
    export.save(tmp_path / "x.safetensors", written)
    model = test_eva.build(cfg)
    model.load_state_dict(load_file(tmp_path / "x.safetensors"), strict=True)
    for key, value in state(model).items():
        np.testing.assert_array_equal(value, before[key], err_msg=key)


def check(cfg: ViTConfig, model: "torch.nn.Module", path: Path) -> None:
    """Compare the logits where the file holds more than the variables."""
    module = models.create(cfg)
    params = jax.jit(lambda key: models.init(module, cfg, key)[0])(jax.random.key(0))
    export.save(path, weights.to_timm({"params": params}, cfg))
    model.load_state_dict(load_file(path), strict=True)
    image = images(cfg, seed=0)
    with torch.no_grad():
        expected = model.eval()(to_torch(image)).numpy()
    with jax.default_matmul_precision("highest"):
        out = jax.jit(module.apply)({"params": params}, jnp.asarray(image))
    np.testing.assert_allclose(out.logits, expected, atol=TOLERANCE, rtol=0)


def test_fixed_positions(tmp_path: Path) -> None:
    cfg = dataclasses.replace(TINY["vit"], pos_embed=PosEmbed.SINCOS2D, image_size=(8, 12))
    learned = dataclasses.replace(cfg, pos_embed=PosEmbed.LEARNED, pos_embed_prefix=False)
    check(cfg, test_vit.build(learned), tmp_path / "x.safetensors")


def test_no_patch_bias(tmp_path: Path) -> None:
    cfg = dataclasses.replace(TINY["vit"], patch_bias=False)
    check(cfg, test_vit.build(cfg), tmp_path / "x.safetensors")
