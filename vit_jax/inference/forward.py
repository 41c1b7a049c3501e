# SPDX-License-Identifier: Apache-2.0
"""The forward pass of a trained model over pixels: uint8, or of bands in the data's dtype."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from vit_jax import models
from vit_jax.data import GRIDS, normalize, normalize_rows
from vit_jax.devices import hardware
from vit_jax.errors import UserError
from vit_jax.evals import Predict
from vit_jax.evals.probes.features import Encode
from vit_jax.inference.trained import Trained, Tta
from vit_jax.models import ModelConfig, Output
from vit_jax.models.intermediates import Layer, layer_outputs, output_and_layers
from vit_jax.models.layers import dense
from vit_jax.models.losses import Loss

Image = Shaped[Array | np.ndarray, "B H W C"] | Shaped[Array | np.ndarray, "B L V"]
Forward = Callable[..., Output]  # (variables, images[, their grids])

# What a layer on a CPU's core writes for 8 images of 224 x 224 is mostly in its cache when the next
# layer reads it: a ViT-Ti takes 128 of them 1.3 times as fast as at once (benchmarks/NOTES.md).
_VALUES_A_CORE = 8 * 224 * 224 * 3


def make_apply(trained: Trained) -> Forward:
    """Return (variables, images) -> Output, normalisation included, in evaluation mode.

    Rows of patches of images of any size have a third argument, their grids (docs/naflex.md).
    With `trained.tta` the logits are those of the mean probabilities over the copies of an image,
    and features and tokens those of the image itself.
    """
    apply = _apply(trained.model, tuple(trained.mean), tuple(trained.std), trained.dtype.name)
    if not trained.tta:
        return apply
    return _averaged(apply, tuple(trained.tta), None if trained.gives_numbers else trained.loss)


@functools.lru_cache  # one function object a program, so that jit finds it; it holds no weights
def _apply(
    model: ModelConfig, mean: tuple[float, ...], std: tuple[float, ...], dtype: str
) -> Forward:
    module = models.create(model)

    def apply(variables: Any, image: Image, grids: Array | None = None) -> Output:
        image = jnp.asarray(image)
        if image.dtype.name not in (dtype, "uint8"):  # which shapes alone are asked for with
            raise UserError(f"images of {image.dtype}: a forward takes {dtype} pixels")
        if grids is not None:
            rows = normalize_rows(image, model.channels, mean, std)
            return cast(Output, module.apply(variables, rows, grids=grids))
        image = normalize(image, mean, std)
        return cast(Output, module.apply(variables, image))

    return apply


@functools.lru_cache  # as `_apply`
def _averaged(apply: Forward, tta: tuple[Tta, ...], loss: Loss | None) -> Forward:
    def averaged(variables: Any, image: Image, grids: Array | None = None) -> Output:
        if grids is not None:
            raise UserError("tta moves and mirrors images of one size; set transform.crop=resize")

        def likely(copy: Array) -> Array:
            found = apply(variables, copy).logits.astype(jnp.float32)
            return found if loss is None else probabilities(found, loss)

        # One copy after another, so that memory does not grow with their number.
        mean = jax.lax.map(likely, _copies(image, tta)).mean(axis=0)
        if loss is not None:
            mean = jnp.log(mean) if loss is Loss.SOFTMAX else jax.scipy.special.logit(mean)
        return dataclasses.replace(apply(variables, image), logits=mean)

    return averaged


def _copies(image: Image, tta: tuple[Tta, ...]) -> Shaped[Array, "T B H W C"]:
    """Return the images and the copies that `tta` adds."""
    image = jnp.asarray(image)
    found = [image]
    if Tta.SHIFT in tta:
        height, width = image.shape[1:3]
        rows, columns = -(-height // 16), -(-width // 16)
        padded = jnp.pad(image, ((0, 0), (rows, rows), (columns, columns), (0, 0)), "edge")
        for top, left in itertools.product((0, 2 * rows), (0, 2 * columns)):
            found.append(padded[:, top : top + height, left : left + width])
    if Tta.FLIP in tta:
        found += [copy[:, :, ::-1] for copy in found]
    return jnp.stack(found)


def make_predict(trained: Trained, output: str = "logits") -> Predict:
    """Return (variables, batch with "image" [B, H, W, C]) -> logits [B, K] or features [B, D]."""
    return _predict(make_apply(trained), output)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layers:
    """Which layers' features are wanted, and of which form.

    Attributes:
        numbers: from 0.
        norm: normalise them as `layer_outputs` does.
        tokens: all patches where they lie, instead of one vector an image: of the class token, or
            where there is none the mean over the patches.
    """

    numbers: tuple[int, ...] = ()
    norm: bool = False
    tokens: bool = False


def make_encode(trained: Trained, layers: Layers) -> Encode:
    """Return (variables, batch with "image") -> "features" [B, D], and "layer2" and so on.

    A layer's are [B, D], with `tokens` [B, P, Q, D]. All come from one pass.
    """
    if not layers.numbers:
        return make_predict(trained, "features")
    return _encode(trained.model, tuple(trained.mean), tuple(trained.std), layers)


@functools.lru_cache  # as `_apply`
def _encode(
    model: ModelConfig, mean: tuple[float, ...], std: tuple[float, ...], layers: Layers
) -> Encode:
    def encode(variables: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        if GRIDS in batch:
            raise UserError("layers are read of images of one size; set transform.crop=resize")
        image = normalize(batch["image"], mean, std)
        numbers = layers.numbers
        output, found = output_and_layers(model, variables, image, numbers, norm=layers.norm)
        rows = [layer.patches if layers.tokens else _pooled(model, layer) for layer in found]
        of_layers = {f"layer{number}": x for number, x in zip(numbers, rows, strict=True)}
        return {"features": output.features, **of_layers}

    return encode


def _pooled(model: ModelConfig, layer: Layer) -> Float[Array, "B D"]:
    if layer.prefix.shape[1] and getattr(model, "class_token", True):
        return layer.prefix[:, 0]
    return layer.tokens.mean(axis=1, dtype=jnp.float32)


def of_batch(apply: Forward, variables: Any, batch: Mapping[str, Array | np.ndarray]) -> Output:
    """Return what a network returns of the images of a batch, of one size or of any."""
    return apply(variables, batch["image"], *[batch[name] for name in (GRIDS,) if name in batch])


@functools.lru_cache  # as `_apply`
def _predict(apply: Forward, output: str) -> Predict:
    apply = _here(apply)
    return lambda variables, batch: getattr(of_batch(apply, variables, batch), output)


@functools.lru_cache  # as `_apply`
def _here(apply: Forward) -> Forward:
    """Return what this machine runs: its own products, its own piece of a batch.

    An export is for any machine, and has neither.
    """

    def run(variables: Any, *given: Array | np.ndarray) -> Output:
        with dense.for_this_machine():
            return _in_pieces(functools.partial(apply, variables), given, _piece(given[0].shape))

    return run


def _piece(shape: tuple[int, ...]) -> int | None:
    """Return how many images of [B, ...] the network takes at a time; None for all of them."""
    if jax.default_backend() != "cpu" or jax.device_count() > 1:
        return None
    return max(_VALUES_A_CORE * hardware.num_cores() // math.prod(shape[1:]), 1)


def _in_pieces(
    apply: Callable[..., Output], given: Sequence[Array | np.ndarray], size: int | None
) -> Output:
    """Return what `apply` does of arrays [B, ...], for `size` of the B at a time."""
    count = given[0].shape[0]
    if size is None or count <= size:
        return apply(*given)
    first = count // size * size
    stacked = [x[:first].reshape(-1, size, *x.shape[1:]) for x in given]
    found = jax.lax.map(lambda piece: apply(*piece), stacked)
    found = jax.tree.map(lambda x: x.reshape(first, *x.shape[2:]), found)
    if first == count:
        return found
    rest = apply(*(x[first:] for x in given))
    return jax.tree.map(lambda *pair: jnp.concatenate(pair), found, rest)


def output_name(trained: Trained) -> str:
    """Return what an export returns: "logits", or "features" of a model without a head.

    The logits of a model of numbers are these, in the units of the data.
    """
    return "logits" if trained.model.num_classes else "features"


def output_width(trained: Trained) -> int:
    """Return K of its logits [B, K], or without a head D of its features [B, D]."""
    if trained.model.num_classes:
        return trained.model.num_classes
    image = jax.ShapeDtypeStruct((1, *models.input_shape(trained.model)), jnp.uint8)
    variables = models.abstract(trained.model)
    return jax.eval_shape(make_apply(trained), variables, image).features.shape[-1]


@functools.partial(jax.jit, static_argnames=("cfg", "mean", "std"))
def output_of(variables: Any, image: Array, cfg: ModelConfig, mean: Any, std: Any) -> Output:
    """Return what a network returns of pixels, integers, or of normalised images, floats."""
    return cast(Output, models.create(cfg).apply(variables, _normal(image, mean, std)))


@functools.partial(jax.jit, static_argnames=("cfg", "mean", "std", "layers", "norm"))
def layers_of(
    variables: Any,
    image: Array,
    cfg: ModelConfig,
    mean: Any,
    std: Any,
    layers: int | tuple[int, ...] | None,
    norm: bool | None,
) -> list[Layer]:
    """Return what layers return, as `layer_outputs`, of images as in `output_of`."""
    return layer_outputs(cfg, variables, _normal(image, mean, std), layers, norm=norm)


def _normal(image: Array, mean: Any, std: Any) -> Array:
    return normalize(image, mean, std) if jnp.issubdtype(image.dtype, jnp.integer) else image


def make_forward(trained: Trained) -> Callable[[Image], Output]:
    """Return images -> Output, compiled for each batch size; the weights go to the device once."""
    apply, variables = jax.jit(_here(make_apply(trained))), jax.device_put(trained.variables)
    return lambda image: apply(variables, image)


def probabilities(logits: Float[Array | np.ndarray, "B K"], loss: Loss) -> Float[Array, "B K"]:
    """Turn logits into what training by `loss` makes of them: of one class, or of each alone."""
    logits = jnp.asarray(logits)
    return jax.nn.softmax(logits) if loss is Loss.SOFTMAX else jax.nn.sigmoid(logits)
