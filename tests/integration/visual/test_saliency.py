# SPDX-License-Identifier: Apache-2.0
"""Where a model looked, by its attention or its head; a pass that shows it computes the same."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.unit.models.tiny import TINY
from tests.unit.visual.test_saliency import attending, heat_of, trained
from tests.unit.weights.runs import make_state
from vit_jax import models
from vit_jax.inference import make_forward
from vit_jax.models.conv import resnet
from vit_jax.models.families import cait, convit, convnext, hiera
from vit_jax.models.layers import block, pool, window
from vit_jax.visual import saliency

RECORDING = (block, pool, resnet, window, cait, convit, convnext, hiera)
NONE = {"mixer"}  # records nothing: its last tokens are its output
# Where the smallest model takes one: an image that is not square.
GRIDS = {
    "vit": (2, 3),
    "deit": (2, 3),
    "hybrid": (2, 3),
    "cait": (2, 3),
    "mixer": (2, 3),
    "convit": (2, 2),
    "swin": (3, 2),
    "convnext": (2, 3),
    "hiera": (3, 2),
    "bit": (4, 6),
    "resnet": (2, 3),
    "regnet": (4, 6),
}
PIXELS = {"hybrid": 8, "bit": 8, "resnet": 8, "regnet": 8, "swin": 8, "convnext": 8, "hiera": 8}


@pytest.mark.parametrize("family", TINY)
def test_the_map_fits_the_image_and_its_making_leaves_a_normal_pass_alone(family, monkeypatch):
    grid, pixels = GRIDS[family], PIXELS.get(family, 4)
    cfg = dataclasses.replace(TINY[family], image_size=tuple(pixels * side for side in grid))
    state = make_state(cfg, 0)
    params = jax.tree.map(lambda leaf: 0.3 * leaf, state.params)
    variables = jax.tree.map(np.asarray, {"params": params, **state.model_state})
    module = models.create(cfg)
    image = np.random.default_rng(0).integers(0, 256, (2, *models.input_shape(cfg)), np.uint8)

    def program(**options) -> str:
        pixels = jnp.zeros(image.shape)
        made = jax.make_jaxpr(lambda v, x: module.apply(v, x, **options))(variables, pixels)
        return re.sub(r"0x[0-9a-f]+", "", str(made))

    plain, asked = program(), program(mutable=["intermediates"])
    assert (plain != asked) == (family not in NONE)
    found = trained(cfg, variables)
    logits = np.asarray(make_forward(found)(image).logits)
    output, heat, seen = saliency.make_inspection(found)(image)
    assert bool(seen) == (family not in NONE)
    np.testing.assert_array_equal(output.logits, logits)
    assert np.ptp(logits) > 0
    assert heat.shape == (2, *grid)
    assert heat.dtype == jnp.float32
    assert np.ptp(heat, axis=(1, 2)).min() > 0
    if saliency.method(cfg) == "class activation map":  # its mean and the bias are the logit
        bias = variables["params"]["head"]["bias"][logits.argmax(axis=-1)]
        mean = np.asarray(heat).mean(axis=(1, 2))
        np.testing.assert_allclose(mean + bias, logits.max(axis=-1), rtol=1e-4, atol=1e-4)

    for place in RECORDING:
        monkeypatch.setattr(place, "record", lambda *_: None)
    assert program() == plain


def rolled(weights: np.ndarray) -> np.ndarray:
    """Multiply the layers of [L, h, N, N], each half itself and half its heads' mean."""
    total = np.eye(weights.shape[-1])
    for layer in weights:
        total = (np.eye(len(total)) / 2 + sum(layer) / len(layer) / 2) @ total
    return total


# By what the head reads: fields, prefix, the rows of the rollout that it reads.
READERS = {
    "class token": ({}, 1, [0]),
    "class and distillation token": ({"distilled": True}, 2, [0, 1]),
    "registers": ({"num_registers": 2}, 3, [0]),
    "mean of patches": ({"pool": "gap"}, 1, range(1, 7)),
    "mean of all tokens": ({"pool": "gap", "pool_prefix": True}, 1, range(7)),
    "no prefix": ({"pool": "gap", "class_token": False}, 0, range(6)),
}


@pytest.mark.parametrize("case", READERS)
def test_the_map_of_a_vit_is_the_rollout_to_what_its_head_reads(case):
    fields, prefix, rows = READERS[case]
    cfg = models.variant("vit_mu16", patch=(4, 4), image_size=(8, 12), **fields)
    weights = attending(np.random.default_rng(0), 3, 1, 2, prefix + 6, prefix + 6)
    heat = heat_of(cfg, {"blocks/attn/weights": weights}, (8, 12))
    expected = rolled(weights[:, 0])[list(rows)].mean(axis=0)[prefix:].reshape(1, 2, 3)
    np.testing.assert_allclose(heat, expected, rtol=1e-5)


@pytest.mark.parametrize("all_tokens", [False, True])
def test_the_map_of_map_pooling_is_what_its_query_attends_to(all_tokens):
    fields = {"pool": "map", "pool_prefix": all_tokens, "patch": (4, 4), "image_size": (8, 12)}
    cfg = models.variant("vit_mu16", **fields)
    rng = np.random.default_rng(0)
    seen = {
        "map_pool/weights": attending(rng, 1, 2, 1, 6 + all_tokens),
        "blocks/attn/weights": attending(rng, 2, 1, 2, 7, 7),
    }
    expected = seen["map_pool/weights"][0, :, 0, int(all_tokens) :].mean(axis=0)
    np.testing.assert_allclose(heat_of(cfg, seen, (8, 12)).ravel(), expected, rtol=1e-5)
    extra = saliency.extra_rollout(cfg, {name: jnp.asarray(x) for name, x in seen.items()})
    through = rolled(seen["blocks/attn/weights"][:, 0])[1:, 1:].mean(axis=0)
    np.testing.assert_allclose(extra[0], through, rtol=1e-5)


@pytest.mark.parametrize("local", [0, 2, 3])
def test_the_rollout_of_a_convit_goes_on_where_the_class_token_enters(local):
    cfg = models.variant("convit_ti", patch=(4, 4), image_size=(8, 8), local_up_to_layer=local)
    cfg.depth = 3
    rng, seen, total = np.random.default_rng(0), {}, np.eye(4)
    if local:
        seen["local_blocks/attn/weights"] = attending(rng, local, 1, 2, 4, 4)
        total = rolled(seen["local_blocks/attn/weights"][:, 0])
    if local < 3:
        before = np.eye(5)
        before[1:, 1:] = total
        seen["blocks/attn/weights"] = attending(rng, 3 - local, 1, 2, 5, 5)
        total = (rolled(seen["blocks/attn/weights"][:, 0]) @ before)[:, 1:]
    heat = heat_of(cfg, seen, (8, 8))
    np.testing.assert_allclose(heat.ravel(), total[0], rtol=1e-5)
    assert ("first patch" in saliency.method(cfg)) == (local == 3)
