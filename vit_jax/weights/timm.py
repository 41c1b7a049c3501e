# SPDX-License-Identifier: Apache-2.0
"""Our parameters under timm's names, by the renames of the family, read in both directions.

Our names are timm's but for those; stacked parameters are split by layer.
"""

import re
from typing import Any

from vit_jax import models, trees
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig
from vit_jax.weights.layout import Entry, Part, Shape, pointwise, renamed, torch_layout


def key(name: str, cfg: ModelConfig) -> str:
    """Return timm's name of one layer of a parameter: "blocks/3/mlp/fc1/kernel" and so on.

    Raises:
        UserError: a family of which nothing says what timm calls its parameters.
    """
    family = models.family(cfg)
    if family.timm_names is None:
        raise UserError(
            f"there are no timm names for {family.name}; give its FAMILY in vit_jax/models "
            "timm_names, or take weights of a run (ckpt:DIR)"
        )
    name = renamed(name, family.timm_names(cfg))
    return re.sub(r"/(kernel|scale)$", "/weight", name).replace("/", ".")


def _heads(name: str, cfg: Any) -> int:
    heads = getattr(cfg, "num_heads", 1)
    if isinstance(heads, tuple):
        stage = re.match(r"stage(\d+)/", name)
        return heads[int(stage[1])] if stage else 1
    return heads


def entries(cfg: ModelConfig) -> list[Entry]:
    """List every parameter and statistic of a model with its place in a timm state_dict."""
    found, convolutions = [], models.family(cfg).timm_convolutions
    for full_name, leaf in trees.named_leaves(models.abstract(cfg)):
        _, name = full_name.split("/", 1)  # without the collection
        layers = trees.layer_names(name, leaf)
        shape: Shape = leaf.shape[1:] if trees.is_stacked(name) else leaf.shape
        if convolutions and re.search(convolutions, name):
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
