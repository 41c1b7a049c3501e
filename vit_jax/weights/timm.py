# SPDX-License-Identifier: Apache-2.0
"""Our parameters under timm's names, by the renames of the family, read in both directions.

Our names are timm's but for those; stacked parameters are split by layer.
"""

import re
from typing import Any

from vit_jax import models
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig
from vit_jax.weights import layout as layout_lib
from vit_jax.weights.layout import Entry, FileTensor, Shape, pointwise, renamed, torch_layout


def key(name: str, cfg: ModelConfig) -> str:
    """Return timm's name of one layer of a parameter: "blocks/3/mlp/fc1/kernel" and so on.

    Raises UserError: a family without timm's names of parameters.
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
    convolutions = models.family(cfg).timm_convolutions

    def place(name: str, shape: Shape, _: int) -> tuple[tuple[FileTensor, ...], Any, Any]:
        is_convolution = convolutions and re.search(convolutions, name)
        layout = (
            pointwise(shape) if is_convolution else torch_layout(name, shape, _heads(name, cfg))
        )
        parts = (FileTensor(key(name, cfg), layout.shape),)
        return parts, lambda parts: layout.decode(parts[0]), lambda value: [layout.encode(value)]

    return layout_lib.entries(cfg, place)


def is_ignored(key: str) -> bool:
    """Return whether a key of a state_dict is PyTorch's batch counter, not a weight."""
    return key.endswith("num_batches_tracked")
