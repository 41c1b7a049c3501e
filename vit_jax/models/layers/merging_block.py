# SPDX-License-Identifier: Apache-2.0
"""The ViT's blocks with token merging between attention and MLP (ToMe, arXiv:2210.09461).

Parameters are those of the plain stack. Since every block sees fewer tokens than the one before,
they cannot be scanned: a loop applies each layer's slice.
"""

from collections.abc import Mapping
from typing import Any, cast

import jax
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.errors import UserError
from vit_jax.models.base import Remat
from vit_jax.models.layers.attention import Attention, AttentionImpl
from vit_jax.models.layers.block import Block
from vit_jax.models.layers.capture import COLLECTION
from vit_jax.models.layers.dropout import Dropout
from vit_jax.models.layers.merge import log_sizes, merge
from vit_jax.models.layers.norm import layer_norm
from vit_jax.models.layers.stack import remat
from vit_jax.sharding import BATCH_AXES, constrain


def check_merging(r: int, num_patches: int, impl: AttentionImpl) -> None:
    """Refuse a number that the first block could not merge, and a kernel that cannot weigh.

    Raises:
        UserError: naming the fields and what they may be.
    """
    if not 0 <= r <= num_patches // 2:
        raise UserError(
            f"model.token_merging={r} must be 0 (off) to {num_patches // 2}, half of the "
            f"{num_patches} patches"
        )
    if r and impl in (AttentionImpl.CUDNN, AttentionImpl.PALLAS):
        raise UserError(
            f"model.attention={impl} cannot weigh merged tokens (model.token_merging) by their "
            "sizes; choose auto"
        )


class MergingAttention(Attention):
    """Self-attention in which a token counts as the patches it stands for do (equation 1)."""

    @nn.compact
    def __call__(
        self, x: Float[Array, "B N D"], sizes: Float[Array, "B N"] | None
    ) -> tuple[Float[Array, "B N D"], Float[Array, "B N d"]]:
        """Return what `Attention` does, and the keys' mean over the heads."""
        q, k, v = self._heads(x)
        return self._attend(q, k, v, log_sizes(sizes)), k.mean(axis=1)


class MergingBlock(Block):
    """The ViT's block, which merges `merged` pairs of tokens after its attention."""

    merged: int
    num_prefix: int

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B N D"],
        drop_path_rate: Float[Array, ""],
        sizes: Float[Array, "B N"] | None,
    ) -> tuple[Float[Array, "B M D"], Float[Array, "B M"] | None]:
        y = layer_norm(self.norm_eps, self.dtype, "norm1")(x)
        y, keys = self._make(MergingAttention)(y, sizes)
        y = Dropout(self.dropout_rate, deterministic=not self.train)(y)
        x = x + self._branch(y, drop_path_rate, "ls1")
        x, sizes = merge(x, sizes, keys, self.merged, self.num_prefix)
        x = self._add_mlp(x, drop_path_rate)
        return constrain(x, BATCH_AXES), sizes


def merging_stack(
    model: nn.Module,
    x: Float[Array, "B N D"],
    rates: Float[Array, "L"],
    policy: Remat,
    fields: Mapping[str, Any],
) -> tuple[Float[Array, "B M D"], Float[Array, "B M"] | None]:
    """Apply the blocks of a bound model, whose stacked parameters are called "blocks".

    Args:
        model: has the parameters and the dropout key.
        x: tokens.
        rates: stochastic depth's, of each block.
        policy: what the backward pass keeps.
        fields: of every `MergingBlock`.

    Returns:
        The tokens that are left and how many patches each stands for (None: one each).

    Raises:
        UserError: the caller wants to see attention weights, which differ in size by layer.
    """
    if model.is_mutable_collection(COLLECTION):
        raise UserError(
            "attention weights of merged tokens belong to no patches; look at the model with "
            "model.token_merging=0"
        )
    block = remat(MergingBlock, policy)(**fields)
    params = model.variables["params"]["blocks"]
    key = model.make_rng("dropout") if fields["train"] and model.has_rng("dropout") else None
    sizes: jax.Array | None = None
    for i in range(rates.shape[0]):
        rngs = {} if key is None else {"dropout": jax.random.fold_in(key, i)}
        layer = jax.tree.map(lambda leaf, i=i: leaf[i], params)
        done = block.apply({"params": layer}, x, rates[i], sizes, rngs=rngs)
        x, sizes = cast(tuple[jax.Array, jax.Array | None], done)
    return x, sizes
