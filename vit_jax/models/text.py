# SPDX-License-Identifier: Apache-2.0
"""Text towers: tokens to one vector, as CLIP's (arXiv:2103.00020) and SigLIP's (arXiv:2303.15343).

Both are the ViT's pre-norm blocks over a table of tokens and learned positions, with a norm at the
end. CLIP's attention is causal, and its vector is that of the end token; SigLIP's sees all places,
padding included, and its vector is that of the last place.
"""

import dataclasses
import enum
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from vit_jax.errors import UserError
from vit_jax.models.base import ModelConfig, check_heads, compute_dtype
from vit_jax.models.layers.attention import AttentionImpl
from vit_jax.models.layers.block import Block, BlockConfig, stack
from vit_jax.models.layers.dense import Dense, spread
from vit_jax.models.layers.init import RULES, Init
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.norm import layer_norm
from vit_jax.settings.fields import value


class TextPool(enum.StrEnum):
    """Whose token's vector stands for the text."""

    END = "end"  # the end token
    LAST = "last"  # the last place, whatever is there
    FIRST = "first"  # the first place


class TowerHead(enum.StrEnum):
    """The layer from a tower's vector to the space that both towers share."""

    NONE = "none"  # the vector itself
    LINEAR = "linear"  # a matrix: CLIP
    AFFINE = "affine"  # a matrix and a bias: SigLIP's texts


class TextInit(enum.StrEnum):
    """By whose rules a text tower is initialised."""

    CLIP = "clip"  # OpenAI's and open_clip's: normal, deviations by width and depth
    SIGLIP = "siglip"  # big_vision's: Xavier


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class TextConfig:
    """A text tower; the defaults are CLIP ViT-B's.

    Attributes:
        vocab_size: V, the number of tokens.
        context: L, the number of places of a text, padding included.
        dim, depth, num_heads, mlp_dim: of the blocks, as the ViT's.
        causal: a token attends to itself and those before it.
        pool: whose vector stands for the text.
        end_id: of the end token, whose first place counts for `end`; 0 says that it is the largest
            id of all, as in CLIP's vocabulary.
        projection: the layer after that.
        gelu, norm_eps: facts of the weights.
        qk_norm: normalise q and k per head.
        layer_scale: initial LayerScale; 0 for none.
        init: the code by whose rules weights are initialised.
    """

    vocab_size: int = value(49_408, least=2)
    context: int = value(77, least=2, unit="tokens")
    dim: int = value(512, least=1)
    depth: int = value(12, least=1)
    num_heads: int = value(8, least=1)
    mlp_dim: int = value(2048, least=1)
    causal: bool = True
    pool: TextPool = TextPool.END
    end_id: int = value(0, least=0, note="0 is the largest id")
    projection: TowerHead = TowerHead.LINEAR
    gelu: Gelu = Gelu.QUICK
    norm_eps: float = 1e-5
    qk_norm: bool = False
    layer_scale: float = 0.0
    init: TextInit = TextInit.CLIP


def validate(cfg: TextConfig, field: str = "text") -> None:
    """Refuse fields that do not go together, naming them below `field`."""
    check_heads(cfg.dim, cfg.num_heads, (f"{field}.dim", f"{field}.num_heads"))
    if cfg.end_id >= cfg.vocab_size:
        raise UserError(
            f"{field}.end_id={cfg.end_id} is no token of {field}.vocab_size={cfg.vocab_size}"
        )
    if cfg.end_id and cfg.pool is not TextPool.END:
        raise UserError(f"{field}.end_id={cfg.end_id} has no effect with {field}.pool={cfg.pool}")


class TextTower(nn.Module):
    """The tower: `token_embed` [V, D], `position_embed` [L, D], `blocks`, `norm`, `head`.

    Attributes:
        cfg: the tower's config.
        like: the image's, whose dtype, rematerialisation, loop and attention kernel it shares.
        out_dim: E of the projection.
        train: as of the blocks.
    """

    cfg: TextConfig
    like: ModelConfig
    out_dim: int
    train: bool = False

    @nn.compact
    def __call__(self, tokens: Int[Array, "B L"]) -> Float[Array, "B E"]:
        """Return the texts' vectors, projected and not normalised, float32.

        An id outside the vocabulary gives NaN; `tokens` may be shorter than the context.
        """
        cfg, dtype = self.cfg, compute_dtype(self.like)
        table = self.param(
            "token_embed", nn.initializers.normal(0.02), (cfg.vocab_size, cfg.dim), jnp.float32
        )
        places = self.param(
            "position_embed", nn.initializers.normal(0.01), (cfg.context, cfg.dim), jnp.float32
        )
        x = jnp.take(jnp.asarray(table), tokens, axis=0, mode="fill").astype(dtype)
        x = x + spread(jnp.asarray(places)[: tokens.shape[1]], x.shape, dtype)
        blocks = BlockConfig(
            num_heads=cfg.num_heads,
            mlp_dim=cfg.mlp_dim,
            gelu=cfg.gelu,
            init=Init.JAX,
            dtype=dtype,
            norm_eps=cfg.norm_eps,
            qkv_bias=True,
            qk_norm=cfg.qk_norm,
            layer_scale=cfg.layer_scale,
            attention=getattr(self.like, "attention", AttentionImpl.AUTO),
            causal=cfg.causal,
        )
        fields: dict[str, Any] = {"cfg": blocks, "train": self.train}
        stacked = stack(Block, self.like, name="blocks", depth=cfg.depth, **fields)
        x, _ = stacked(x, jnp.zeros(cfg.depth))
        x = self._pool(x, tokens)
        x = layer_norm(cfg.norm_eps, dtype, "norm")(x)
        if cfg.projection is TowerHead.NONE:
            return x.astype(jnp.float32)
        return projection(cfg.projection, self.out_dim, "head")(x)

    def _pool(self, x: Float[Array, "B L D"], tokens: Int[Array, "B L"]) -> Float[Array, "B D"]:
        """Return one token's vector; the norm after it is each token's own."""
        match self.cfg.pool:
            case TextPool.FIRST:
                return x[:, 0]
            case TextPool.LAST:
                return x[:, -1]
            case TextPool.END:
                last = tokens == self.cfg.end_id if self.cfg.end_id else tokens
                place = last.argmax(axis=1)  # the first of equal ones
                return jnp.take_along_axis(x, place[:, None, None], axis=1)[:, 0]


def projection(kind: TowerHead, out_dim: int, name: str) -> Dense:
    """Create the layer to the shared space, computed in float32."""
    return Dense(
        out_dim, jnp.float32, RULES[Init.JAX].linear, use_bias=kind is TowerHead.AFFINE, name=name
    )


def initial(params: Any, cfg: TextConfig, key: jax.Array) -> Any:
    """Return a tower's initial parameters by the rules of `cfg.init`, for those of its module.

    CLIP: open_clip's `init_parameters` (open_clip_torch 3.3.0). SigLIP: big_vision's modules, with
    Flax's `nn.Embed` and positions of deviation D^-0.5.
    """
    width, deep = cfg.dim**-0.5, (2 * cfg.depth) ** -0.5
    if cfg.init is TextInit.SIGLIP:
        deviations = {("token_embed",): width, ("position_embed",): width}
    else:
        deviations = {
            ("blocks", "attn", "qkv", "kernel"): width,
            ("blocks", "attn", "proj", "kernel"): width * deep,
            ("blocks", "mlp", "fc1", "kernel"): (2 * cfg.dim) ** -0.5,
            ("blocks", "mlp", "fc2", "kernel"): width * deep,
            ("head", "kernel"): width,
        }
        zeros = {("blocks", "mlp", "fc1", "bias"), ("blocks", "mlp", "fc2", "bias")}
        deviations |= dict.fromkeys(zeros, 0.0)

    def drawn(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        names = tuple(part.key for part in path)
        if names not in deviations:
            return leaf
        own = jax.random.fold_in(key, list(deviations).index(names))
        return deviations[names] * jax.random.normal(own, leaf.shape, leaf.dtype)

    return jax.tree.map_with_path(drawn, params)
