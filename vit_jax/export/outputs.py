# SPDX-License-Identifier: Apache-2.0
"""What an exported program returns, by name: of a classifier its logits, of a model of pixels maps.

A model with several outputs returns them as a tuple, in this order.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax import models
from vit_jax.inference.forward import make_apply, output_name, output_width
from vit_jax.inference.trained import Trained

# By what is asked of the pixels (`inference.pixels.PixelTask`): the predictor, and its outputs.
_PIXELS = {
    "classes": ("segmentation", {"scores": "scores [B, K, h, w]: of each class at each place"}),
    "objects": (
        "segments",
        {
            "classes": "logits [B, Q, K + 1]: of each query's class; the last is of none",
            "masks": "logits [B, Q, h, w]: of each query's mask, a sigmoid each",
        },
    ),
    "depth": ("depth", {"depth": "depths [B, H, W], in the unit of the data"}),
}


def meanings(trained: Trained) -> dict[str, str]:
    """Return what each output is, by name; of a model that says nothing of pixels it is one."""
    if trained.head is None:
        return {output_name(trained): ""}
    return _pixels(trained)[1]


def _pixels(trained: Trained) -> tuple[str, dict[str, str]]:
    from vit_jax.inference.pixels import task_of  # late: it needs the evaluations

    return _PIXELS[task_of(trained).value]


def make(trained: Trained) -> Callable[[Any, Any], Any]:
    """Return (variables, images) -> the output, or a tuple of several; float32, of any batch."""
    if trained.head is None:
        apply, name = make_apply(trained), output_name(trained)
        return lambda variables, image: getattr(apply(variables, image), name)
    from vit_jax.inference import dense  # late: few models are of pixels

    predict = dense.predictors(trained)[_pixels(trained)[0]]

    def run(variables: Any, image: Any) -> Any:
        found = [
            x.astype(jnp.float32) for x in jax.tree.leaves(predict(variables, {"image": image}))
        ]
        return tuple(found) if len(found) > 1 else found[0]

    return run


def shapes(trained: Trained) -> list[tuple[int, ...]]:
    """Return the shape of each output without the batch; `trained` of pixels has its weights."""
    if trained.head is None:
        return [(output_width(trained),)]
    image = jax.ShapeDtypeStruct((1, *models.input_shape(trained.model)), jnp.uint8)
    found = jax.eval_shape(make(trained), trained.variables, image)
    return [x.shape[1:] for x in jax.tree.leaves(found)]


def forward(trained: Trained) -> Callable[[Any], Any]:
    """Return images -> what `make` returns, compiled."""
    return functools.partial(jax.jit(make(trained)), trained.variables)
