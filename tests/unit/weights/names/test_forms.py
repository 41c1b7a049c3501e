# SPDX-License-Identifier: Apache-2.0
"""The authors' files of the later ViTs, written from our variables, are read as these variables."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from tests.refusals import refused_by
from tests.unit.weights.google_writer import random_variables
from vit_jax import models, trees, weights
from vit_jax.errors import UserError
from vit_jax.models import ViTConfig
from vit_jax.weights.apply import fill, in_memory
from vit_jax.weights.names import timm

State = dict[str, np.ndarray]
_SMALL = {"image_size": (8, 8), "patch": (4, 4), "dim": 16, "depth": 2, "num_heads": 2}
_SMALL |= {"mlp_dim": 20, "num_classes": 3}


def small(name: str, **fields: Any) -> ViTConfig:
    return models.variant(name, **{**_SMALL, **fields})


def read(state: State, cfg: ViTConfig) -> Any:
    source = timm.with_timm_names(in_memory(state), cfg)
    return trees.nest(fill(timm.entries(cfg), source, is_ignored=timm.is_ignored))


def renamed(state: State, *rules: tuple[str, str]) -> State:
    """Return the state under other names; each rule must find something."""
    for pattern, replacement in rules:
        assert any(re.search(pattern, key) for key in state), pattern
        state = {re.sub(pattern, replacement, key): value for key, value in state.items()}
    return state


_W = ((r"\.fc1_g\.", ".w1."), (r"\.fc1_x\.", ".w2."), (r"\.fc2\.", ".w3."))


def dinov3(state: State) -> State:
    for i in range(2):
        q, v = (state.pop(f"blocks.{i}.attn.{one}_bias") for one in "qv")
        masked = np.full_like(q, 7)  # whatever lies there
        state[f"blocks.{i}.attn.qkv.bias"] = np.concatenate([q, masked, v])
        mask = np.repeat([1, 0, 1], len(q)).astype(np.float32)
        state[f"blocks.{i}.attn.qkv.bias_mask"] = mask
    state |= {"rope_embed.periods": np.ones(2), "mask_token": np.ones((1, 16))}
    state |= {"local_cls_norm.weight": np.ones(16)}
    return renamed(
        state, *_W, (r"^reg_token$", "storage_tokens"), (r"\.gamma_([12])$", r".ls\1.gamma")
    )


def dinov2(state: State) -> State:
    token = np.full((1, 1, 16), 0.5, np.float32)
    state["pos_embed"] = np.concatenate([token, state["pos_embed"]], axis=1)
    state["cls_token"] = state["cls_token"] - token
    return renamed(
        state, (r"\.fc1\.", ".w12."), (r"\.fc2\.", ".w3."), (r"^reg_token$", "register_tokens")
    )


def eva02(state: State) -> State:
    state["rope.freqs_cos"] = np.ones((16, 8))
    state["blocks.0.attn.rope.freqs_sin"] = np.ones((16, 8))
    return renamed(
        state, *_W, (r"\.mlp\.norm\.", ".mlp.ffn_ln."), (r"\.([qv])_proj\.bias$", r".\1_bias")
    )


def naver(state: State) -> State:
    state["freqs"] = state.pop("rope.freqs").reshape(2, 2, -1)
    state |= {"freqs_t_x": np.ones(4), "freqs_t_y": np.ones(4)}
    return state


def perception(state: State) -> State:
    """Name PE's image tower beside its text tower, without a bias of the projection."""
    state["proj"] = state.pop("head.weight").T
    assert not state.pop("head.bias").any()
    for kind in ("weight", "bias"):
        parts = [state.pop(f"attn_pool.{one}.{kind}") for one in ("q", "kv")]
        state[f"attn_pool.attn.in_proj_{kind}"] = np.concatenate(parts)
    state["class_embedding"] = state.pop("cls_token")[0, 0]
    state["positional_embedding"] = state.pop("pos_embed")[0]
    state = renamed(
        state,
        (r"^patch_embed\.proj\.", "conv1."),
        (r"^attn_pool\.proj\.", "attn_pool.attn.out_proj."),
        (r"^attn_pool\.norm\.", "attn_pool.layernorm."),
        (r"^attn_pool\.latent$", "attn_pool.probe"),
        (r"^norm_pre\.", "ln_pre."),
        (r"^norm\.", "ln_post."),
        (r"\.norm([12])\.", r".ln_\1."),
        (r"\.attn\.qkv\.", ".attn.in_proj_"),
        (r"^(blocks.*)\.attn\.proj\.", r"\1.attn.out_proj."),
        (r"\.mlp\.fc1\.", ".mlp.c_fc."),
        (r"\.mlp\.fc2\.", ".mlp.c_proj."),
        (r"^blocks\.", "transformer.resblocks."),
        ("^", "visual."),
    )
    return {**state, "text_projection": np.ones((4, 4)), "logit_scale": np.ones(())}


def moco(state: State) -> State:
    state = renamed(state, ("^", "module.base_encoder."))
    state |= {"module.base_encoder.head.0.weight": np.ones((3, 3))}
    return {**state, "module.momentum_encoder.cls_token": np.ones((1, 1, 16))}


CASES: dict[str, tuple[ViTConfig, Callable[[State], State]]] = {
    "DINOv3 S+": (small("vit_s16plus_dinov3"), dinov3),
    "DINOv2 g with registers": (small("vit_g14_dinov2_reg"), dinov2),
    "EVA-02 B": (small("eva02_b14"), eva02),
    "RoPE-ViT mixed": (small("vit_s16_rope_mixed"), naver),
    "PE": (small("vit_b16_pe", pool_heads=4), perception),
    "MoCo v3": (small("vit_s16_mocov3", num_classes=0), moco),
}


@pytest.mark.parametrize("name", CASES)
def test_authors_and_timm_names_give_the_same(name: str) -> None:
    cfg, write = CASES[name]
    variables = random_variables(models.abstract(cfg))
    if name == "PE":
        variables["params"]["head"]["bias"] = np.zeros(3, np.float32)
    state = weights.to_timm(variables, cfg)
    for found in (weights.from_timm(state, cfg), read(write(dict(state)), cfg)):
        assert jax.tree.structure(found) == jax.tree.structure(variables)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, variables)


# By name, since a form and its inverse could be wrong together: timm 1.0.31's own.
NAMES = {
    "vit_s16plus_dinov3": "gamma_1 attn.q_bias attn.v_bias attn.qkv.weight mlp.fc1_g.bias",
    "vit_7b16_dinov3": "gamma_2 attn.qkv.weight mlp.fc1_x.weight",
    "vit_g14_dinov2": "ls1.gamma attn.qkv.bias mlp.fc1.weight",
    "eva02_s14": "attn.q_bias attn.qkv.weight mlp.fc1.bias",
    "eva02_b14": "attn.q_proj.bias attn.k_proj.weight attn.v_proj.bias mlp.norm.weight",
    "vit_s16_rope": "gamma_1 attn.qkv.bias mlp.fc1.weight",
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_timm(name: str) -> None:
    state = timm_state(small(name))
    assert {f"blocks.1.{key}" for key in NAMES[name].split()} <= state.keys()


def timm_state(cfg: ViTConfig) -> State:
    return weights.to_timm(random_variables(models.abstract(cfg)), cfg)


def test_frequencies_are_one_tensor_in_timm() -> None:
    assert timm_state(small("vit_s16_rope_mixed"))["rope.freqs"].shape == (2, 2, 2, 4)


def test_zeros_that_the_authors_keep_are_no_bias() -> None:
    cfg = small("vit_b16_dinov3", qkv_bias=False)
    state = renamed(timm_state(cfg), (r"\.gamma_([12])$", r".ls\1.gamma"))
    for i in range(2):
        state[f"blocks.{i}.attn.qkv.bias"] = np.zeros(48, np.float32)
        state[f"blocks.{i}.attn.qkv.bias_mask"] = np.ones(48, np.float32)
    read(dict(state), cfg)
    state["blocks.1.attn.qkv.bias"][5] = 1
    with refused_by("weights.apply._check_keys") as caught:
        read(state, cfg)
    assert "blocks.1.attn.qkv.bias [48]" in str(caught.value)


def test_a_bias_of_the_keys_is_not_dropped() -> None:
    with_bias = small("vit_s16_rope")
    cfg = dataclasses.replace(with_bias, key_bias=False)
    with pytest.raises(UserError, match=r"attn.qkv.bias has a bias of the keys; set model.key_bia"):
        read(timm_state(with_bias), cfg)


def test_a_factor_on_logits_is_in_the_biases_of_the_queries_alone() -> None:
    cfg = small("vit_s16_dinov3", mup_base_dim=8, mup_base_heads=2)
    variables = random_variables(models.abstract(cfg))
    plain = weights.to_timm(variables, dataclasses.replace(cfg, mup_base_dim=0, mup_base_heads=0))
    state, factor = weights.to_timm(variables, cfg), models.logit_factor(cfg)
    assert factor == pytest.approx(0.5**0.5)
    for name, by in (("q_bias", factor), ("v_bias", 1)):
        key = f"blocks.0.attn.{name}"
        np.testing.assert_allclose(state[key], by * plain[key], rtol=1e-6)
