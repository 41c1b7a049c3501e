# SPDX-License-Identifier: Apache-2.0
"""A homogeneous stack of blocks, looped or unrolled; its parameters have one leading depth axis.

One layout for checkpoints, import and sharding; `scan_unroll` trades compile time for step speed.
"""

from typing import Any

import jax
from flax import linen as nn

from vit_jax.devices.sharding import splits_parameters
from vit_jax.models.base import CAPTURED, ModelConfig, Remat

# DOTS keeps the products with weights, which have no batch dimension, unlike attention's own.
_POLICIES = {
    Remat.DOTS: jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    Remat.FULL: jax.checkpoint_policies.nothing_saveable,
}


def remat(block: type[nn.Module], policy: Remat, *, prevent_cse: bool = True) -> type[nn.Module]:
    """Return the block that keeps only what `policy` names for its backward pass.

    `prevent_cse` keeps XLA from merging recomputed values with the first ones; a rolled scan does
    so by itself. Unrolled blocks that keep everything keep only their shards of the weights: XLA
    would hold the gathered weights of all blocks until the backward pass.
    """
    if policy is Remat.NONE:
        if not (prevent_cse and splits_parameters()):
            return block
        return nn.remat(block, policy=jax.checkpoint_policies.everything_saveable)
    return nn.remat(block, policy=_POLICIES[policy], prevent_cse=prevent_cse)


def stack(
    block: type[nn.Module], model: ModelConfig, /, *, name: str, depth: int, **fields: Any
) -> nn.Module:
    """Create `depth` blocks as one module.

    A block maps (x, per-layer input) to (x, None); the stack takes (x, inputs stacked over depth).
    Each loop iteration runs `model.scan_unroll` blocks; 0 unrolls all, or one with remat: unrolled,
    XLA computes the weights' gradients of all blocks together at the end and holds their operands
    until then (1.3 times the loop's memory).
    """
    unroll = model.scan_unroll or (depth if model.remat is Remat.NONE else 1)
    scanned = nn.scan(
        remat(block, model.remat, prevent_cse=unroll >= depth),
        variable_axes={"params": 0, CAPTURED: 0},
        split_rngs={"params": True, "dropout": True},
        length=depth,
        unroll=min(unroll, depth),
    )
    return scanned(name=name, **fields)
