# SPDX-License-Identifier: Apache-2.0
"""Embeddings, logits and losses of pairs are transformers' and open_clip's."""

import dataclasses
import math
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.pairs_of_towers import FILES, GOLDEN, pair, read
from vit_jax import models
from vit_jax.models import contrastive, two_towers
from vit_jax.models.text import TextConfig, TextInit
from vit_jax.models.two_towers import TwoTowers


def embedded(file: str) -> tuple[Any, Any, jax.Array, jax.Array, Any]:
    cfg, variables = read(file)
    golden = np.load(GOLDEN / f"{FILES[file]}.npz")
    params = variables["params"]
    image = {name: p for name, p in params.items() if name not in two_towers.BESIDE}
    module = models.create(cfg.image)

    @jax.jit  # op by op, each is a program
    def embed(pixels: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = cast(models.Output, module.apply({"params": image}, pixels, train=False))
        images = two_towers.embed_image(cfg, params, out.features)
        return images, two_towers.embed_text(cfg, params, tokens)

    images, texts = embed(jnp.asarray(golden["image"]), jnp.asarray(golden["tokens"]))
    return cfg, params, images, texts, golden


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
    loss, slope = jax.jit(jax.value_and_grad(softmax))(t)
    assert float(loss) == pytest.approx(float(golden["clip_loss"]), rel=1e-5)
    assert float(slope) == pytest.approx(float(golden["d_clip_d_logscale"]), rel=1e-4)
    loss, (slope, lift) = jax.jit(jax.value_and_grad(sigmoid, (0, 1)))(t, b)
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


def test_training_starts_where_the_papers_do() -> None:
    def start(name: str, **fields: float) -> Any:
        init = jax.jit(lambda key: two_towers.init(pair(name), key, **fields))
        return init(jax.random.key(0))[0]

    clip = start("open_clip")
    assert float(clip["logit_scale"]) == pytest.approx(math.log(1 / 0.07))
    assert "logit_bias" not in clip
    siglip = start("siglip")
    assert float(siglip["logit_scale"]) == pytest.approx(math.log(10))
    assert float(siglip["logit_bias"]) == -10
    own = start("siglip", scale=1.0, bias=-4.0)
    assert (float(own["logit_scale"]), float(own["logit_bias"])) == (1.0, -4.0)


def texts_start(cfg: TwoTowers, seed: int) -> Any:
    return jax.jit(lambda key: two_towers.init_beside(cfg, key)["text"])(jax.random.key(seed))


def test_deviations_of_the_text_tower() -> None:
    cfg = TextConfig(vocab_size=512, context=64, dim=64, depth=6, num_heads=4, mlp_dim=256)
    whole = TwoTowers(image=pair("open_clip").image, text=cfg, dim=64)
    params = texts_start(whole, 0)
    width, deep = 64**-0.5, 12**-0.5
    wanted = {
        ("token_embed",): 0.02,
        ("position_embed",): 0.01,
        ("blocks", "attn", "qkv", "kernel"): width,
        ("blocks", "attn", "proj", "kernel"): width * deep,
        ("blocks", "mlp", "fc1", "kernel"): 128**-0.5,
        ("blocks", "mlp", "fc2", "kernel"): width * deep,
        ("head", "kernel"): width,
    }
    for path, deviation in wanted.items():
        leaf = params
        for key in path:
            leaf = leaf[key]
        assert np.std(np.asarray(leaf)) == pytest.approx(deviation, rel=0.06), path
    assert not np.any(params["blocks"]["mlp"]["fc1"]["bias"])
    theirs = dataclasses.replace(whole, text=dataclasses.replace(cfg, init=TextInit.SIGLIP))
    params = texts_start(theirs, 0)
    for name in ("token_embed", "position_embed"):
        assert np.std(np.asarray(params[name])) == pytest.approx(width, rel=0.06)


def test_towers_do_not_start_alike() -> None:
    """Two keys give two towers, and no two kernels of a tower are of one draw."""
    first = texts_start(pair("siglip"), 0)
    other = texts_start(pair("siglip"), 1)
    assert not np.array_equal(first["token_embed"], other["token_embed"])
    kernels = first["blocks"]["attn"]["proj"]["kernel"]
    assert not np.array_equal(kernels[0], kernels[1])
