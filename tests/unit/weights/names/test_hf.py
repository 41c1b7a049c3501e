# SPDX-License-Identifier: Apache-2.0
"""Our parameters under transformers' names: exact there and back, strict, by the keys found."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.refusals import refused_by
from tests.unit.inference.exported import trained
from tests.unit.models.tiny import SHRINK, TINY
from vit_jax import models, trees
from vit_jax.errors import UserError
from vit_jax.models import ViTConfig
from vit_jax.models.layers.mlp import Gelu, MlpKind
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.models.layers.rope import Rope
from vit_jax.weights.apply import OtherHead, fill, in_memory
from vit_jax.weights.names import hf

VIT: ViTConfig = TINY["vit"]
SIGLIP = dataclasses.replace(VIT, class_token=False, pool=Pool.MAP, num_classes=0)
CLIP = dataclasses.replace(VIT, pre_norm=True, patch_bias=False, num_classes=0)
SCALED = dataclasses.replace(VIT, layer_scale=0.1)
REGISTERS = dataclasses.replace(SCALED, num_registers=2, pos_embed_prefix=False)
GATED = dataclasses.replace(SCALED, mlp=MlpKind.SWIGLU, num_classes=0)
DINOV3 = dataclasses.replace(
    VIT,
    num_classes=0,
    num_registers=2,
    key_bias=False,
    layer_scale=0.1,
    pos_embed=PosEmbed.NONE,
    rope=Rope.DINOV3,
    norm_eps=1e-5,
    gelu=Gelu.ERF,
    dynamic_image_size=True,
)
AIMV2 = models.variant("vit_l14_aimv2_lit", num_classes=0, scan_unroll=1)
AIMV2 = dataclasses.replace(
    AIMV2, **{**SHRINK[ViTConfig](AIMV2), "patch": (4, 4), "image_size": (8, 8)}
)
KINDS = {
    "vit": (VIT, "vit", "vit."),
    "bare vit": (dataclasses.replace(VIT, num_classes=0), "vit", ""),
    "deit": (TINY["deit"], "vit", "deit."),
    "deit of one head": (dataclasses.replace(VIT, num_registers=1), "vit", "deit."),
    "dinov2": (SCALED, "dinov2", "dinov2."),
    "registers": (REGISTERS, "dinov2", ""),
    "dinov2 g": (GATED, "dinov2", ""),
    "dinov3": (DINOV3, "dinov3", ""),
    "dinov3 s+": (dataclasses.replace(DINOV3, mlp=MlpKind.SWIGLU), "dinov3", ""),
    "dinov3 7b": (dataclasses.replace(DINOV3, qkv_bias=False, key_bias=True), "dinov3", ""),
    "siglip": (SIGLIP, "siglip", "vision_model."),
    "clip": (CLIP, "clip", "vision_model."),
    "aimv2": (AIMV2, "aimv2", ""),
}
# Typed from what transformers 5.23 saves; of the first layer, without what is before and behind.
KEYS = {
    "vit": "attention.attention.key attention.attention.query attention.attention.value "
    "attention.output.dense intermediate.dense layernorm_after layernorm_before output.dense",
    "dinov2": "attention.attention.key attention.attention.query attention.attention.value "
    "attention.output.dense layer_scale1 layer_scale2 mlp.fc1 mlp.fc2 norm1 norm2",
    "dinov2 g": "attention.attention.key attention.attention.query attention.attention.value "
    "attention.output.dense layer_scale1 layer_scale2 mlp.weights_in mlp.weights_out norm1 norm2",
    "dinov3": "attention.k_proj attention.o_proj attention.q_proj attention.v_proj layer_scale1 "
    "layer_scale2 mlp.down_proj mlp.up_proj norm1 norm2",
    "dinov3 s+": "attention.k_proj attention.o_proj attention.q_proj attention.v_proj layer_scale1 "
    "layer_scale2 mlp.down_proj mlp.gate_proj mlp.up_proj norm1 norm2",
    "siglip": "layer_norm1 layer_norm2 mlp.fc1 mlp.fc2 self_attn.k_proj self_attn.out_proj "
    "self_attn.q_proj self_attn.v_proj",
    "aimv2": "attention.k_proj attention.out_proj attention.q_proj attention.v_proj ffn.down_proj "
    "ffn.gate_proj ffn.up_proj rms_norm1 rms_norm2",
}
OTHERS = {
    "vit": "classifier vit.embeddings.cls_token vit.embeddings.patch_embeddings.projection "
    "vit.embeddings.position_embeddings vit.layernorm",
    "deit": "cls_classifier deit.embeddings.cls_token deit.embeddings.distillation_token "
    "deit.embeddings.patch_embeddings.projection deit.embeddings.position_embeddings "
    "deit.layernorm distillation_classifier",
    "registers": "classifier embeddings.cls_token embeddings.patch_embeddings.projection "
    "embeddings.position_embeddings embeddings.register_tokens layernorm",
    "dinov3": "embeddings.cls_token embeddings.patch_embeddings embeddings.register_tokens norm",
    "siglip": "vision_model.embeddings.patch_embedding vision_model.embeddings.position_embedding "
    "vision_model.head.attention.in_proj_bias vision_model.head.attention.in_proj_weight "
    "vision_model.head.attention.out_proj vision_model.head.layernorm vision_model.head.mlp.fc1 "
    "vision_model.head.mlp.fc2 vision_model.head.probe vision_model.post_layernorm",
    "clip": "vision_model.embeddings.class_embedding vision_model.embeddings.patch_embedding "
    "vision_model.embeddings.position_embedding vision_model.post_layernorm "
    "vision_model.pre_layrnorm",
    "aimv2": "embeddings.patch_embed embeddings.position_embedding embeddings.rms_norm "
    "head.cls_token head.k_proj head.output_proj head.v_proj rms_norm",
}


def written(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    cfg, layout, before = KINDS[name]
    variables = trained(cfg).variables
    return variables, hf.state(variables, cfg, hf.LAYOUTS[layout], before)


def read(
    state: dict[str, np.ndarray], cfg: ViTConfig, layout: str, **more: Any
) -> dict[str, np.ndarray]:
    found, source = hf.LAYOUTS[layout], in_memory(state, "x")
    before = hf.prefix(found, state)
    return fill(
        hf.entries(cfg, found, before),
        hf.seen(source, cfg, found, before),
        is_ignored=lambda key: hf.is_ignored(key, cfg, found, before),
        **more,
    )


def assert_same(found: dict[str, np.ndarray], variables: Any) -> None:
    expected = dict(trees.named_leaves(variables))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("name", KINDS)
def test_values_are_the_same_there_and_back(name: str) -> None:
    cfg, layout, _ = KINDS[name]
    variables, state = written(name)
    assert_same(read(state, cfg, layout), variables)


def stems(keys: list[str]) -> list[str]:
    return sorted({key.removesuffix(".weight").removesuffix(".bias") for key in keys})


@pytest.mark.parametrize("name", KEYS)
def test_keys_of_a_layer_are_transformers(name: str) -> None:
    inside = [key.partition(".0.")[2] for key in written(name)[1] if ".0." in key]
    assert stems([key.removesuffix(".lambda1") for key in inside]) == KEYS[name].split()


@pytest.mark.parametrize("name", OTHERS)
def test_keys_beside_the_layers_are_transformers(name: str) -> None:
    keys = [key for key in written(name)[1] if ".0." not in key and ".1." not in key]
    assert stems(keys) == OTHERS[name].split()


def test_shapes_are_transformers() -> None:
    shapes = {key: value.shape for key, value in written("clip")[1].items()}
    dim, patch = CLIP.dim, CLIP.patch[0]
    tokens = 1 + (CLIP.image_size[0] // patch) ** 2
    assert shapes["vision_model.embeddings.class_embedding"] == (dim,)
    assert shapes["vision_model.embeddings.position_embedding.weight"] == (tokens, dim)
    assert shapes["vision_model.embeddings.patch_embedding.weight"] == (dim, 3, patch, patch)
    head = {key: value.shape for key, value in written("siglip")[1].items() if "in_proj" in key}
    assert sorted(head.values()) == [(3 * dim,), (3 * dim, dim)]
    assert written("dinov2")[1]["classifier.weight"].shape == (VIT.num_classes, 2 * dim)


def test_keys_of_dinov3_have_no_bias() -> None:
    keys = [key for key in written("dinov3")[1] if key.startswith("layer.0.attention.")]
    biases = sorted(key.split(".")[-2] for key in keys if key.endswith("bias"))
    assert biases == ["o_proj", "q_proj", "v_proj"]


def test_names_of_modules_are_read_as_those_of_files() -> None:
    names = {
        "vit.encoder.layer.": "vit.layers.",
        ".attention.attention.query.": ".attention.q_proj.",
        ".attention.attention.key.": ".attention.k_proj.",
        ".attention.attention.value.": ".attention.v_proj.",
        ".attention.output.dense.": ".attention.o_proj.",
        ".intermediate.dense.": ".mlp.fc1.",
        ".output.dense.": ".mlp.fc2.",
    }
    variables, state = written("vit")
    for old, new in names.items():
        state = {key.replace(old, new): value for key, value in state.items()}
    assert "vit.layers.1.mlp.fc2.bias" in state
    assert_same(read(state, VIT, "vit"), variables)


def test_gates_of_dinov2_in_memory() -> None:
    variables, state = written("dinov2 g")
    for key in [key for key in state if ".weights_in." in key]:
        gate, value = np.split(state.pop(key), 2)  # transformers' Chunk(dim=0)
        state[key.replace("weights_in", "gate_proj")] = gate
        state[key.replace("weights_in", "up_proj")] = value
    state = {key.replace("weights_out", "down_proj"): value for key, value in state.items()}
    assert_same(read(state, *KINDS["dinov2 g"][:2]), variables)


def test_what_is_no_part_of_the_tower_is_ignored() -> None:
    one = np.ones(3, np.float32)
    others = {
        "vit": ["pooler.dense.weight", "decoder.mask_token", "decoder.decoder_pred.bias"],
        "registers": ["embeddings.mask_token"],
        "clip": ["text_model.final_layer_norm.bias", "logit_scale", "visual_projection.weight"],
        "siglip": ["text_model.head.bias", "logit_bias", "vision_model.embeddings.position_ids"],
        "aimv2": ["text_model.rms_norm.weight", "logit_scale", "visual_projection.weight"],
    }
    for name, keys in others.items():
        cfg, layout, _ = KINDS[name]
        variables, state = written(name)
        assert_same(read(state | dict.fromkeys(keys, one), cfg, layout), variables)


def test_all_else_is_named() -> None:
    _, state = written("vit")
    with refused_by("weights.apply._check_keys"):
        read(state | {"vit.extra": np.ones(3, np.float32)}, VIT, "vit")
    del state["vit.encoder.layer.1.attention.attention.key.bias"]
    with refused_by("weights.apply._check_keys") as caught:
        read(state, VIT, "vit")
    assert "vit.encoder.layer.1.attention.attention.key" in str(caught.value)


def test_another_head_is_known_as_one() -> None:
    _, state = written("vit")
    wider = dataclasses.replace(VIT, num_classes=VIT.num_classes + 1)
    with pytest.raises(OtherHead, match=r"classifier\.weight") as error:
        read(state, wider, "vit")
    found = read(state, wider, "vit", skip=error.value.patterns)
    assert "params/head/kernel" not in found
    without = dataclasses.replace(VIT, num_classes=0)
    with pytest.raises(OtherHead, match=r"more than the model: classifier") as error:
        read(state, without, "vit")
    assert len(read(state, without, "vit", skip=error.value.patterns)) == len(found)


def test_clips_projection_is_the_head_of_a_model_with_classes() -> None:
    variables, state = written("clip")
    projection = np.arange(CLIP.dim * 3, dtype=np.float32).reshape(3, CLIP.dim)
    state |= {"visual_projection.weight": projection}
    found = read(state, dataclasses.replace(CLIP, num_classes=3), "clip")
    np.testing.assert_array_equal(found.pop("params/head/kernel"), projection.T)
    np.testing.assert_array_equal(found.pop("params/head/bias"), np.zeros(3))
    assert_same(found, variables)


def test_flat_patches_are_a_convolution() -> None:
    variables, state = written("siglip")
    key = "vision_model.embeddings.patch_embedding.weight"
    flat = state[key].transpose(0, 2, 3, 1).reshape(SIGLIP.dim, -1)
    assert_same(read(state | {key: flat}, SIGLIP, "siglip"), variables)


def test_the_class_token_takes_its_position() -> None:
    variables, state = written("vit")
    apart = dataclasses.replace(VIT, pos_embed_prefix=False)
    found = read(state, apart, "vit")
    table = variables["params"]["pos_embed"]
    np.testing.assert_array_equal(found["params/pos_embed"], table[:, 1:])
    together = variables["params"]["cls_token"] + table[:, :1]
    np.testing.assert_array_equal(found["params/cls_token"], together)


def test_a_head_over_two_vectors_is_refused() -> None:
    _, state = written("dinov2")
    state["classifier.weight"] = state["classifier.weight"] + np.float32(1)
    with pytest.raises(UserError, match=r"mean of the patches.*model\.num_classes=0"):
        read(state, SCALED, "dinov2")
    assert "params/norm/scale" in read(state, dataclasses.replace(SCALED, num_classes=0), "dinov2")


def test_other_families_have_no_such_names() -> None:
    with pytest.raises(UserError, match="no names of transformers' are known for Swin"):
        hf.entries(TINY["swin"], hf.LAYOUTS["vit"], "")


def test_what_of_siglip_a_mean_of_its_tokens_does_not_need() -> None:
    siglip, mean = hf.LAYOUTS["siglip"], dataclasses.replace(SIGLIP, pool=Pool.GAP)
    pooling, other = "vision_model.head.probe", "vision_model.surplus"
    ignored = {cfg: hf.is_ignored(pooling, cfg, siglip, "vision_model.") for cfg in (SIGLIP, mean)}
    assert ignored == {SIGLIP: False, mean: True}
    assert not hf.is_ignored(other, mean, siglip, "vision_model.")
    assert not hf.is_ignored("head.probe", VIT, hf.LAYOUTS["vit"], "")
    aimv2, mean = hf.LAYOUTS["aimv2"], dataclasses.replace(AIMV2, pool=Pool.GAP)
    assert hf.is_ignored("head.cls_token", mean, aimv2, "")
    assert not hf.is_ignored("head.cls_token", AIMV2, aimv2, "")
