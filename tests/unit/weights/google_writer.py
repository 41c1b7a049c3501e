# SPDX-License-Identifier: Apache-2.0
"""Our parameters as Google's codebases would have saved them, written out by hand.

It shares nothing with the reader that it tests.
"""

from typing import Any

import numpy as np

Flat = dict[str, np.ndarray]


def random_variables(tree: Any, seed: int = 0) -> Any:
    """Return a tree of random float32 arrays of the same shapes."""
    generator = np.random.default_rng(seed)

    def draw(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: draw(value) for key, value in node.items()}
        return generator.normal(size=node.shape).astype(np.float32) * 0.2

    return draw(tree)


def _put(out: Flat, name: str, layer: dict[str, np.ndarray], names: dict[str, str]) -> None:
    for ours, theirs in names.items():
        if ours in layer:
            out[f"{name}/{theirs}"] = layer[ours]


def _dense(out: Flat, name: str, layer: dict[str, np.ndarray]) -> None:
    _put(out, name, layer, {"kernel": "kernel", "bias": "bias"})


def _norm(out: Flat, name: str, layer: dict[str, np.ndarray], rank: int = 1) -> None:
    for key in ("scale", "bias"):
        out[f"{name}/{key}"] = layer[key].reshape((1,) * (rank - 1) + (-1,))


def _heads(out: Flat, name: str, layer: dict[str, np.ndarray], which: list[str], h: int) -> None:
    """Split our columns (head, {q,k,v}, d) into one (D, h, d) each."""
    for key, value in layer.items():
        columns = value.reshape(*value.shape[:-1], h, len(which), -1)
        for i, one in enumerate(which):
            out[f"{name}/{one}/{key}"] = columns[..., i, :]


def _out(out: Flat, name: str, layer: dict[str, np.ndarray], h: int) -> None:
    dim = layer["kernel"].shape[1]
    out[f"{name}/out/kernel"] = layer["kernel"].reshape(h, -1, dim)
    out[f"{name}/out/bias"] = layer["bias"]


def _block(out: Flat, name: str, block: Any, h: int, numbers: tuple[int, int, int, int]) -> None:
    norm1, attention, norm2, mlp = numbers
    _norm(out, f"{name}/LayerNorm_{norm1}", block["norm1"])
    _norm(out, f"{name}/LayerNorm_{norm2}", block["norm2"])
    name_of = f"{name}/MultiHeadDotProductAttention_{attention}"
    _heads(out, name_of, block["attn"]["qkv"], ["query", "key", "value"], h)
    _out(out, name_of, block["attn"]["proj"], h)
    _dense(out, f"{name}/MlpBlock_{mlp}/Dense_0", block["mlp"]["fc1"])
    _dense(out, f"{name}/MlpBlock_{mlp}/Dense_1", block["mlp"]["fc2"])


def _layer(tree: Any, i: int) -> Any:
    return {k: _layer(v, i) if isinstance(v, dict) else v[i] for k, v in tree.items()}


BEFORE_LINEN, LINEN = (0, 1, 2, 3), (0, 0, 1, 0)


def vit(
    params: Any,
    heads: int,
    *,
    numbers: tuple[int, int, int, int] = LINEN,
    scan: bool = False,
    table: str = "Transformer/posembed_input/pos_embedding",
    norm_rank: int = 4,
) -> Flat:
    """Write a ViT, or a hybrid whose GroupNorms have `norm_rank` axes."""
    out: Flat = {}
    if "backbone" in params:
        _backbone(out, params["backbone"], norm_rank)
    _dense(out, "embedding", params["patch_embed"])
    if "cls_token" in params:
        out["cls"] = params["cls_token"]
    if "pos_embed" in params:
        out[table] = params["pos_embed"]
    blocks = params["blocks"]
    depth = len(blocks["norm1"]["scale"])
    each: list[Flat] = [{} for _ in range(depth)]
    for i in range(depth):
        _block(each[i], "", _layer(blocks, i), heads, numbers)
    for key in each[0]:
        if scan:
            out[f"Transformer/encoderblock{key}"] = np.stack([one[key] for one in each])
        else:
            for i in range(depth):
                out[f"Transformer/encoderblock_{i}{key}"] = each[i][key]
    _norm(out, "Transformer/encoder_norm", params["norm"])
    if "map_pool" in params:
        pool = params["map_pool"]
        out["MAPHead_0/probe"] = pool["latent"]
        name = "MAPHead_0/MultiHeadDotProductAttention_0"
        _heads(out, name, pool["q"], ["query"], heads)
        _heads(out, name, pool["kv"], ["key", "value"], heads)
        _out(out, name, pool["proj"], heads)
        _norm(out, "MAPHead_0/LayerNorm_0", pool["norm"])
        _dense(out, "MAPHead_0/MlpBlock_0/Dense_0", pool["mlp"]["fc1"])
        _dense(out, "MAPHead_0/MlpBlock_0/Dense_1", pool["mlp"]["fc2"])
    if "pre_logits" in params:
        _dense(out, "pre_logits", params["pre_logits"])
    _dense(out, "head", params["head"])
    return out


def _backbone(out: Flat, backbone: Any, norm_rank: int) -> None:
    _dense(out, "conv_root", backbone["stem"]["conv"])
    _norm(out, "gn_root", backbone["stem"]["norm"], norm_rank)
    stages = [name for name in backbone if name.startswith("stage")]
    for i in range(len(stages)):
        stage = backbone[f"stage{i}"]
        for j in range(len(stage)):
            block, name = stage[f"block{j}"], f"block{i + 1}/unit{j + 1}"
            for k in (1, 2, 3):
                _dense(out, f"{name}/conv{k}", block[f"conv{k}"])
                _norm(out, f"{name}/gn{k}", block[f"norm{k}"], norm_rank)
            if "downsample" in block:
                _dense(out, f"{name}/conv_proj", block["downsample"]["conv"])
                _norm(out, f"{name}/gn_proj", block["downsample"]["norm"], norm_rank)


def mixer(params: Any) -> Flat:
    """Write an MLP-Mixer."""
    out: Flat = {}
    _dense(out, "stem", params["patch_embed"])
    for i in range(len(params["blocks"]["norm1"]["scale"])):
        block, name = _layer(params["blocks"], i), f"MixerBlock_{i}"
        _norm(out, f"{name}/LayerNorm_0", block["norm1"])
        _norm(out, f"{name}/LayerNorm_1", block["norm2"])
        for mlp in ("token", "channel"):
            _dense(out, f"{name}/{mlp}_mixing/Dense_0", block[f"mlp_{mlp}s"]["fc1"])
            _dense(out, f"{name}/{mlp}_mixing/Dense_1", block[f"mlp_{mlp}s"]["fc2"])
    _norm(out, "pre_head_layer_norm", params["norm"])
    _dense(out, "head", params["head"])
    return out


def bit(params: Any) -> Flat:
    """Write a BiT ResNet."""
    out: Flat = {}
    conv, norm = "standardized_conv2d", {"scale": "gamma", "bias": "beta"}
    _dense(out, f"resnet/root_block/{conv}", params["stem"]["conv"])
    stages = [name for name in params if name.startswith("stage")]
    for i in range(len(stages)):
        stage = params[f"stage{i}"]
        for j in range(len(stage)):
            block, name = stage[f"block{j}"], f"resnet/block{i + 1}/unit{j + 1:02d}"
            for k, letter in enumerate("abc", start=1):
                _dense(out, f"{name}/{letter}/{conv}", block[f"conv{k}"])
                _put(out, f"{name}/{letter}/group_norm", block[f"norm{k}"], norm)
            if "downsample" in block:
                _dense(out, f"{name}/a/proj/{conv}", block["downsample"]["conv"])
    _put(out, "resnet/group_norm", params["norm"], norm)
    out["resnet/head/conv2d/kernel"] = params["head"]["kernel"][None, None]
    out["resnet/head/conv2d/bias"] = params["head"]["bias"]
    return out
