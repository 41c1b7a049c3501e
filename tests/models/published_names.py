# SPDX-License-Identifier: Apache-2.0
"""Published ViT checkpoints in this project's parameter tree, for the parity tests."""

import numpy as np

Tree = dict


def _put(tree: Tree, name: str, value: np.ndarray) -> None:
    *path, last = name.split("/")
    for part in path:
        tree = tree.setdefault(part, {})
    assert last not in tree, name
    tree[last] = value


def _head_major(columns: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the last axis from ({q,k,v}, head, d) to (head, {q,k,v}, d)."""
    split = columns.reshape(*columns.shape[:-1], 3, heads, -1)
    return np.swapaxes(split, -3, -2).reshape(columns.shape)


def from_timm(weights: dict[str, np.ndarray], heads: int) -> Tree:
    """Convert a timm ViT state_dict (rows of qkv are q, k, v; Linear is [out, in])."""
    tree: Tree = {}
    depth = 1 + max(int(k.split(".")[1]) for k in weights if k.startswith("blocks."))
    parts = {"norm1": "norm", "norm2": "norm", "q_norm": "norm", "k_norm": "norm"}
    for key, value in weights.items():
        if key.startswith("blocks.") and not key.startswith("blocks.0."):
            continue
        layers = [weights[key.replace("blocks.0.", f"blocks.{i}.")] for i in range(depth)]
        value = np.stack(layers) if key.startswith("blocks.0.") else value
        name = key.replace("blocks.0.", "blocks.").replace("patch_embed.proj", "patch_embed")
        *path, last = name.split(".")
        module = path[-1] if path else ""
        if last == "weight" and (module in parts or module.endswith("norm")):
            last = "scale"
        elif last == "weight" and module == "patch_embed":
            last, value = "kernel", value.transpose(2, 3, 1, 0)
        elif last == "weight":
            last, value = "kernel", np.swapaxes(value, -1, -2)
        if module == "qkv":
            value = _head_major(value, heads)
        _put(tree, "/".join([*path, last]), value)
    return tree


def from_google(weights: dict[str, np.ndarray]) -> Tree:
    """Convert a vision_transformer or big_vision .npz (kernels of q, k, v are (D, h, d))."""
    weights = {k.removeprefix("params/"): v for k, v in weights.items()}
    depth = len({k.split("/")[1] for k in weights if k.startswith("Transformer/encoderblock_")})
    blocks: list[Tree] = [{} for _ in range(depth)]
    tree: Tree = {}
    plain = {
        "cls": "cls_token",
        "pos_embedding": "pos_embed",
        "Transformer/posembed_input/pos_embedding": "pos_embed",
    }
    for key, value in weights.items():
        if key.startswith("Transformer/encoderblock_"):
            _, block, module, *rest = key.split("/")
            kind, number = module.rsplit("_", 1)
            if kind == "LayerNorm":
                name = "norm1" if number == "0" else "norm2"
            elif kind == "MlpBlock":
                name = {"Dense_0": "mlp/fc1", "Dense_1": "mlp/fc2"}[rest.pop(0)]
            elif rest[0] == "out":
                name, value = "attn/proj", value.reshape(-1, value.shape[-1])
                value = value[0] if rest[1] == "bias" else value
                rest.pop(0)
            else:
                name = "attn/" + rest.pop(0)
            _put(blocks[int(block.rsplit("_", 1)[1])], f"{name}/{rest[0]}", value)
        else:
            name = plain.get(key, key.replace("Transformer/encoder_norm", "norm"))
            _put(tree, name.replace("embedding/", "patch_embed/"), value)
    for block in blocks:
        attn = block["attn"]
        qkv = [attn.pop(n) for n in ("query", "key", "value")]
        kernel = np.stack([p["kernel"] for p in qkv], axis=2)  # (D, h, 3, d)
        attn["qkv"] = {
            "kernel": kernel.reshape(kernel.shape[0], -1),
            "bias": np.stack([p["bias"] for p in qkv], axis=1).reshape(-1),
        }
    tree["blocks"] = _stack(blocks)
    return tree


def _stack(trees: list[Tree]) -> Tree:
    first = trees[0]
    return {
        k: _stack([t[k] for t in trees]) if isinstance(v, dict) else np.stack([t[k] for t in trees])
        for k, v in first.items()
    }
