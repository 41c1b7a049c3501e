# SPDX-License-Identifier: Apache-2.0
"""What attention weights say of an image: rollout, distances, windows laid out on the grid.

Pure functions of what `models.captured` records. A grid is (rows, columns) of tokens, numbered in
row-major order; tokens before the patches (class, distillation, registers) are the prefix.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.models import HybridConfig, ModelConfig, SwinConfig, base, hybrid

Grid = tuple[int, int]


def patch_grid(cfg: ModelConfig, image_size: Grid) -> Grid:
    """Return the grid that a transformer or a Mixer cuts an image into; a Swin's first stage's.

    Raises:
        UserError: the patch does not divide the image.
    """
    if isinstance(cfg, HybridConfig):
        return hybrid.token_grid(cfg, image_size)
    return base.grid(image_size, base.pair(getattr(cfg, "patch"), "patch"))  # noqa: B009


def stage_grids(cfg: SwinConfig, image_size: Grid) -> list[Grid]:
    """Return the grid of each stage of a Swin."""
    grids = [patch_grid(cfg, image_size)]
    for _ in cfg.depths[1:]:
        rows, columns = grids[-1]
        grids.append(((rows + 1) // 2, (columns + 1) // 2))
    return grids


def num_prefix(cfg: ModelConfig) -> int:
    """Return how many tokens a ViT, DeiT or hybrid puts before the patches."""
    token, distilled = getattr(cfg, "class_token", False), getattr(cfg, "distilled", False)
    return int(token) + int(distilled) + getattr(cfg, "num_registers", 0)


def rollout(
    weights: Float[Array, "L B h N N"], before: Float[Array, "B N N"] | None = None
) -> Float[Array, "B N N"]:
    """Return how much of each token's output comes from each input token (arXiv:2005.00928).

    Of a layer, the mean over the heads and the residual count as one half each; layers multiply.
    Rows sum to 1, as those of `weights` do. `before` is the rollout of the layers before these.
    """
    identity = jnp.eye(weights.shape[-1])
    layers = (weights.astype(jnp.float32).mean(axis=2) + identity[None, None]) / 2
    total = jnp.broadcast_to(identity[None], layers.shape[1:]) if before is None else before
    for layer in layers:
        total = jnp.matmul(layer, total, precision=jax.lax.Precision.HIGHEST)
    return total


def prepend_token(flow: Float[Array, "B N N"]) -> Float[Array, "B M M"]:
    """Add, as the first of M = N + 1, a token that has read itself only: ConViT's class token."""
    return jnp.pad(flow, ((0, 0), (1, 0), (1, 0))).at[:, 0, 0].set(1.0)
