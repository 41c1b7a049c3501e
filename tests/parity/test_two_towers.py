# SPDX-License-Identifier: Apache-2.0
"""Pairs of towers beside transformers' own, of all that its configs say."""

from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.parity.torch_models import torch
from vit_jax import models, trees, weights
from vit_jax.models import two_towers
from vit_jax.weights.layout import Own
from vit_jax.weights.published import describe

transformers = pytest.importorskip("transformers")
TEXT = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 10,
}
IMAGE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
NAFLEX = {**{k: v for k, v in IMAGE.items() if k != "image_size"}, "num_patches": 16}
IDS = np.array(
    [
        [1, 5, 9, 59, 0, 0, 0, 0, 0, 0],
        [1, 9, 59, 3, 3, 3, 3, 9, 3, 3],
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 59],
    ]
)
GELU = {"hidden_act": "gelu"}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "clip": ("CLIP", {**TEXT, "eos_token_id": 2}, IMAGE, {"projection_dim": 24}),
    "clip with an end token of its own": (
        "CLIP",
        {**TEXT, **GELU, "eos_token_id": 9},
        {**IMAGE, **GELU},
        {"projection_dim": 24},
    ),
    "siglip": ("Siglip", {**TEXT, "projection_size": 32}, IMAGE, {}),
    "siglip2 of images of any shape": ("Siglip2", {**TEXT, "projection_size": 32}, NAFLEX, {}),
}


def _images(model: Any, image: np.ndarray) -> dict[str, Any]:
    if "Siglip2" not in type(model).__name__:
        return {"pixel_values": torch.tensor(image.transpose(0, 3, 1, 2))}
    count, side, patch = len(image), 4, 8
    cut = image.reshape(count, side, patch, side, patch, 3).transpose(0, 1, 3, 2, 4, 5)
    return {
        "pixel_values": torch.tensor(cut.reshape(count, side * side, -1)),
        "pixel_attention_mask": torch.ones(count, side * side, dtype=torch.long),
        "spatial_shapes": torch.tensor([[side, side]] * count),
    }


@pytest.mark.parametrize("case", CASES)
def test_embeddings_are_transformers(case: str, tmp_path: Path) -> None:
    kind, text, image, rest = CASES[case]
    config = getattr(transformers, f"{kind}Config")
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}Model")(
        config(text_config=text, vision_config=image, **rest)
    )
    for value in model.parameters():
        torch.nn.init.normal_(value, std=0.2)
    model.eval().save_pretrained(tmp_path)
    pixels = np.random.default_rng(0).normal(size=(3, 32, 32, 3)).astype(np.float32)
    with torch.no_grad():
        theirs = model(input_ids=torch.tensor(IDS), **_images(model, pixels))
    pair = describe.pair(f"hub:{tmp_path}")
    shapes = two_towers.abstract(pair)["params"]
    beside = {name: shapes[name] for name in two_towers.BESIDE if name in shapes}
    own = Own(beside, pair.text.num_heads, pair)
    found = trees.nest(dict(weights.read(f"hub:{tmp_path}", pair.image, own=own)))["params"]
    params = jax.tree.map(jnp.asarray, found)
    encoder = {name: value for name, value in params.items() if name not in two_towers.BESIDE}
    module = models.create(pair.image)

    @jax.jit
    def embed(pixels: jax.Array, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = cast(models.Output, module.apply({"params": encoder}, pixels, train=False))
        images = two_towers.embed_image(pair, params, out.features)
        return images, two_towers.embed_text(pair, params, ids)

    images, texts = embed(jnp.asarray(pixels), jnp.asarray(IDS))
    np.testing.assert_allclose(images, theirs.image_embeds.numpy(), atol=5e-6)
    np.testing.assert_allclose(texts, theirs.text_embeds.numpy(), atol=5e-6)
    logits = two_towers.logits(params, images, texts)
    np.testing.assert_allclose(logits, theirs.logits_per_image.numpy(), atol=5e-5)
