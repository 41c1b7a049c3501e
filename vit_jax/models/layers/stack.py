# SPDX-License-Identifier: Apache-2.0
"""A homogeneous stack of blocks: parameters with one leading depth axis, looped or unrolled.

One layout for checkpoints, import and sharding; `unroll` trades compile time for step speed.
"""

from typing import Any

import jax
from flax import linen as nn

from vit_jax.models.base import Remat

# DOTS keeps what weights multiply (no batch dimension: not attention's own products).
_POLICIES = {
    Remat.DOTS: jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    Remat.FULL: jax.checkpoint_policies.nothing_saveable,
}


def stack(
    block: type[nn.Module], *, depth: int, unroll: int, remat: Remat, name: str, **fields: Any
) -> nn.Module:
    """Create `depth` blocks as one module.

    A block is called with (x, per-layer input) and returns (x, None); the stack with (x, inputs
    stacked over depth). `unroll` blocks are laid out per loop iteration; 0 lays out all.
    """
    if remat is not Remat.NONE:
        # prevent_cse: inside a rolled scan the loop itself keeps XLA from undoing the remat.
        rolled = 0 < unroll < depth
        block = nn.remat(block, policy=_POLICIES[remat], prevent_cse=not rolled)
    scanned = nn.scan(
        block,
        variable_axes={"params": 0, "intermediates": 0},
        split_rngs={"params": True, "dropout": True},
        length=depth,
        unroll=min(unroll, depth) or depth,
    )
    return scanned(name=name, **fields)
