# SPDX-License-Identifier: Apache-2.0
"""A homogeneous stack of blocks: parameters with one leading depth axis, looped or unrolled.

One layout for checkpoints, import and sharding; `scan_unroll` trades compile time for step speed.
"""

from typing import Any

import jax
from flax import linen as nn

from vit_jax.models.base import CAPTURED, ModelConfig, Remat
from vit_jax.sharding import splits_parameters

# DOTS keeps what weights multiply (no batch dimension: not attention's own products).
_POLICIES = {
    Remat.DOTS: jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    Remat.FULL: jax.checkpoint_policies.nothing_saveable,
}


def remat(block: type[nn.Module], policy: Remat, *, prevent_cse: bool = True) -> type[nn.Module]:
    """Return the block keeping for its backward pass what `policy` says.

    `prevent_cse` keeps XLA from undoing it; inside a rolled scan the loop does so by itself. Blocks
    that are laid out and keep everything keep their shards of the weights alone: XLA would hold
    the gathered weights of all of them until the backward pass instead of gathering them again.
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

    A block is called with (x, per-layer input) and returns (x, None); the stack with (x, inputs
    stacked over depth). `model.scan_unroll` blocks are laid out per loop iteration; 0 lays out all,
    or with remat a loop's one: laid out, XLA computes the weights' gradients of all blocks together
    at the end, and what they are made of is held until then (a plan of 1.3 times the loop's
    memory).
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
