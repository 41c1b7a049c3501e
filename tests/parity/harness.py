# SPDX-License-Identifier: Apache-2.0
"""Forward and gradient of one of our models against the same network of timm."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, Phase, settings

from tests.parity.torch_models import gradients, randomise, state, torch
from vit_jax import models, weights

TOLERANCE = 5e-5

# A fixed set of examples: a failure must not depend on the day.
random_configs = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),  # to shrink a failure compiles hundreds of models
    suppress_health_check=list(HealthCheck),
)


def images(cfg: models.ModelConfig, seed: int, batch: int = 2) -> np.ndarray:
    """Draw a batch [B, H, W, C] of the config's size."""
    shape = (batch, *models.input_shape(cfg))
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def to_torch(image: np.ndarray) -> "torch.Tensor":
    """Turn NHWC numpy into NCHW torch."""
    return torch.from_numpy(np.ascontiguousarray(image.transpose(0, 3, 1, 2)))


def check_forward(
    model: "torch.nn.Module", cfg: models.ModelConfig, seed: int = 0, image: Any = None
) -> models.Output:
    """Assert that both give the same logits in evaluation mode from the same random weights."""
    randomise(model, seed)
    image = images(cfg, seed) if image is None else image
    variables = weights.from_timm(state(model), cfg)
    with torch.no_grad():
        expected = model(to_torch(image)).numpy()
    with jax.default_matmul_precision("highest"):
        out = jax.jit(models.create(cfg).apply)(variables, jnp.asarray(image))
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(out.logits / scale, expected / scale, atol=TOLERANCE, rtol=0)
    assert expected.std() > 1e-3, "logits too flat to tell a mistake"
    return out


def check_gradients(
    model: "torch.nn.Module", cfg: models.ModelConfig, seed: int = 0, atol: float = TOLERANCE
) -> None:
    """Assert that a loss has the same gradient with respect to every weight, in evaluation mode.

    The gradients of timm go through the importer too: all it does to a weight is linear.
    """
    randomise(model, seed)
    image = images(cfg, seed)
    target = np.random.default_rng(seed + 1).normal(size=(len(image), cfg.num_classes))
    target = target.astype(np.float32)
    before = state(model)
    loss = (model(to_torch(image)) * torch.from_numpy(target)).sum()
    # Buffers have no gradient; they only make the state complete.
    expected = weights.from_timm({**before, **gradients(model, loss)}, cfg)["params"]
    variables = weights.from_timm(before, cfg)
    module = models.create(cfg)

    @jax.jit
    def gradient(params: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            out = module.apply({**variables, "params": params}, jnp.asarray(image))
            return (out.logits * target).sum()

        return jax.grad(loss)(params)

    with jax.default_matmul_precision("highest"):
        actual = gradient(variables["params"])

    def compare(path: Any, a: jax.Array, b: np.ndarray) -> None:
        scale = max(1.0, float(np.abs(b).max()))
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(a / scale, b / scale, atol=atol, rtol=0, err_msg=name)

    jax.tree_util.tree_map_with_path(compare, actual, expected)
