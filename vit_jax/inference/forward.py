# SPDX-License-Identifier: Apache-2.0
"""The forward pass of a trained model over uint8 images."""

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8

from vit_jax import models
from vit_jax.data import normalize
from vit_jax.inference.trained import Trained
from vit_jax.losses import Loss
from vit_jax.models import Output

Forward = Callable[[Any, UInt8[Array, "B H W C"]], Output]


def make_apply(trained: Trained) -> Forward:
    """Return (variables, images) -> Output, normalisation included, in evaluation mode."""
    module = models.create(trained.model)

    def apply(variables: Any, image: jax.Array) -> Output:
        return cast(Output, module.apply(variables, normalize(image, trained.mean, trained.std)))

    return apply


def make_forward(trained: Trained) -> Callable[[UInt8[Array, "B H W C"]], Output]:
    """Return images -> Output, compiled for each batch size; the weights go to the device once."""
    apply, variables = jax.jit(make_apply(trained)), jax.device_put(trained.variables)
    return lambda image: apply(variables, image)


def probabilities(logits: Float[Array, "B K"], loss: Loss) -> Float[Array, "B K"]:
    """Turn logits into what training by `loss` makes of them: of one class, or of each alone."""
    return jax.nn.softmax(logits) if loss is Loss.SOFTMAX else jax.nn.sigmoid(jnp.asarray(logits))
