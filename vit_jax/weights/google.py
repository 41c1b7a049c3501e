# SPDX-License-Identifier: Apache-2.0
"""Our parameters under the names of Google's .npz files: vision_transformer, big_vision and BiT.

Kernels lie there as here, but for heads: q, k and v are (D, h, d) each, the output projection
(h, d, D). Layouts differ in a prefix, in the numbering of a block's layers (before and since Flax's
Linen), and big_vision may stack all layers of a parameter along a leading axis.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax import models, trees
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig
from vit_jax.weights import google_positions
from vit_jax.weights.layout import Entry, Part, Rename, Shape, renamed


def _unit(number: str) -> Callable[[re.Match[str]], str]:
    """Rename our 0-based stage and block to a 1-based block and unit, numbered by `number`."""
    return lambda found: f"block{int(found[1]) + 1}/unit{int(found[2]) + 1:{number}}/"


# Those of the backbone come before those of the blocks, which have norms too.
_VIT: tuple[Rename, ...] = (
    (r"^backbone/stem/conv/", "conv_root/"),
    (r"^backbone/stem/norm/", "gn_root/"),
    (r"^backbone/stage(\d+)/block(\d+)/", _unit("d")),
    (r"^(block\d+/unit\d+)/downsample/conv/", r"\1/conv_proj/"),
    (r"^(block\d+/unit\d+)/downsample/norm/", r"\1/gn_proj/"),
    (r"^(block\d+/unit\d+)/norm(\d)/", r"\1/gn\2/"),
    (r"^cls_token$", "cls"),
    (r"^patch_embed/", "embedding/"),
    (r"^norm/", "Transformer/encoder_norm/"),
    (r"^map_pool/latent$", "MAPHead_0/probe"),
    (r"^map_pool/norm/", "MAPHead_0/LayerNorm_0/"),
    (r"^map_pool/mlp/", "MAPHead_0/MlpBlock_0/"),
    (r"^map_pool/", "MAPHead_0/MultiHeadDotProductAttention_0/"),
    (r"^blocks/(\d+)/", r"Transformer/encoderblock_\1/"),
    (r"/norm1/", "/LayerNorm_0/"),
    (r"/norm2/", "/LayerNorm_1/"),
    (r"/attn/", "/MultiHeadDotProductAttention_0/"),
    (r"/mlp/", "/MlpBlock_0/"),
    (r"/fc1/", "/Dense_0/"),
    (r"/fc2/", "/Dense_1/"),
    (r"/proj/", "/out/"),
)
_RENAMES: dict[str, tuple[Rename, ...]] = {
    "ViTConfig": _VIT,
    "HybridConfig": _VIT,
    "MixerConfig": (
        (r"^patch_embed/", "stem/"),
        (r"^norm/", "pre_head_layer_norm/"),
        (r"^blocks/(\d+)/", r"MixerBlock_\1/"),
        (r"/norm1/", "/LayerNorm_0/"),
        (r"/norm2/", "/LayerNorm_1/"),
        (r"/mlp_tokens/", "/token_mixing/"),
        (r"/mlp_channels/", "/channel_mixing/"),
        (r"/fc1/", "/Dense_0/"),
        (r"/fc2/", "/Dense_1/"),
    ),
    "BiTConfig": (
        (r"^stem/conv/", "root_block/standardized_conv2d/"),
        (r"^norm/", "group_norm/"),
        (r"^head/", "head/conv2d/"),
        (r"^stage(\d+)/block(\d+)/", _unit("02d")),
        (r"/downsample/conv/", "/a/proj/standardized_conv2d/"),
        (r"/conv([123])/", lambda found: f"/{'abc'[int(found[1]) - 1]}/standardized_conv2d/"),
        (r"/norm([123])/", lambda found: f"/{'abc'[int(found[1]) - 1]}/group_norm/"),
        (r"group_norm/scale$", "group_norm/gamma"),
        (r"group_norm/bias$", "group_norm/beta"),
    ),
}
# Which parameter tells the prefix, and which prefixes there are: the first that fits.
_STEMS = {"MixerConfig": "stem/kernel", "BiTConfig": "root_block/standardized_conv2d/kernel"}
_PREFIXES = ("", "params/", "opt/target/", "params/img/")
# A block's layers were numbered as one sequence before Linen, and by kind since.
_BEFORE_LINEN = (
    (r"/MultiHeadDotProductAttention_0/", "/MultiHeadDotProductAttention_1/"),
    (r"/LayerNorm_1/", "/LayerNorm_2/"),
    (r"/MlpBlock_0/", "/MlpBlock_3/"),
)
# Ours fuse what Google keeps apart.
_FUSED = {"qkv": ("query", "key", "value"), "kv": ("key", "value"), "q": ("query",)}


def prefix(cfg: ModelConfig, shapes: Mapping[str, Shape]) -> str:
    """Return what every key of the network begins with in this file."""
    stem = _STEMS.get(type(cfg).__name__, "embedding/kernel")
    choices = ("resnet/",) if type(cfg).__name__ == "BiTConfig" else _PREFIXES
    return next((choice for choice in choices if choice + stem in shapes), choices[0])


def is_ignored(key: str, prefix: str) -> bool:
    """Say whether a key is of the optimizer, of another tower or of the training loop."""
    return not key.startswith(prefix) if prefix else key.startswith(("opt/", "extra/"))


def entries(cfg: ModelConfig, shapes: Mapping[str, Shape]) -> list[Entry]:
    """List every parameter of a model with its place in a file of these shapes.

    Raises:
        UserError: a family of which Google has published no such files.
    """
    if type(cfg).__name__ not in _RENAMES:
        raise UserError(
            f"there is no .npz layout for {type(cfg).__name__.removesuffix('Config')}: Google "
            "published ViT, hybrid, Mixer and BiT; read other files as timm:FILE"
        )
    names = _Names(cfg, shapes)
    found = []
    for full_name, leaf in trees.named_leaves(models.abstract(cfg)):
        _, name = full_name.split("/", 1)  # without the collection
        stacked = trees.is_stacked(name)
        shape: Shape = leaf.shape[1:] if stacked else leaf.shape
        layers = [
            names.parts(layer, shape, i) for i, layer in enumerate(trees.layer_names(name, leaf))
        ]
        found.append(
            Entry(
                name=full_name,
                shape=leaf.shape,
                stacked=stacked,
                layers=tuple(layers),
                decode=_decoder(layers[0], shape),
            )
        )
    return google_positions.adapted(found, cfg, shapes, names.prefix)


class _Names:
    """Where one file holds what: its prefix, its numbering, whether it stacks layers."""

    def __init__(self, cfg: Any, shapes: Mapping[str, Shape]) -> None:
        self._cfg, self._shapes = cfg, shapes
        self.prefix = prefix(cfg, shapes)
        blocks = f"{self.prefix}Transformer/encoderblock"
        self._before_linen = any(key.startswith(blocks) and "/MlpBlock_3/" in key for key in shapes)
        self._stacked = any(key.startswith(f"{blocks}/") for key in shapes)

    def parts(self, name: str, shape: Shape, layer: int) -> tuple[Part, ...]:
        """Return the tensors that make one layer of a parameter of ours."""
        key = renamed(name, _RENAMES[type(self._cfg).__name__])
        in_block = name.startswith("blocks/")
        if in_block and self._before_linen:
            key = renamed(key, _BEFORE_LINEN)
        there = self._shape(name, shape)
        stacked = in_block and self._stacked
        if stacked:
            key = re.sub(r"encoderblock_\d+/", "encoderblock/", key)
            there = (self._cfg.depth, *there)
        *_, module, _ = ["", *name.split("/")]
        keys = [key.replace(f"/{module}/", f"/{one}/") for one in _FUSED.get(module, (module,))]
        return tuple(
            self._part(self.prefix + key, there, layer if stacked else None) for key in keys
        )

    def _shape(self, name: str, shape: Shape) -> Shape:
        *_, module, kind = ["", *name.split("/")]
        if module in _FUSED:
            heads = self._cfg.num_heads
            return (*shape[:-1], heads, shape[-1] // len(_FUSED[module]) // heads)
        if module == "proj" and kind == "kernel":
            return (self._cfg.num_heads, shape[0] // self._cfg.num_heads, shape[1])
        if module == "head" and kind == "kernel" and type(self._cfg).__name__ == "BiTConfig":
            return (1, 1, *shape)
        return shape

    def _part(self, key: str, shape: Shape, layer: int | None) -> Part:
        # Statistics over an image had its axes once: norms of the hybrids are (1, 1, 1, C).
        if len(shape) == 1 and self._shapes.get(key) == (1, 1, 1, *shape):
            shape = (1, 1, 1, *shape)
        return Part(key, shape, layer)


def _decoder(parts: Sequence[Part], shape: Shape) -> Callable[[Sequence[np.ndarray]], np.ndarray]:
    if len(parts) > 1:
        return lambda values: np.stack(values, axis=-2).reshape(shape)  # (..., head, {q,k,v}, d)
    if parts[0].shape == shape:  # not reshaped: it may have another size, and be resized
        return lambda values: values[0]
    return lambda values: values[0].reshape(shape)
