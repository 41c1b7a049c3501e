# SPDX-License-Identifier: Apache-2.0
"""What the layers of a network return, counted as timm 1.0.31's `forward_intermediates` does.

A layer is a block of a ViT, DeiT, hybrid, Mixer or ConViT and a block among the patches of a CaiT;
a stage of a Swin, Hiera or ConvNeXt; of a ResNet, RegNet or BiT the stem before its pool, then
each stage.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax import models, trees
from vit_jax.errors import UserError
from vit_jax.models.base import CAPTURED, ModelConfig, Output
from vit_jax.models.conv import resnet

_STACKS = ("local_blocks", "blocks")  # in the order in which they run
_CALL = "__call__/0"  # how Flax names what a layer returns


class Layer(NamedTuple):
    """What one layer returns of a batch.

    Attributes:
        patches: in their (rows, columns); of a ResNet the positions of the map.
        prefix: the tokens before the patches: class, distillation, register; T may be 0.
    """

    patches: Float[Array, "B P Q D"]
    prefix: Float[Array, "B T D"]

    @property
    def tokens(self) -> Float[Array, "B N D"]:
        """The patches, row after row."""
        return self.patches.reshape(len(self.patches), -1, self.patches.shape[-1])


def layer_outputs(
    cfg: ModelConfig,
    variables: Mapping[str, Any],
    image: Float[Array, "B H W C"],
    layers: int | Sequence[int] | None = None,
    *,
    norm: bool | None = False,
) -> list[Layer]:
    """Return what layers return, the second of `output_and_layers`."""
    return output_and_layers(cfg, variables, image, layers, norm=norm)[1]


def output_and_layers(
    cfg: ModelConfig,
    variables: Mapping[str, Any],
    image: Float[Array, "B H W C"],
    layers: int | Sequence[int] | None = None,
    *,
    norm: bool | None = False,
    train: bool = False,
    rng: jax.Array | None = None,
) -> tuple[Output, list[Layer]]:
    """Run a forward pass; return its output and what layers return, in the order of `layers`.

    Args:
        cfg: the network.
        variables: {"params": ..., **model_state}.
        image: normalised.
        layers: numbers from 0, negative ones from the end; a number n: the last n; None: all.
        norm: as the network normalises before its head; of stages that is the last alone. None:
            where the network does.
        train, rng: run it as for training, with what is dropped drawn from the key.

    Raises UserError: a layer that the network does not have, a norm that it does not have before
        pooling, merged tokens, a network of neither stacked blocks nor stages.
    """
    name = models.family(cfg).name
    if getattr(cfg, "token_merging", 0):
        raise UserError("merged tokens lie in no grid of patches; set model.token_merging=0")
    norms: list[nn.Module] = []

    def is_wanted(layer: nn.Module, method: str) -> bool:
        if method != "__call__":
            return False
        if layer.path == ("norm",):
            norms.append(layer.clone(parent=None, name=None))
        return _is_layer(layer)

    how = {"train": train, "rngs": {"dropout": rng}} if train else {}
    output, state = models.create(cfg).apply(
        variables, image, mutable=[CAPTURED], capture_intermediates=is_wanted, **how
    )
    found = dict(trees.named_leaves(state.get(CAPTURED, {})))
    stacks = [found.get(f"{stack}/{_CALL}/0") for stack in _STACKS]
    every = [layer for stack in stacks if stack is not None for layer in stack]
    maps = [] if every else _maps(found)
    chosen = numbers(layers, len(every or maps), name)
    if norm and not norms:
        raise UserError(f"norm=True: this {name} has no norm between its last layer and the pool")

    def normalise(x: jax.Array, number: int) -> jax.Array:
        if not (norm or norm is None) or not norms or (maps and number < len(maps) - 1):
            return x
        if output.tokens is None:  # a ResNet's norm and what follows it
            return found["map/0"]
        own = {kind: tree["norm"] for kind, tree in variables.items() if "norm" in tree}
        return cast(jax.Array, norms[0].apply(own, x))

    if maps:
        wanted = [normalise(maps[number], number) for number in chosen]
        return output, [Layer(x, x[:, :0, 0]) for x in wanted]
    rows, columns = models.patch_grid(cfg, (image.shape[1], image.shape[2]))

    def split(x: jax.Array) -> Layer:
        before = x.shape[1] - rows * columns
        return Layer(x[:, before:].reshape(x.shape[0], rows, columns, -1), x[:, :before])

    return output, [split(normalise(every[number], number)) for number in chosen]


def numbers(layers: int | Sequence[int] | None, count: int, name: str) -> list[int]:
    """Return the numbers from 0 of layers as `layer_outputs` takes them.

    Raises UserError: a layer beyond the `count` of a network called `name`.
    """
    if not count:
        raise UserError(f"{name} has neither stacked blocks nor stages, so no layers to look at")
    if layers is None:
        return list(range(count))
    if isinstance(layers, int):
        chosen = list(range(count - layers, count))
    else:
        chosen = [layer + count if layer < 0 else layer for layer in layers]
    if not chosen or min(chosen) < 0 or max(chosen) >= count:
        raise UserError(f"layers={layers}: the {name} has {count} layers, 0 to {count - 1}")
    return chosen


def num_layers(cfg: ModelConfig) -> int:
    """Count the layers, computing nothing.

    Raises UserError: as `layer_outputs`.
    """
    image = jax.ShapeDtypeStruct((1, *models.input_shape(cfg)), "float32")
    shapes = jax.eval_shape(lambda v, x: layer_outputs(cfg, v, x), models.abstract(cfg), image)
    return len(shapes)


def _is_layer(layer: nn.Module) -> bool:
    path = layer.path
    if path == ("stem", "conv"):  # a Stem pools
        return isinstance(layer.parent, resnet.Stem)
    is_stem = path == ("stem",) and isinstance(layer, resnet.ConvNorm)
    return is_stem or (len(path) == 1 and (path[0] in _STACKS or path[0].startswith("stage")))


def _maps(found: Mapping[str, jax.Array]) -> list[jax.Array]:
    """Return the maps of a network of stages, from the first to the last."""
    stems = [value for name, value in found.items() if name.startswith("stem/")]
    at = {name: re.fullmatch(rf"stage(\d+)/{_CALL}", name) for name in found}
    order = sorted((int(match[1]), name) for name, match in at.items() if match)
    return [*stems, *(found[name] for _, name in order)]
