# SPDX-License-Identifier: Apache-2.0
"""A ViT as public JAX code writes it, as the other side of a comparison: what plain Flax gives.

Strided convolution for the patches, `nn.Dense` on three-dimensional tokens, Flax's own attention
with separate q, k and v, blocks in a Python loop with parameters of their own, `optax.adamw`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from benchmarks.step_ours import random_batch
from benchmarks.turns import Turn, calibrated
from vit_jax.models import ModelConfig, ViTConfig
from vit_jax.models.base import pair
from vit_jax.models.layers.pool import Pool


class _Block(nn.Module):
    cfg: ViTConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        cfg, dtype = self.cfg, self.cfg.dtype.value
        y = nn.LayerNorm(1e-6, dtype=dtype)(x)
        x = x + nn.MultiHeadDotProductAttention(cfg.num_heads, dtype=dtype)(y, y)
        y = nn.LayerNorm(1e-6, dtype=dtype)(x)
        y = nn.gelu(nn.Dense(cfg.mlp_dim, dtype=dtype)(y), approximate=False)
        return x + nn.Dense(cfg.dim, dtype=dtype)(y)


class _ViT(nn.Module):
    cfg: ViTConfig

    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        cfg, patch, dtype = self.cfg, pair(self.cfg.patch, "patch"), self.cfg.dtype.value
        x = nn.Conv(cfg.dim, patch, patch, padding="VALID", dtype=dtype)(image)
        x = x.reshape(x.shape[0], -1, cfg.dim)
        if cfg.class_token:
            token = self.param("cls", nn.initializers.zeros, (1, 1, cfg.dim)).astype(dtype)
            x = jnp.concatenate([jnp.tile(token, (x.shape[0], 1, 1)), x], axis=1)
        positions = self.param("pos", nn.initializers.normal(0.02), (1, *x.shape[1:]))
        x = x + positions.astype(dtype)
        for _ in range(cfg.depth):
            x = _Block(cfg)(x)
        x = nn.LayerNorm(1e-6, dtype=dtype)(x)
        x = x.mean(axis=1) if cfg.pool is Pool.GAP else x[:, 0]
        return nn.Dense(cfg.num_classes)(x)


def make(
    model: ModelConfig, batch_size: int, steps: int, seconds: float
) -> tuple[dict[str, Any], Callable[[str], Turn]]:
    """Build model and optimizer; a turn is "train" or "forward". Arguments as `step_ours.make`."""
    assert isinstance(model, ViTConfig), "plain Flax is here for plain ViTs"
    net, tx = _ViT(model), optax.adamw(1e-3, weight_decay=0.05)
    batch = {name: jnp.asarray(value) for name, value in random_batch(model, batch_size).items()}

    def logits(params: Any, image: jax.Array) -> jax.Array:
        out = net.apply(params, (image.astype(jnp.float32) / 255 - 0.5) / 0.5)
        return jnp.asarray(out)

    def loss(params: Any, batch: dict[str, jax.Array]) -> jax.Array:
        scores = logits(params, batch["image"]).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(scores, batch["label"]).mean()

    def step(state: tuple[Any, Any], batch: dict[str, jax.Array]) -> tuple[Any, jax.Array]:
        params, opt_state = state
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), value

    train_step, predict = jax.jit(step, donate_argnums=0), jax.jit(logits)
    params = jax.jit(net.init)(jax.random.key(0), jnp.zeros(batch["image"].shape))
    num_params = sum(leaf.size for leaf in jax.tree.leaves(params))
    state = (params, tx.init(params))

    def train(count: int) -> None:
        nonlocal state
        out = None
        for _ in range(count):
            state, out = train_step(state, batch)
        jax.block_until_ready(out)

    def forward(count: int) -> None:
        out = None
        for _ in range(count):
            out = predict(state[0], batch["image"])
        jax.block_until_ready(out)

    works = {"train": (batch_size, train), "forward": (batch_size, forward)}
    return {"num_params": num_params}, calibrated(works, seconds, steps)
