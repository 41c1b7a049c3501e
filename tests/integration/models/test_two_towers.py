# SPDX-License-Identifier: Apache-2.0
"""Embeddings, logits and losses of pairs are transformers' and open_clip's."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.pairs_of_towers import FILES, GOLDEN, read
from vit_jax import models
from vit_jax.models import contrastive, two_towers


def embedded(file: str) -> tuple[Any, Any, jax.Array, jax.Array, Any]:
    cfg, variables = read(file)
    golden = np.load(GOLDEN / f"{FILES[file]}.npz")
    params = variables["params"]
    image = {name: p for name, p in params.items() if name not in two_towers.BESIDE}
    module = models.create(cfg.image)
    out = cast(
        models.Output, module.apply({"params": image}, jnp.asarray(golden["image"]), train=False)
    )
    images = two_towers.embed_image(cfg, params, out.features)
    return (
        cfg,
        params,
        images,
        two_towers.embed_text(cfg, params, jnp.asarray(golden["tokens"])),
        golden,
    )


@pytest.mark.parametrize("file", FILES)
def test_embeddings_and_logits(file: str) -> None:
    _, params, images, texts, golden = embedded(file)
    np.testing.assert_allclose(images, golden["image_embedding"], atol=5e-6)
    np.testing.assert_allclose(texts, golden["text_embedding"], atol=5e-6)
    found = two_towers.logits(params, images, texts)
    np.testing.assert_allclose(found, golden["logits_per_image"], atol=5e-5)
    assert float(params["logit_scale"]) == pytest.approx(float(golden["logit_scale"]))
    if "logit_bias" in params:
        assert float(params["logit_bias"]) == pytest.approx(float(golden["logit_bias"]))


def test_losses_and_their_gradients() -> None:
    _, params, images, texts, golden = embedded("siglip.safetensors")

    def softmax(t: jax.Array) -> jax.Array:
        return contrastive.softmax_loss(images, texts, jnp.exp(t)).loss

    def sigmoid(t: jax.Array, b: jax.Array) -> jax.Array:
        return contrastive.sigmoid_loss(images, texts, jnp.exp(t), b).loss

    t, b = params["logit_scale"], params["logit_bias"]
    loss, slope = jax.value_and_grad(softmax)(t)
    assert float(loss) == pytest.approx(float(golden["clip_loss"]), rel=1e-5)
    assert float(slope) == pytest.approx(float(golden["d_clip_d_logscale"]), rel=1e-4)
    loss, (slope, lift) = jax.value_and_grad(sigmoid, (0, 1))(t, b)
    assert float(loss) == pytest.approx(float(golden["siglip_loss"]), rel=1e-5)
    assert float(slope) == pytest.approx(float(golden["d_siglip_d_logscale"]), rel=1e-4)
    assert float(lift) == pytest.approx(float(golden["d_siglip_d_bias"]), rel=1e-4)


def test_what_follows_the_end_token_does_not_matter_to_clip() -> None:
    cfg, params, _, texts, golden = embedded("clip_quickgelu.safetensors")
    again = two_towers.embed_text(cfg, params, jnp.asarray(golden["tokens_eot_padded"]))
    np.testing.assert_allclose(again, texts, atol=1e-6)


def test_any_family_may_be_the_images() -> None:
    cfg = two_towers.TwoTowers(
        image=models.variant("resnet50", num_classes=0, image_size=(32, 32)),
        text=read("open_clip.safetensors")[0].text,
        dim=16,
    )
    two_towers.validate(cfg)
    shapes = two_towers.abstract(cfg)
    assert shapes["params"]["image_head"]["kernel"].shape == (2048, 16)
    assert "batch_stats" in shapes
