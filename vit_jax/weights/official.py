# SPDX-License-Identifier: Apache-2.0
"""The authors' own PyTorch files under timm's names, recognised by the names that they hold.

facebookresearch/deit and convit, microsoft/Swin-Transformer, torchvision's RegNet, and timm before
it named things as it does now. What no rule of the family's speaks of has timm's name already.
"""

import math
import re
from collections.abc import Iterable, Mapping

import numpy as np

from vit_jax import models
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig
from vit_jax.models.facts import Rename
from vit_jax.weights.apply import WeightsFile
from vit_jax.weights.layout import Shape, renamed

# Microsoft merges patches at the end of a stage, timm at the beginning of the next one.
_MICROSOFT_SWIN: tuple[Rename, ...] = (
    (r"^layers\.(\d+)\.downsample\.", lambda found: f"layers.{int(found[1]) + 1}.downsample."),
)
# Tables that the code computes from the config.
_BUFFERS = re.compile(r"\.(relative_position_index|attn_mask)$")


class Renamed:
    """A WeightsFile with other names, or other shapes of the same values, than the one it reads."""

    def __init__(
        self, source: WeightsFile, keys: Mapping[str, str], sizes: Mapping[str, Shape]
    ) -> None:
        self.name, self._source, self._keys = source.name, source, keys
        there = source.shapes()
        self._shapes = {key: sizes.get(key, there[old]) for key, old in keys.items()}

    def shapes(self) -> Mapping[str, Shape]:
        return self._shapes

    def read(self, key: str) -> np.ndarray:
        return self._source.read(self._keys[key]).reshape(self._shapes[key])


def with_timm_names(source: WeightsFile, cfg: ModelConfig) -> Renamed:
    """Return a WeightsFile that names the tensors of an official checkpoint as timm does.

    Raises UserError: two tensors of the file would have one name.
    """
    shapes = source.shapes()
    keys: dict[str, str] = {}
    rules = _rules(shapes, cfg)
    for old in shapes:
        if _BUFFERS.search(old):
            continue
        new = renamed(old, rules)
        if new in keys:
            raise UserError(
                f"{source.name}: {keys[new]} and {old} are both {new}; which one counts?"
            )
        keys[new] = old
    return Renamed(source, keys, _reshaped({new: shapes[old] for new, old in keys.items()}, cfg))


def _rules(keys: Iterable[str], cfg: ModelConfig) -> list[Rename]:
    rules = list(models.family(cfg).official_names)
    if all(key.startswith("module.") for key in keys):  # saved from a parallel wrapper: CaiT
        rules.insert(0, (r"^module\.", ""))
    # In timm the first stage has nothing to merge.
    if any(re.match(r"(module\.)?layers\.0\.downsample\.", key) for key in keys):
        rules += _MICROSOFT_SWIN
    return rules


def _reshaped(shapes: Mapping[str, Shape], cfg: ModelConfig) -> dict[str, Shape]:
    # timm once projected flattened patches (channels, rows, columns) by a Linear layer.
    key = "patch_embed.proj.weight"
    shape: Shape = shapes.get(key, ())
    patch: tuple[int, ...] = getattr(cfg, "patch", ())
    if len(shape) != 2 or not patch:
        return {}
    there = (shape[0], cfg.channels, patch[0], patch[-1])
    return {key: there} if math.prod(there) == math.prod(shape) else {}
