# SPDX-License-Identifier: Apache-2.0
"""transformers' config.json: what it says, what it leaves out, what cannot be."""

from typing import Any

import pytest

from vit_jax import models
from vit_jax.errors import UserError
from vit_jax.models import ViTConfig
from vit_jax.models.layers.init import Init
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.pool import Pool
from vit_jax.weights.layout import Shape
from vit_jax.weights.names import hf_config

HEAD = {"classifier.weight": (5, 8), "classifier.bias": (5,)}


def model(kind: str, shapes: dict[str, Shape] | None = None, **values: Any) -> Any:
    cfg = hf_config.model({"model_type": kind, **values}, shapes or {}, "x/config.json")
    models.create(cfg)
    return cfg


def test_defaults_of_the_classes_are_the_published_networks() -> None:
    # google/siglip-base-patch16-224 and laion's CLIP say little more than their type.
    stem = {"vision_model.embeddings.patch_embedding.weight": (768, 3, 16, 16)}
    probe = {"vision_model.head.probe": (1, 1, 768)}
    siglip = model("siglip", {**stem, **probe}, vision_config={})
    assert siglip == models.variant("vit_b16_siglip", num_classes=0)
    assert model("clip", vision_config={}) == models.variant("vit_b32_clip", num_classes=0)
    deit = models.variant("deit_b16", num_classes=0, norm_eps=1e-12, zero_head=True)
    assert model("vit") == model("vit_mae") == deit
    fields = {"hidden_size": 1280, "num_hidden_layers": 32, "intermediate_size": 5120}
    ijepa = model("ijepa", patch_size=14, num_attention_heads=16, layer_norm_eps=1e-6, **fields)
    found = models.variant("vit_h14_ijepa", num_classes=0, zero_head=True)
    assert ijepa == found
    dinov2 = model("dinov2", image_size=518)
    assert (dinov2.patch, dinov2.image_size, dinov2.layer_scale) == ((14, 14), (518, 518), 1.0)


def test_sizes_are_read() -> None:
    found = model(
        "vit",
        HEAD,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=40,
        hidden_act="gelu_new",
        layer_norm_eps=1e-6,
        image_size=[32, 48],
        patch_size=8,
        num_channels=1,
        qkv_bias=False,
    )
    assert found == ViTConfig(
        dim=24,
        depth=3,
        num_heads=2,
        mlp_dim=40,
        gelu=Gelu.TANH,
        image_size=(32, 48),
        patch=(8, 8),
        channels=1,
        qkv_bias=False,
        num_classes=5,
        init=Init.TIMM,
    )


def test_what_no_config_says_the_keys_do() -> None:
    token = {"deit.embeddings.distillation_token": (1, 1, 768)}
    stem = {"deit.embeddings.patch_embeddings.projection.weight": (768, 3, 16, 16)}
    one = model("deit", {**stem, **token, **HEAD})
    assert (one.num_registers, one.distilled, one.num_classes) == (1, False, 5)
    heads = {"cls_classifier.weight": (7, 768), "distillation_classifier.weight": (7, 768)}
    two = model("deit", {**stem, **token, **heads})
    assert (two.num_registers, two.distilled, two.num_classes) == (0, True, 7)
    registers = model("dinov2_with_registers", num_register_tokens=3, mlp_ratio=2)
    assert (registers.num_registers, registers.pos_embed_prefix) == (3, False)
    assert registers.mlp_dim == 2 * registers.dim
    assert model("siglip_vision_model").pool is Pool.GAP
    assert model("siglip_vision_model", {"head.probe": (1, 1, 768)}).pool is Pool.MAP
    both = model("siglip_vision_model", {"head.probe": (1, 1, 768), **HEAD})
    assert both.pool is Pool.GAP  # which is what SiglipForImageClassification does
    assert model("siglip2_vision_model", num_patches=64).image_size == (128, 128)
    assert model("clip_vision_model", HEAD).num_classes == 0


def test_dinov3_is_the_variant() -> None:
    small = model("dinov3_vit", num_register_tokens=4, layerscale_value=1e-5)
    free = {"num_classes": 0, "zero_head": True}
    assert small == models.variant("vit_s16_dinov3", **free)
    sizes = {"hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32}
    biases = {"query_bias": False, "value_bias": False}
    more = {"intermediate_size": 8192, "use_gated_mlp": True, "hidden_act": "silu"}
    large = model(
        "dinov3_vit", num_register_tokens=4, layerscale_value=1e-5, **sizes, **biases, **more
    )
    expected = models.variant("vit_7b16_dinov3", **free)
    assert large == expected
    giant = model(
        "dinov2",
        hidden_size=1536,
        num_hidden_layers=40,
        num_attention_heads=24,
        use_swiglu_ffn=True,
        layerscale_value=1e-5,
    )
    assert giant == models.variant("vit_g14_dinov2", **free)


def test_convnexts_are_the_variants() -> None:
    free = {"num_classes": 0, "head_norm_eps": 1e-12}
    assert model("convnext") == models.variant("convnext_t", **free)
    assert model("convnextv2") == models.variant("convnextv2_t", **free)
    base = {"depths": [3, 3, 27, 3], "hidden_sizes": [128, 256, 512, 1024]}
    assert model("dinov3_convnext", **base) == models.variant("convnext_b", num_classes=0)
    for values, told in (
        ({"depths": [1]}, r"depths=\[1\] must have a number for each of 4 hidden_sizes"),
        ({"depths": "3"}, r"depths='3' must hold 1 to 16 whole numbers"),
        ({"hidden_sizes": [0] * 4}, "hidden_sizes=.* must hold 1 to 16 whole numbers"),
        ({"patch_size": 2}, "patch_size=2 is not known here"),
    ):
        with pytest.raises(UserError, match=told):
            model("convnext", **values)


def test_aimv2_is_the_variant() -> None:
    free = {"num_classes": 0, "zero_head": True}
    for values, name in (
        ({}, "vit_l14_aimv2_lit"),
        ({"use_head": False}, "vit_l14_aimv2"),
        ({"use_head": False, "is_native": True}, "vit_l14_aimv2_native"),
    ):
        assert model("aimv2_vision_model", **values) == models.variant(name, **free)
    assert model("aimv2", vision_config={}) == models.variant("vit_l14_aimv2_lit", **free)


BAD = [
    ({"model_type": "swin"}, r"unknown model_type in x/config.json: 'swin'; .*vit"),
    ({"model_type": ["vit"]}, "unknown model_type"),
    ({"model_type": None}, "unknown model_type"),
    ({"hidden_size": "768"}, r"x/config.json: hidden_size='768' must be a whole number"),
    ({"hidden_size": 10**12}, "must be a whole number from 1 to 65,536"),
    ({"num_hidden_layers": 10**6}, "from 1 to 1,024"),
    ({"num_attention_heads": True}, "num_attention_heads=True"),
    ({"image_size": [224, 224, 3]}, "must be one or two whole numbers"),
    ({"image_size": 0}, "must be one or two"),
    ({"layer_norm_eps": float("nan")}, "must be a number from 0"),
    ({"layer_norm_eps": None}, "layer_norm_eps=None"),
    ({"qkv_bias": 1}, "must be true or false"),
    ({"hidden_act": "relu"}, r"unknown hidden_act in x/config.json: 'relu'; .*gelu"),
    ({"model_type": "clip"}, "vision_config must hold the image's tower"),
    ({"model_type": "dinov2", "mlp_ratio": "4"}, "mlp_ratio='4' must be a number"),
    ({"model_type": "dinov3_vit", "proj_bias": False}, "proj_bias=False is not known here"),
    ({"model_type": "dinov3_vit", "value_bias": False}, "query_bias=True must be as value_bias"),
    ({"model_type": "dinov3_vit", "use_gated_mlp": True}, "hidden_act='gelu' must be silu"),
    ({"model_type": "aimv2_vision_model", "hidden_act": "gelu"}, "hidden_act='gelu' must be silu"),
    ({"model_type": "aimv2"}, "vision_config must hold the image's tower"),
    ({"model_type": "dinov3_vit", "rope_theta": -1}, "rope_theta=-1 must be a number"),
]


@pytest.mark.parametrize("values, message", BAD)
def test_what_cannot_be_is_named(values: dict[str, Any], message: str) -> None:
    tree = {"model_type": "vit", **values}
    with pytest.raises(UserError, match=message) as error:
        hf_config.model(tree, {}, "x/config.json")
    assert "\n" not in str(error.value)


def names(count: int, id2label: Any) -> tuple[str, ...]:
    return hf_config.class_names({"id2label": id2label}, count, "x/config.json")


def test_classes_have_the_names_of_the_file() -> None:
    assert names(2, {"1": "dog", "0": "cat\n"}) == (repr("cat\n"), "dog")
    assert (
        names(2, {"0": "LABEL_0", "1": "LABEL_1"}) == names(2, None) == names(0, {"0": "a"}) == ()
    )
    for wrong in ({"0": "a"}, {"0": "a", "2": "b"}, ["a", "b"], 7):
        with pytest.raises(UserError, match="id2label must name each of the classes 0 to 1"):
            names(2, wrong)
    with pytest.raises(UserError, match="id2label must hold names"):
        names(1, {"0": 5})


def test_a_config_of_timms_is_no_config_of_transformers() -> None:
    assert hf_config.is_transformers({"model_type": "vit"})
    assert not hf_config.is_transformers({"architecture": "vit_tiny_patch16_224"})
