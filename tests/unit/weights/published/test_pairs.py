# SPDX-License-Identifier: Apache-2.0
"""Pairs of towers by the configs of transformers and open_clip."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.pairs_of_towers import pair
from vit_jax import models
from vit_jax.data import Crop, Resize
from vit_jax.errors import UserError
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.pool import Pool
from vit_jax.models.text import TextPool, TowerHead
from vit_jax.weights.published import pairs

CLIP = {
    "model_type": "clip",
    "text_config": {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 48,
        "max_position_embeddings": 12,
        "vocab_size": 99,
        "eos_token_id": 2,
    },
}
SIGLIP = {
    "model_type": "siglip",
    "text_config": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 10,
        "vocab_size": 80,
    },
}
OPEN_CLIP = {
    "model_cfg": {
        "embed_dim": 16,
        "vision_cfg": {
            "image_size": 32,
            "layers": 2,
            "width": 32,
            "head_width": 16,
            "patch_size": 8,
        },
        "text_cfg": {"context_length": 11, "vocab_size": 96, "width": 24, "heads": 2, "layers": 2},
    }
}


def _named(tree: dict[str, Any], shape: tuple[int, ...]) -> Any:
    kind = {"clip": "clip_quickgelu", "siglip": "siglip"}[tree["model_type"]]
    head = "text_projection.weight" if kind != "siglip" else "text_model.head.weight"
    return pairs.transformers(tree, pair(kind).image, {head: shape}, "config.json"), pair(kind)


def test_transformers_configs_are_the_pairs_of_the_goldens() -> None:
    for tree, shape in ((CLIP, (20, 24)), (SIGLIP, (32, 32))):
        assert pairs.is_pair(tree)
        found, expected = _named(tree, shape)
        assert found == expected
    assert not pairs.is_pair({"model_type": "clip_vision_model"})
    # An end token that the config names, and a text tower without a head.
    own = copy.deepcopy(CLIP)
    own["text_config"]["eos_token_id"] = 98
    assert _named(own, (20, 24))[0].text.end_id == 98
    found = pairs.transformers(SIGLIP, pair("siglip").image, {}, "config.json")
    assert (found.text.projection, found.dim) == (TowerHead.NONE, 32)


def test_open_clip_configs() -> None:
    assert pairs.open_clip(OPEN_CLIP, "x") == pair("open_clip")
    timm = {
        "embed_dim": 768,
        "init_logit_bias": -10,
        "vision_cfg": {
            "image_size": 256,
            "timm_model_name": "vit_base_patch16_siglip_256",
            "timm_pool": "map",
            "timm_proj": "none",
        },
        "text_cfg": {
            "context_length": 64,
            "vocab_size": 32_000,
            "width": 768,
            "heads": 12,
            "layers": 12,
            "no_causal_mask": True,
            "proj_bias": True,
            "pool_type": "last",
            "norm_kwargs": {"eps": 1e-6},
            "act_kwargs": {"approximate": "tanh"},
        },
    }
    found = pairs.open_clip(timm, "x")
    size = {"image_size": (256, 256), "num_classes": 0}
    # timm's activation is the exact one, that of SigLIP's authors is not.
    assert found.image == models.variant("vit_b16_siglip", gelu="erf", **size)
    assert found.image.pool is Pool.MAP
    assert (found.has_bias, found.image_projection) == (True, TowerHead.NONE)
    text = found.text
    assert (text.pool, text.causal, text.gelu) == (TextPool.LAST, False, Gelu.TANH)
    assert text.projection is TowerHead.AFFINE


def _set(*path: str, value: Any) -> Callable[[], Any]:
    def refused() -> Any:
        tree = copy.deepcopy(OPEN_CLIP["model_cfg"])
        node: Any = tree
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value
        return pairs.open_clip(tree, "its config")

    return refused


def _clip(**changes: Any) -> Callable[[], Any]:
    tree = {**CLIP, "text_config": {**CLIP["text_config"], **changes}}
    return lambda: _named(tree, (20, 24))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "language model": (_set("text_cfg", "hf_model_name", value="roberta"), "is a language model"),
    "CoCa": (_set("text_cfg", "embed_cls", value=True), "is CoCa's text tower"),
    "CoCa's pool": (_set("vision_cfg", "attentional_pool", value=True), "is CoCa's"),
    "ResNet": (_set("vision_cfg", "layers", value=[3, 4, 6, 3]), "is a ResNet of CLIP's"),
    "pool": (_set("text_cfg", "pool_type", value="\x1b[2Jmax"), "pool_type in its config"),
    "no towers": (_set("vision_cfg", value=7), "vision_cfg=7 must be an object"),
    "size": (_set("vision_cfg", "image_size", value=-1), "image_size=-1 must be one or two"),
    "number": (_set("text_cfg", "layers", value="12"), "layers='12' must be a whole number"),
    "too many": (_clip(vocab_size=2**40), "vocab_size=1099511627776 must be a whole number"),
    "gelu": (_clip(hidden_act="relu6"), "hidden_act in config.json: text_config"),
}


def test_what_no_tower_here_has_is_one_line(subtests: pytest.Subtests) -> None:
    for name, (build, message) in REFUSED.items():
        with subtests.test(name):
            with pytest.raises(UserError) as caught:
                build()
            assert message in str(caught.value)
            assert str(caught.value).isprintable()


def test_open_clip_images() -> None:
    tree = {"mean": [0.5] * 3, "interpolation": "bilinear", "resize_mode": "squash"}
    found = pairs.open_clip_images({"preprocess_cfg": tree}, pair("open_clip").image, "x")
    assert found.mean == (0.5, 0.5, 0.5)
    assert found.std == (0.26862954, 0.26130258, 0.27577711)  # CLIP's, where none is given
    assert found.transform.crop is Crop.RESIZE
    assert found.transform.resize is Resize.BILINEAR_ANTIALIAS
    tree["resize_mode"] = "longest"
    with pytest.raises(UserError, match=r"^unknown resize_mode in x: 'longest'; did you mean"):
        pairs.open_clip_images({"preprocess_cfg": tree}, pair("siglip").image, "x")
