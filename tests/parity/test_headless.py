# SPDX-License-Identifier: Apache-2.0
"""The published networks without a head, small: files load as they are, features are timm's."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from tests.parity.harness import TOLERANCE, images, to_torch
from tests.parity.torch_models import randomise, state, timm, torch
from vit_jax import inference, models

# Our variant with fields for timm's architecture without classes: DINO, MAE, DINOv2 with registers
# and without, SigLIP, I-JEPA.
NETWORKS = {
    "vit_small_patch16_224": ("vit_s16", {"gelu": "erf"}),
    "vit_small_patch14_dinov2": ("vit_s14", {"gelu": "erf", "layer_scale": 1e-5}),
    "vit_small_patch14_reg4_dinov2": (
        "vit_s14",
        {"gelu": "erf", "layer_scale": 1e-5, "num_registers": 4, "pos_embed_prefix": False},
    ),
    "vit_base_patch16_siglip_224": ("vit_b16_siglip", {"gelu": "erf"}),
    "vit_base_patch16_siglip_gap_224": ("vit_b16_siglip_gap", {"gelu": "erf"}),
    "vit_huge_patch14_gap_224": (
        "vit_h14",
        {"gelu": "erf", "class_token": False, "pool": "gap"},
    ),
}


@pytest.mark.parametrize("architecture", NETWORKS)
def test_features_are_timms(architecture: str, tmp_path: Path) -> None:
    variant, fields = NETWORKS[architecture]
    side = 2 * models.variant(variant).patch[0]
    model = timm.create_model(
        architecture, num_classes=0, img_size=side, depth=1, embed_dim=32, num_heads=2, mlp_ratio=2
    )
    randomise(model, 0)
    place = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(state(model), place)
    sizes = {"dim": 32, "depth": 1, "num_heads": 2, "mlp_dim": 64}
    cfg = models.variant(variant, image_size=(side, side), **sizes, **fields)
    found = inference.load(str(place), model=cfg, headless=True, mean=(0.0,), std=(1.0,))
    assert not found.has_head
    pixels = (images(cfg, 1) * 40 + 128).clip(0, 255).astype(np.uint8)
    with torch.no_grad():
        expected = model(to_torch(pixels.astype(np.float32) / 255)).numpy()
    features = inference.make_forward(found)(pixels).features
    np.testing.assert_allclose(features, expected, atol=TOLERANCE, rtol=TOLERANCE)
