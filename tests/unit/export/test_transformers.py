# SPDX-License-Identifier: Apache-2.0
"""Which model type of transformers' a config becomes, and what none of them is."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.unit.inference.exported import trained
from tests.unit.models.tiny import TINY
from tests.unit.weights.names.test_hf import AIMV2, CLIP, DINOV3, REGISTERS, SCALED, SIGLIP, VIT
from vit_jax import trees
from vit_jax.errors import UserError
from vit_jax.export import transformers
from vit_jax.models.layers.mlp import Gelu, MlpKind
from vit_jax.models.layers.norm import TokenNorm
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed, PosEmbedAt, sincos2d
from vit_jax.weights.apply import fill, in_memory
from vit_jax.weights.names import hf, hf_config

GOLDEN = Path(__file__).parents[2] / "golden"
GAP = dataclasses.replace(VIT, class_token=False, pool=Pool.GAP)
KINDS = {
    "vit": VIT,
    "deit": TINY["deit"],
    "dinov2": SCALED,
    "dinov2_with_registers": REGISTERS,
    "dinov3_vit": DINOV3,
    "siglip_vision_model": SIGLIP,
    "siglip": GAP,
    "ijepa": dataclasses.replace(GAP, gelu=Gelu.ERF),
    "clip_vision_model": CLIP,
    "aimv2_vision_model": AIMV2,
}


def read_again(cfg: Any, variables: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """Return the model and the variables that the loader has of what is written."""
    state = transformers.to_hf(variables, cfg)
    tree = transformers.config(cfg, [f"name {i}" for i in range(cfg.num_classes)])
    found = hf_config.model(tree, {key: x.shape for key, x in state.items()}, "config.json")
    layout = hf_config.Facts(tree, "config.json").layout
    before = hf.prefix(layout, state)
    read = fill(
        hf.entries(found, layout, before),
        hf.seen(in_memory(state), found, layout, before),
        is_ignored=lambda key: hf.is_ignored(key, found, layout, before),
    )
    return found, read


GATED = dataclasses.replace(DINOV3, mlp=MlpKind.SWIGLU, qkv_bias=False, key_bias=True)
# 24 = 2/3 of 2 * 16, rounded up to a multiple of 8.
WIDE = dataclasses.replace(SCALED, mlp=MlpKind.SWIGLU, mlp_dim=24, num_classes=0, gelu=Gelu.ERF)


@pytest.mark.parametrize("cfg", [GATED, WIDE])
def test_a_gated_mlp_is_read_again(cfg: Any) -> None:
    cfg = dataclasses.replace(cfg, gelu=Gelu.ERF)
    variables = trained(cfg).variables
    found, read = read_again(cfg, variables)
    assert (found.mlp, found.mlp_dim, found.qkv_bias) == (cfg.mlp, cfg.mlp_dim, cfg.qkv_bias)
    for name, value in trees.named_leaves(variables):
        np.testing.assert_array_equal(read[name], value, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_config_becomes_its_model_type_and_is_read_again(kind: str) -> None:
    cfg = KINDS[kind]
    assert transformers.kind(cfg) == kind
    variables = trained(cfg).variables
    found, read = read_again(cfg, variables)
    free = ("init", "zero_head", "scan_unroll")
    same = {key: getattr(found, key) for key in free}
    assert found == dataclasses.replace(transformers.standard(cfg), **same)
    expected = dict(trees.named_leaves(variables))
    assert read.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(read[name], value, err_msg=name)


def test_aimv2_is_written_as_it_was_read() -> None:
    for name in ("head", "native"):
        stored = load_file(GOLDEN / f"hf_aimv2_{name}.safetensors")
        tree = json.loads((GOLDEN / f"hf_aimv2_{name}.config.json").read_text())
        cfg = hf_config.model(tree, {key: x.shape for key, x in stored.items()}, "config.json")
        layout = hf.LAYOUTS["aimv2"]
        read = fill(hf.entries(cfg, layout, ""), hf.seen(in_memory(stored), cfg, layout, ""))
        state = transformers.to_hf(trees.nest(read), cfg)
        assert state.keys() == stored.keys()
        for key, value in stored.items():
            np.testing.assert_array_equal(state[key], value, err_msg=key)
        written = transformers.config(cfg, ())
        assert written.items() <= tree.items()


def test_what_transformers_has_besides_is_added() -> None:
    plain = dataclasses.replace(
        VIT, pos_embed=PosEmbed.SINCOS2D, patch_bias=False, qkv_bias=False, num_registers=2
    )
    found, read = read_again(plain, trained(plain).variables)
    assert (found.layer_scale, found.patch_bias, found.qkv_bias) == (1.0, True, False)
    np.testing.assert_array_equal(
        read["params/pos_embed"][0], sincos2d(2, 2, 16, PosEmbed.SINCOS2D)
    )
    np.testing.assert_array_equal(read["params/patch_embed/bias"], np.zeros(16))
    np.testing.assert_array_equal(read["params/blocks/ls1/gamma"], np.ones((2, 16)))


def test_positions_of_registers_are_theirs() -> None:
    cfg = dataclasses.replace(SCALED, num_registers=2)
    variables = trained(cfg).variables
    _, read = read_again(cfg, variables)
    params = variables["params"]
    table = params["pos_embed"]
    np.testing.assert_array_equal(read["params/pos_embed"], table[:, 3:])
    np.testing.assert_array_equal(read["params/cls_token"], params["cls_token"] + table[:, :1])
    np.testing.assert_array_equal(read["params/reg_token"], params["reg_token"] + table[:, 1:3])


def test_widths_factor_is_in_the_weights() -> None:
    cfg = dataclasses.replace(VIT, mup_base_dim=8, mup_base_heads=2)
    variables = trained(cfg).variables
    found, read = read_again(cfg, variables)
    assert found.mup_base_dim == 0
    own = variables["params"]["blocks"]["attn"]["qkv"]["kernel"]
    assert not np.array_equal(read["params/blocks/attn/qkv/kernel"], own)


REFUSED = [
    (dataclasses.replace(DINOV3, num_classes=3), "dinov3_vit has model.num_classes=0, not 3"),
    (
        dataclasses.replace(VIT, mlp=MlpKind.SWIGLU),
        "transformers' vit has model.mlp=gelu, not swig",
    ),
    (TINY["swin"], "only ViTs and ConvNeXts are written .*, and this is a Swin"),
    (dataclasses.replace(VIT, qk_norm=True), "no ViT of transformers' has model.qk_norm=True"),
    (dataclasses.replace(VIT, pos_embed=PosEmbed.RELATIVE), "has model.pos_embed=relative"),
    (dataclasses.replace(VIT, pos_embed_at=PosEmbedAt.SHARED), "has model.pos_embed_at=shared"),
    (dataclasses.replace(VIT, pre_logits_dim=4), "has model.pre_logits_dim=4"),
    (dataclasses.replace(VIT, image_size=(8, 12)), r"not model.image_size=\(8, 12\)"),
    (dataclasses.replace(GAP, fc_norm=True), "has model.fc_norm=True"),
    (dataclasses.replace(VIT, pool=Pool.GAP), "transformers' vit has model.pool=cls, not gap"),
    (
        dataclasses.replace(SIGLIP, num_classes=3),
        "transformers' siglip has model.pool=gap, not map",
    ),
    (dataclasses.replace(CLIP, patch_bias=True), "has model.patch_bias=False, not True"),
    (dataclasses.replace(SCALED, mlp_dim=40), "transformers' dinov2 has model.mlp_dim=32, not 40"),
    (
        dataclasses.replace(AIMV2, num_classes=3),
        "aimv2_vision_model has model.num_classes=0, not 3",
    ),
    (dataclasses.replace(AIMV2, proj_bias=True), "has model.proj_bias=False, not True"),
    (
        dataclasses.replace(AIMV2, patch_norm=False),
        "siglip_vision_model has model.pool=gap, not que",
    ),
    (dataclasses.replace(VIT, norm=TokenNorm.RMS), "vit has model.norm=layer, not rms"),
    (dataclasses.replace(TINY["deit"], layer_scale=0.1), "has model.layer_scale=0.0, not 0.1"),
]


@pytest.mark.parametrize("cfg, message", REFUSED)
def test_what_none_of_them_computes_is_named(cfg: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        transformers.config(cfg, ())


def test_clips_projection_has_no_bias() -> None:
    cfg = dataclasses.replace(CLIP, num_classes=3)
    variables = trained(cfg).variables
    with pytest.raises(UserError, match=r"no bias in its projection.*model\.num_classes=0"):
        transformers.to_hf(variables, cfg)
    variables["params"]["head"]["bias"][:] = 0
    assert "visual_projection.bias" not in transformers.to_hf(variables, cfg)


def test_names_of_classes_are_written() -> None:
    tree = transformers.config(VIT, ("cat", "dog", "owl"), several=True)
    assert tree["id2label"] == {"0": "cat", "1": "dog", "2": "owl"}
    assert tree["label2id"] == {"cat": 0, "dog": 1, "owl": 2}
    assert tree["problem_type"] == "multi_label_classification"
    assert tree["architectures"] == ["ViTForImageClassification"]
    assert "id2label" not in transformers.config(SIGLIP, ())
