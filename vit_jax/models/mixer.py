# SPDX-License-Identifier: Apache-2.0
"""MLP-Mixer (arXiv:2105.01601): MLPs over the tokens and over the channels, in turn."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.fields import value
from vit_jax.models.base import (
    ModelConfig,
    Output,
    check_input,
    compute_dtype,
    grid,
    pair,
)
from vit_jax.models.layers.drop_path import DropPathRule, drop_path, drop_path_rates
from vit_jax.models.layers.head import classifier
from vit_jax.models.layers.init import RULES, Init
from vit_jax.models.layers.mlp import Gelu, Mlp
from vit_jax.models.layers.norm import layer_norm
from vit_jax.models.layers.patch import PatchEmbed
from vit_jax.models.layers.stack import stack
from vit_jax.sharding import BATCH_AXES, constrain


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class MixerConfig(ModelConfig):
    """An MLP-Mixer; the defaults are Mixer-B/16 of google-research/vision_transformer.

    Attributes:
        patch: (rows, columns) of a patch in pixels; (P,) means square.
        dim, depth: D, L.
        token_mlp_dim, channel_mlp_dim: hidden widths of the MLPs over the tokens and the channels.
        gelu, norm_eps: facts of the weights.
        drop_path_rate, drop_path_rule: stochastic depth and how it runs over the blocks.
        init: whose initial weights.
    """

    patch: tuple[int, ...] = (16, 16)
    dim: int = value(768, least=1)
    depth: int = value(12, least=1)
    token_mlp_dim: int = value(384, least=1)
    channel_mlp_dim: int = value(3072, least=1)
    gelu: Gelu = Gelu.TANH
    norm_eps: float = 1e-6
    drop_path_rate: float = value(0.0, least=0, below=1)
    drop_path_rule: DropPathRule = DropPathRule.LINEAR
    init: Init = Init.JAX
    zero_head: bool = True


# Table 1 of the paper. name: (D, L, token MLP, channel MLP)
_SIZES = {
    "s": (512, 8, 256, 2048),
    "b": (768, 12, 384, 3072),
    "l": (1024, 24, 512, 4096),
}
VARIANTS: dict[str, MixerConfig] = {
    f"mixer_{size}{patch}": MixerConfig(
        dim=dim,
        depth=depth,
        token_mlp_dim=token_mlp_dim,
        channel_mlp_dim=channel_mlp_dim,
        patch=(patch, patch),
    )
    for size, (dim, depth, token_mlp_dim, channel_mlp_dim) in _SIZES.items()
    for patch in (16, 32)
}


def validate(cfg: MixerConfig) -> None:
    """Refuse fields that do not go together, in one line that names them."""
    grid(pair(cfg.image_size, "image_size"), pair(cfg.patch, "patch"))


class MixerBlock(nn.Module):
    """x += mlp over tokens of norm(x); x += mlp over channels of norm(x), with stochastic depth."""

    token_mlp_dim: int
    channel_mlp_dim: int
    gelu: Gelu
    init_rules: Init
    dtype: Any
    norm_eps: float
    has_drop_path: bool
    train: bool

    @nn.compact
    def __call__(
        self, x: Float[Array, "B N D"], drop_path_rate: Float[Array, ""]
    ) -> tuple[Float[Array, "B N D"], None]:
        y = layer_norm(self.norm_eps, self.dtype, "norm1")(x)
        mlp = Mlp(self.token_mlp_dim, self.gelu, self.init_rules, self.dtype, name="mlp_tokens")
        y = mlp(y.swapaxes(1, 2)).swapaxes(1, 2)
        x = x + self._branch(y, drop_path_rate)
        y = layer_norm(self.norm_eps, self.dtype, "norm2")(x)
        mlp = Mlp(self.channel_mlp_dim, self.gelu, self.init_rules, self.dtype, name="mlp_channels")
        return constrain(x + self._branch(mlp(y), drop_path_rate), BATCH_AXES), None

    def _branch(
        self, y: Float[Array, "B N D"], drop_path_rate: Float[Array, ""]
    ) -> Float[Array, "B N D"]:
        if not (self.has_drop_path and self.train):
            return y
        return drop_path(y, drop_path_rate, self.make_rng("dropout"))


class Mixer(nn.Module):
    """MLP-Mixer over [B, H, W, C] images, already normalised."""

    cfg: MixerConfig

    @nn.compact
    def __call__(self, image: Float[Array, "B H W C"], *, train: bool = False) -> Output:
        cfg, dtype = self.cfg, compute_dtype(self.cfg)
        check_input(image, pair(cfg.image_size, "image_size"), cfg.channels)
        patch = pair(cfg.patch, "patch")
        x = PatchEmbed(patch, cfg.dim, cfg.init, dtype, name="patch_embed")(image)
        blocks = stack(
            MixerBlock,
            depth=cfg.depth,
            unroll=cfg.scan_unroll,
            policy=cfg.remat,
            name="blocks",
            token_mlp_dim=cfg.token_mlp_dim,
            channel_mlp_dim=cfg.channel_mlp_dim,
            gelu=cfg.gelu,
            init_rules=cfg.init,
            dtype=dtype,
            norm_eps=cfg.norm_eps,
            has_drop_path=cfg.drop_path_rate > 0,
            train=train,
        )
        rates = drop_path_rates(cfg.drop_path_rate, cfg.depth, cfg.drop_path_rule)
        x, _ = blocks(constrain(x, BATCH_AXES), jnp.asarray(rates))
        x = layer_norm(cfg.norm_eps, dtype, "norm")(x)
        features = x.mean(axis=1, dtype=jnp.float32)
        logits = classifier(cfg, RULES[cfg.init].linear)(features)
        return Output(logits=logits, features=features, tokens=x)
