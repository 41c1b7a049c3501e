# SPDX-License-Identifier: Apache-2.0
"""Our parameters under timm's names: one table of renames a family, read in both directions.

Our names are timm's but for what is listed here; stacked parameters are split by layer.
"""

import re
from typing import Any

from vit_jax import models, trees
from vit_jax.models import ModelConfig
from vit_jax.weights.layout import Entry, Part, Rename, Shape, pointwise, renamed, torch_layout

# Of '/'-joined names.
_VIT: tuple[Rename, ...] = (
    (r"^patch_embed/", "patch_embed/proj/"),
    (r"^map_pool/", "attn_pool/"),
    (r"^backbone/stage(\d+)/block(\d+)/", r"patch_embed/backbone/stages/\1/blocks/\2/"),
    (r"^backbone/", "patch_embed/backbone/"),
)
_RENAMES: dict[str, tuple[Rename, ...]] = {
    "ViTConfig": _VIT,
    "HybridConfig": _VIT,
    "CaiTConfig": (
        (r"^patch_embed/", "patch_embed/proj/"),
        (r"^token_blocks/", "blocks_token_only/"),
        (r"/ls([12])/gamma$", r"/gamma_\1"),
    ),
    "ConViTConfig": ((r"^patch_embed/", "patch_embed/proj/"),),
    "SwinConfig": (
        (r"^patch_embed/", "patch_embed/proj/"),
        (r"^patch_norm/", "patch_embed/norm/"),
        (r"^stage(\d+)/merge/", r"layers/\1/downsample/"),
        (r"^stage(\d+)/block(\d+)/", r"layers/\1/blocks/\2/"),
        (r"/rel_pos_bias$", "/relative_position_bias_table"),
        (r"^head/", "head/fc/"),
    ),
    "MixerConfig": ((r"^patch_embed/", "stem/proj/"),),
    "BiTConfig": (
        (r"^stage(\d+)/block(\d+)/", r"stages/\1/blocks/\2/"),
        (r"/(mean|var)$", r"/running_\1"),
        (r"^head/", "head/fc/"),
    ),
    "RegNetConfig": (
        (
            r"^stage(\d+)/block(\d+)/",
            lambda found: f"s{int(found[1]) + 1}/b{int(found[2]) + 1}/",
        ),
        (r"/bn/(mean|var)$", r"/bn/running_\1"),
        (r"^head/", "head/fc/"),
    ),
    "ResNetConfig": (
        (
            r"^stage(\d+)/block(\d+)/",
            lambda found: f"layer{int(found[1]) + 1}/{found[2]}/",
        ),
        (r"/(conv[123])/conv/", r"/\1/"),
        (r"/conv([123])/bn/", r"/bn\1/"),
        (r"/downsample/conv/", "/downsample/0/"),
        (r"/downsample/bn/", "/downsample/1/"),
        (r"^stem/conv/", "conv1/"),
        (r"^stem/bn/", "bn1/"),
        (r"/(mean|var)$", r"/running_\1"),
        (r"^head/", "fc/"),
    ),
}
# Linear layers of ours that timm has as 1x1 convolutions.
_POINTWISE = {
    "BiTConfig": re.compile(r"^head/kernel$"),
    "RegNetConfig": re.compile(r"/se/fc[12]/kernel$"),
}


def key(name: str, cfg: ModelConfig) -> str:
    """Return timm's name of one layer of a parameter: "blocks/3/mlp/fc1/kernel" and so on."""
    if type(cfg).__name__ == "ConViTConfig":
        name = _convit_block(name, cfg)
    if not getattr(cfg, "backbone_depths", True):
        name = name.replace("backbone/stem/", "backbone/")  # where the stem is all there is
    name = renamed(name, _RENAMES[type(cfg).__name__])
    return re.sub(r"/(kernel|scale)$", "/weight", name).replace("/", ".")


def _convit_block(name: str, cfg: Any) -> str:
    # timm numbers local and global blocks in one list.
    found = re.match(r"blocks/(\d+)/(.*)", name)
    if found:
        return f"blocks/{int(found[1]) + cfg.local_up_to_layer}/{found[2]}"
    return name.removeprefix("local_")


def _heads(name: str, cfg: Any) -> int:
    heads = getattr(cfg, "num_heads", 1)
    if isinstance(heads, tuple):
        stage = re.match(r"stage(\d+)/", name)
        return heads[int(stage[1])] if stage else 1
    return heads


def entries(cfg: ModelConfig) -> list[Entry]:
    """List every parameter and statistic of a model with its place in a timm state_dict."""
    found = []
    for full_name, leaf in trees.named_leaves(models.abstract(cfg)):
        _, name = full_name.split("/", 1)  # without the collection
        layers = trees.layer_names(name, leaf)
        shape: Shape = leaf.shape[1:] if trees.is_stacked(name) else leaf.shape
        small = _POINTWISE.get(type(cfg).__name__)
        if small and small.search(name):
            layout = pointwise(shape)
        else:
            layout = torch_layout(name, shape, _heads(name, cfg))
        found.append(
            Entry(
                name=full_name,
                shape=leaf.shape,
                stacked=trees.is_stacked(name),
                layers=tuple((Part(key(layer, cfg), layout.shape),) for layer in layers),
                decode=lambda parts, layout=layout: layout.decode(parts[0]),
                encode=lambda value, layout=layout: [layout.encode(value)],
            )
        )
    return found


def is_ignored(key: str) -> bool:
    """Say whether a key of a state_dict holds nothing of the network: PyTorch's batch counters."""
    return key.endswith("num_batches_tracked")
