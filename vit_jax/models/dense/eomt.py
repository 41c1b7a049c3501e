# SPDX-License-Identifier: Apache-2.0
"""EoMT: a plain ViT that segments (arXiv:2503.19108, tue-mps/eomt models/eomt.py).

Learned queries stand in front of the tokens in the last blocks, and what becomes of each says a
class and a mask. In training a query sees in each of these blocks only the patches of the mask that
it has made so far; that is annealed away, so that inference is the ViT's with more tokens. The
parameters of the encoder have the plain model's names, stacked over depth; those of EoMT stand
beside them.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from vit_jax import models
from vit_jax.devices.sharding import BATCH_AXES, constrain, constrain_parameter
from vit_jax.errors import UserError
from vit_jax.models import base
from vit_jax.models.base import ModelConfig, Remat
from vit_jax.models.conv.conv import Conv
from vit_jax.models.families.vit import ViT
from vit_jax.models.families.vit_config import ViTConfig, num_prefix
from vit_jax.models.layers.block import Block, BlockConfig, PreNormBlock, SelfAttention, remat
from vit_jax.models.layers.dense import Dense, matmul, spread
from vit_jax.models.layers.drop import Dropout, drop_path_rates
from vit_jax.models.layers.mlp import Gelu, gelu
from vit_jax.models.layers.norm import layer_norm, token_norm
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed, PosEmbedAt
from vit_jax.models.layers.rope import Rotation
from vit_jax.models.resample import bilinear, resize_map

# What stands beside the encoder's parameters.
QUERY, CLASS, MASK, UPSCALE = "eomt_query", "eomt_class", "eomt_mask", "eomt_upscale"
BESIDE = (QUERY, CLASS, MASK, UPSCALE)
_UNSEEN = -1e9  # what is added to the logit of a patch outside of a query's mask
_EPS = 1e-6  # of the norms of `UPSCALE`
_EXACT = jax.lax.Precision.HIGHEST


@dataclasses.dataclass(frozen=True, kw_only=True)
class EomtHead:
    """What EoMT adds to an encoder.

    Attributes:
        num_classes: K; class K is "no object".
        queries: Q.
        blocks: m, in how many of the last blocks the queries take part.
        upscale: how often the map of patches is doubled before the masks are made; 0 is until they
            are a quarter of the image's size, but once at least.
    """

    num_classes: int
    queries: int = 100
    blocks: int = 4
    upscale: int = 0


class Segments(NamedTuple):
    """What the queries say, all in float32.

    Attributes:
        classes: logits of K classes and of "no object".
        masks: logits of every query's mask, of a smaller size than the image.
    """

    classes: Float[Array, "B Q C"]
    masks: Float[Array, "B Q h w"]


class EomtOutput(NamedTuple):
    """What the network returns.

    Attributes:
        predictions: one; in training one before each of the last blocks and the last one.
        tokens: after the final norm: queries, prefix, patches.
    """

    predictions: tuple[Segments, ...]
    tokens: Float[Array, "B N D"]


def doublings(cfg: ModelConfig, head: EomtHead) -> int:
    """Return how often the map of patches is doubled."""
    side = max(base.pair(cast(Any, cfg).patch, "patch"))
    return head.upscale or max(1, int(math.log2(side)) - 2)


def validate(cfg: ModelConfig, head: EomtHead, field: str = "objective.") -> None:
    """Raise UserError for an encoder or sizes with which there is no EoMT.

    `field` is what the names of `head`'s fields begin with.
    """
    if not isinstance(cfg, ViTConfig):
        raise UserError(f"EoMT's encoder is a ViT, not a {models.family(cfg).name}; choose one")
    if not 1 <= head.blocks <= cfg.depth:
        raise UserError(
            f"{field}blocks={head.blocks} must be from 1 to model.depth={cfg.depth}",
            field=f"{field}blocks",
        )
    plain: dict[str, Any] = {"native": False, "distilled": False, "token_merging": 0, "window": 0}
    plain |= {"axial": False, "patch_drop_rate": 0.0, "pos_embed_at": PosEmbedAt.STEM}
    plain |= {"final_norm": True, "fc_norm": False, "pre_logits_dim": 0, "num_classes": 0}
    plain |= {"rope_registers": False, "head_norm": False}
    for name, value in plain.items():
        if getattr(cfg, name) != value:
            raise UserError(
                f"model.{name}={getattr(cfg, name)} is not EoMT's, whose queries stand among the "
                f"tokens of a plain ViT; set it to {value}",
                field=f"model.{name}",
            )
    if cfg.pos_embed is PosEmbed.RELATIVE:
        raise UserError("model.pos_embed=relative has no places for EoMT's queries")
    if cfg.pool not in (Pool.CLS, Pool.GAP):
        raise UserError(f"model.pool={cfg.pool} is trained by nothing of EoMT; set cls or gap")


class EomtViT(ViT):
    """An encoder with EoMT's queries and heads; `cfg` is the encoder's."""

    head: EomtHead = EomtHead(num_classes=1)

    @nn.compact
    def __call__(
        self,
        image: Float[Array, "B H W C"],
        *,
        train: bool = False,
        shares: Float[Array, " m"] | None = None,
    ) -> EomtOutput:
        """Segment images.

        Args:
            image: normalised.
            train: drop as the encoder's config says.
            shares: of the queries that keep to their mask in each of the last blocks; with them
                there is a prediction before each. Which these are is drawn by the key "dropout".
        """
        cfg, head, dtype = self.cfg, self.head, base.compute_dtype(self.cfg)
        self._check_image(image)
        x, grid = self._patches(image, dtype)
        x, _ = self._embed(x, grid, dtype)
        x = Dropout(cfg.dropout_rate, deterministic=not train)(x)
        if cfg.pre_norm:
            x = token_norm(cfg.norm, cfg.norm_eps, dtype, "norm_pre")(x)
        rates = jnp.asarray(drop_path_rates(cfg.drop_path_rate, cfg.depth, cfg.drop_path_rule))
        x = constrain(x, BATCH_AXES)
        query = self.param(QUERY, nn.initializers.normal(1.0), (head.queries, cfg.dim), jnp.float32)
        norm = token_norm(cfg.norm, cfg.norm_eps, dtype, "norm")
        read = _Heads(head, doublings(cfg, head), dtype)
        if self.is_initializing():  # the plain stack makes the parameters
            x, _ = self._blocks(x, grid, rates, None, train)
            x = _with_queries(x, jnp.asarray(query), dtype)
            tokens = norm(x)
            return EomtOutput((read(tokens, grid),), tokens)
        run = _Last(self, grid, rates, train)
        first = cfg.depth - head.blocks
        x = run.plain(x, first)
        x = _with_queries(x, jnp.asarray(query), dtype)
        found: list[Segments] = []
        for i in range(first, cfg.depth):
            bias = None
            if shares is not None:
                found.append(read(norm(x), grid))
                inside = _inside(found[-1].masks, grid)
                shape = inside.shape[:2]
                kept = jax.random.uniform(self.make_rng("dropout"), shape) < shares[i - first]
                bias = _bias(inside | ~kept[:, :, None], num_prefix(cfg))
            x = run.block(x, i, bias)
        tokens = norm(x)
        return EomtOutput((*found, read(tokens, grid)), tokens)


def _with_queries(
    x: Float[Array, "B N D"], query: Float[Array, "Q D"], dtype: Any
) -> Float[Array, "B M D"]:
    shape = (x.shape[0], *query.shape)
    return jnp.concatenate([jnp.broadcast_to(spread(query, shape, dtype), shape), x], axis=1)


def _inside(masks: Float[Array, "B Q h w"], grid: tuple[int, int]) -> Bool[Array, "B Q N"]:
    """Return which patches, row by row, a mask has: where it is above 0, resized bilinearly."""
    sides = zip(masks.shape[2:], grid, strict=True)
    rows, columns = (jnp.asarray(bilinear(*pair), jnp.float32) for pair in sides)
    masks = jax.lax.stop_gradient(masks)
    small = jnp.einsum("pi,bqij,rj->bqpr", rows, masks, columns, precision=_EXACT)
    return small.reshape(*masks.shape[:2], -1) > 0


def _bias(seen: Bool[Array, "B Q N"], prefix: int) -> Float[Array, "B 1 M M"]:
    """Return what is added to logits: queries see all tokens but the patches not `seen`."""
    count = seen.shape[1]
    hidden = jnp.where(seen, 0.0, _UNSEEN).astype(jnp.float32)
    tokens = prefix + seen.shape[2]
    return jnp.pad(hidden, ((0, 0), (0, tokens), (count + prefix, 0)))[:, None]


class _Biased(SelfAttention):
    """Self-attention whose logits a bias is added to."""

    @nn.compact
    def __call__(
        self, x: Float[Array, "B N D"], bias: Float[Array, "B 1 N N"]
    ) -> Float[Array, "B N D"]:
        return self._attend(*self._heads(x), x.shape[-1], bias)


class _BiasedBlock(PreNormBlock):
    """The block of the ViT, with a bias of attention's logits."""

    @nn.compact
    def __call__(
        self, x: Float[Array, "B N D"], each: tuple[Float[Array, ""], Float[Array, "B 1 N N"]]
    ) -> tuple[Float[Array, "B N D"], None]:
        rate, bias = each
        attend_within = _Biased(self.cfg, self.train, name="attn")
        return self._passed(x, rate, lambda y: attend_within(y, bias))


class _Last:
    """Runs the stacked blocks of a bound encoder, its first ones together and others one by one."""

    def __init__(
        self, model: EomtViT, grid: tuple[int, int], rates: Float[Array, " L"], train: bool
    ) -> None:
        cfg = model.cfg
        self.model, self.rates, self.train, self.grid = model, rates, train, grid
        self.params = model.variables["params"]["blocks"]
        self.dropping = train and model.has_rng("dropout")
        self.key = model.make_rng("dropout") if self.dropping else None
        self.unroll = cfg.scan_unroll or (cfg.depth if cfg.remat is Remat.NONE else 1)

    def _fields(self, before: int) -> dict[str, Any]:
        cfg = self.model.cfg
        rotation = Rotation.of(cfg, self.grid, before)
        return {"cfg": BlockConfig.of(cfg, rotation=rotation), "train": self.train}

    def _rngs(self, number: Any) -> dict[str, Any]:
        return {} if self.key is None else {"dropout": jax.random.fold_in(self.key, number)}

    def plain(self, x: jax.Array, count: int) -> jax.Array:
        """Run the first blocks, without queries."""
        if not count:
            return x
        cfg = self.model.cfg
        block = remat(Block, cfg.remat, prevent_cse=self.unroll >= count)
        made = block(**self._fields(num_prefix(cfg)))

        def run(x: jax.Array, each: tuple[Any, ...]) -> tuple[jax.Array, None]:
            params, rate, number = each
            x, _ = cast(Any, made.apply({"params": params}, x, rate, rngs=self._rngs(number)))
            return x, None

        layers = jax.tree.map(lambda leaf: leaf[:count], self.params)
        each = layers, self.rates[:count], jnp.arange(count)
        return jax.lax.scan(run, x, each, unroll=min(self.unroll, count))[0]

    def block(self, x: jax.Array, number: int, bias: jax.Array | None) -> jax.Array:
        """Run one block, with the queries in front."""
        cfg, head = self.model.cfg, self.model.head
        kind = Block if bias is None else _BiasedBlock
        made = remat(kind, cfg.remat)(**self._fields(head.queries + num_prefix(cfg)))
        layer = {"params": jax.tree.map(lambda leaf: leaf[number], self.params)}
        given = self.rates[number] if bias is None else (self.rates[number], bias)
        x, _ = cast(Any, made.apply(layer, x, given, rngs=self._rngs(number)))
        return x


class _Heads:
    """The heads of an `EomtViT`, created in its compact method and called for every prediction."""

    def __init__(self, head: EomtHead, times: int, dtype: Any) -> None:
        self.queries = head.queries
        self.classes = Dense(head.num_classes + 1, jnp.float32, _uniform, name=CLASS)
        self.mask = _MaskMlp(dtype, name=MASK)
        self.upscale = _Upscale(times, dtype, name=UPSCALE)

    def __call__(self, tokens: Float[Array, "B N D"], grid: tuple[int, int]) -> Segments:
        query, patches = tokens[:, : self.queries], tokens[:, -grid[0] * grid[1] :]
        maps = self.upscale(patches.reshape(tokens.shape[0], *grid, -1))
        flat = maps.reshape(maps.shape[0], -1, maps.shape[-1])
        masks = jnp.matmul(self.mask(query), flat.mT, preferred_element_type=jnp.float32)
        masks = masks.reshape(*masks.shape[:2], *maps.shape[1:3])
        return Segments(self.classes(query).astype(jnp.float32), masks)


def _uniform(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    """Draw as PyTorch does for a layer: within 1 / sqrt(fan in)."""
    limit = 1 / math.sqrt(math.prod(shape[:-1]))
    return jax.random.uniform(key, shape, dtype, -limit, limit)


class _MaskMlp(nn.Module):
    """From a query's token to what its mask's patches have in common."""

    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "B Q D"]) -> Float[Array, "B Q D"]:
        for layer in (1, 2, 3):
            x = Dense(x.shape[-1], self.dtype, _uniform, name=f"fc{layer}")(x)
            x = gelu(x, Gelu.ERF) if layer < 3 else x
        return x


class _Upscale(nn.Module):
    """Doubles a map several times: a transposed 2x2 convolution, then a depthwise 3x3 one.

    The first is one linear layer from each place to four.
    """

    times: int
    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "B P Q D"]) -> Float[Array, "B R S D"]:
        for i in range(self.times):
            x = _Doubled(self.dtype, name=f"{i}")(x)
        return x


class _Doubled(nn.Module):
    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "B P Q D"]) -> Float[Array, "B R S D"]:
        dim = x.shape[-1]
        y = gelu(_Transposed(self.dtype, name="conv1")(x), Gelu.ERF)
        conv = Conv(dim, 3, self.dtype, groups=dim, kernel_init=_uniform, name="conv2")
        return layer_norm(_EPS, self.dtype, "norm")(conv(y))


class _Transposed(nn.Module):
    """A transposed convolution of 2x2 and stride 2, whose kernel is [2, 2, in, out]."""

    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "B P Q D"]) -> Float[Array, "B R S D"]:
        batch, rows, columns, dim = x.shape
        kernel = jnp.asarray(self.param("kernel", _uniform, (2, 2, dim, dim), jnp.float32))
        bias = self.param("bias", nn.initializers.zeros, (dim,), jnp.float32)
        kernel = constrain_parameter(kernel, f"{self.name}/kernel")
        flat = kernel.transpose(2, 0, 1, 3).reshape(dim, 4 * dim)
        y = matmul(x.reshape(-1, dim).astype(self.dtype), flat)
        y = y.reshape(batch, rows, columns, 2, 2, dim).transpose(0, 1, 3, 2, 4, 5)
        y = y.reshape(batch, 2 * rows, 2 * columns, dim)
        return y + spread(jnp.asarray(bias), y.shape, self.dtype)


def create(cfg: ModelConfig, head: EomtHead) -> EomtViT:
    """Build the network of an encoder's config.

    Raises UserError: an encoder or sizes with which there is no EoMT.
    """
    models.create(cfg)  # which checks it
    validate(cfg, head)
    return EomtViT(cast(ViTConfig, cfg), head)


def init(cfg: ModelConfig, head: EomtHead, key: jax.Array) -> tuple[Any, Mapping[str, Any]]:
    """Initialise (params, model_state); pure. The encoder's are those of the plain model."""
    looped = models.looped(cfg)
    params, state = models.init(models.create(looped), looped, key)
    image = jnp.zeros((1, *models.input_shape(cfg)), jnp.float32)
    own = create(looped, head).init(jax.random.fold_in(key, 1), image)["params"]
    return {**params, **{name: own[name] for name in BESIDE}}, state


def abstract(cfg: ModelConfig, head: EomtHead) -> dict[str, Any]:
    """Return the shapes and dtypes of {"params": ..., **model_state}, allocating nothing."""
    params, state = jax.eval_shape(lambda: init(cfg, head, jax.random.key(0)))
    return {"params": params, **state}


def class_scores(found: Segments, size: tuple[int, int]) -> Float[Array, "B K H W"]:
    """Return how much each pixel is of each class: every query's mask times its probability.

    The masks' logits are brought to (H, W) bilinearly before they become shares, as the authors do.
    """
    likely = jax.nn.softmax(found.classes, axis=-1)[..., :-1]
    masks = jax.nn.sigmoid(resize_map(found.masks.transpose(0, 2, 3, 1), size))
    return jnp.einsum("bqk,bhwq->bkhw", likely, masks, precision=_EXACT)
