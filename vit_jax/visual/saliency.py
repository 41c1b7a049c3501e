# SPDX-License-Identifier: Apache-2.0
"""One map an image of where a trained model looked: its attention, or a class activation map."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from vit_jax import models
from vit_jax.data import normalize
from vit_jax.errors import UserError
from vit_jax.inference.trained import Trained
from vit_jax.models import Attention, ModelConfig, Output
from vit_jax.visual import attention

_CAM = "class activation map"
Grid = tuple[int, int]
Seen = Mapping[str, jax.Array]
Map = Float[Array, "B rows columns"]
Saliency = Callable[[Num[Array, "B H W C"]], tuple[Output, Map]]


def method(cfg: ModelConfig) -> str:
    """Name the map that `make_saliency` makes of a family, for a caption."""
    look = models.attention(cfg)
    return look.method if look else _CAM


def check(cfg: ModelConfig) -> None:
    """Refuse a model of whose tokens no map can be made.

    Raises UserError: tokens merge, so that they are no patches.
    """
    merging = getattr(cfg, "token_merging", 0)
    if merging:
        raise UserError(
            f"model.token_merging={merging} merges patches, so that attention belongs to no place "
            "in the image; look at the model with --model.token_merging=0"
        )


def make_saliency(trained: Trained) -> Saliency:
    """Return images -> (output, map), compiled for each batch size.

    The map has a value for each token, row by row, or for each place of a conv net's last map,
    the larger the more it mattered; `overlay` brings it to the image's size. What it is, `method`
    says: attention rollout (arXiv:2005.00928) to what the head reads, the attention of the query
    that reads for the head, or the class activation map (arXiv:1512.04150) of the first class.

    Raises UserError: a model of whose tokens no map can be made; when called, no uint8 images.
    """
    inspect = _make_inspect(trained)
    apply = jax.jit(lambda variables, image: inspect(variables, image)[:2])
    variables = jax.device_put(trained.variables)
    return lambda image: apply(variables, image)


def make_inspection(
    trained: Trained,
) -> Callable[[Num[Array, "B H W C"]], tuple[Output, Map, Seen]]:
    """Return images -> (output, map, all that `models.captured` records): `make_saliency` and more.

    Raises UserError: a model of whose tokens no map can be made.
    """
    apply, variables = jax.jit(_make_inspect(trained)), jax.device_put(trained.variables)
    return lambda image: apply(variables, image)


def _make_inspect(trained: Trained) -> Callable[[Any, jax.Array], tuple[Output, Map, Seen]]:
    cfg = trained.model
    check(cfg)
    if not trained.has_head and method(cfg) == _CAM:
        raise UserError(
            f"{trained.ref} holds a network without a head, whose weights a {_CAM} is made of; "
            "fine-tune it first"
        )
    module = models.create(cfg)

    def inspect(variables: Any, image: jax.Array) -> tuple[Output, Map, Seen]:
        if image.dtype != trained.dtype:
            raise UserError(f"images of {image.dtype}: a map is made of {trained.dtype} pixels")
        normal = normalize(image, trained.mean, trained.std)
        output, seen = models.captured(module, variables, normal)
        size = image.shape[1], image.shape[2]
        return output, heat_map(cfg, variables, output, seen, size), seen

    return inspect


def heat_map(
    cfg: ModelConfig, variables: Mapping[str, Any], output: Output, seen: Seen, image_size: Grid
) -> Float[Array, "B rows columns"]:
    """Return the map of `make_saliency` from what `models.captured` returned."""
    look = models.attention(cfg, image_size)
    if look is None:
        kernel = variables["params"]["head"]["kernel"]
        return _class_activation(cfg, kernel, output, seen, image_size)
    rows, columns = models.patch_grid(cfg, image_size)
    heat = _attention(look, seen)[:, -rows * columns :]  # without the prefix
    return heat.astype(jnp.float32).reshape(-1, rows, columns)


def _attention(look: Attention, seen: Seen) -> Float[Array, "B N"]:
    """Return what each token gives to what the head reads."""
    if look.reader:
        weights = seen[look.reader]  # [..., B, h, 1, N]
        return weights.mean(axis=(*range(weights.ndim - 4), -3, -2))
    return _rollout(look, seen)[:, look.readers].mean(axis=1)


def _rollout(look: Attention, seen: Seen) -> Float[Array, "B N N"]:
    """Return the rollout through all layers that were recorded of `look.rolled`."""
    flow = None
    for name in look.rolled:
        if name in seen:
            if flow is not None and flow.shape[-1] < seen[name].shape[-1]:  # a class token enters
                flow = attention.prepend_token(flow)
            flow = attention.rollout(seen[name], flow)
    assert flow is not None, f"none of {look.rolled} was recorded"
    return flow


def extra_rollout(cfg: ModelConfig, seen: Seen) -> Float[Array, "B N"] | None:
    """Return the rollout to the mean of the patches where the map is the pooling query's."""
    look = models.attention(cfg)
    if look is None or not (look.reader and look.rolled):
        return None
    return _rollout(look, seen)[:, look.readers, models.num_prefix(cfg) :].mean(axis=1)


def _class_activation(
    cfg: ModelConfig, kernel: Float[Array, "E K"], output: Output, seen: Seen, image_size: Grid
) -> Float[Array, "B rows columns"]:
    """Return what each place adds to the first class's logit, which is the mean, plus the bias."""
    if "map" in seen:  # of a network whose features are no mean of its tokens
        last = seen["map"]
    else:
        grid = models.family(cfg).grids(cfg, image_size)[-1]
        last = output.tokens.reshape(-1, *grid, output.tokens.shape[-1])
    weights = kernel.T[output.logits.argmax(axis=-1)]
    return jnp.einsum("bpqe,be->bpq", last.astype(jnp.float32), weights)
