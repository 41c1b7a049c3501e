# SPDX-License-Identifier: Apache-2.0
"""MLP-Mixer (arXiv:2105.01601): MLPs over the tokens and over the channels, in turn."""

import dataclasses

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.devices.sharding import BATCH_AXES, constrain
from vit_jax.models import base, facts
from vit_jax.models.base import ModelConfig, Output
from vit_jax.models.layers.block import stack
from vit_jax.models.layers.dense import classifier
from vit_jax.models.layers.drop import DropPathRule, drop_path, drop_path_rates
from vit_jax.models.layers.init import RULES, Init
from vit_jax.models.layers.mlp import Gelu, Mlp
from vit_jax.models.layers.norm import layer_norm
from vit_jax.models.layers.patch import PatchEmbed
from vit_jax.settings.fields import value


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class MixerConfig(ModelConfig):
    """An MLP-Mixer; the defaults are Mixer-B/16 of google-research/vision_transformer.

    Fields not listed are as in `ViTConfig`.

    Attributes:
        token_mlp_dim: hidden width of the MLPs over the tokens.
        channel_mlp_dim: hidden width of the MLPs over the channels.
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


class MixerBlock(nn.Module):
    """x += mlp over tokens of norm(x); x += mlp over channels of norm(x), with stochastic depth."""

    cfg: MixerConfig
    train: bool

    @nn.compact
    def __call__(
        self, x: Float[Array, "B N D"], drop_path_rate: Float[Array, ""]
    ) -> tuple[Float[Array, "B N D"], None]:
        cfg, dtype = self.cfg, base.compute_dtype(self.cfg)
        y = layer_norm(cfg.norm_eps, dtype, "norm1")(x).swapaxes(1, 2)
        y = Mlp(cfg.token_mlp_dim, cfg.gelu, cfg.init, dtype, name="mlp_tokens")(y)
        x = x + self._branch(y.swapaxes(1, 2), drop_path_rate)
        y = layer_norm(cfg.norm_eps, dtype, "norm2")(x)
        y = Mlp(cfg.channel_mlp_dim, cfg.gelu, cfg.init, dtype, name="mlp_channels")(y)
        return constrain(x + self._branch(y, drop_path_rate), BATCH_AXES), None

    def _branch(self, y: Array, drop_path_rate: Array) -> Array:
        if not (self.cfg.drop_path_rate > 0 and self.train):
            return y
        return drop_path(y, drop_path_rate, self.make_rng("dropout"))


class Mixer(nn.Module):
    """MLP-Mixer over [B, H, W, C] images, already normalised."""

    cfg: MixerConfig

    @nn.compact
    def __call__(self, image: Float[Array, "B H W C"], *, train: bool = False) -> Output:
        cfg, dtype = self.cfg, base.compute_dtype(self.cfg)
        base.check_input(image, base.pair(cfg.image_size, "image_size"), cfg.channels)
        patch = base.pair(cfg.patch, "patch")
        x = PatchEmbed(patch, cfg.dim, cfg.init, dtype, name="patch_embed")(image)
        blocks = stack(MixerBlock, cfg, name="blocks", depth=cfg.depth, cfg=cfg, train=train)
        rates = drop_path_rates(cfg.drop_path_rate, cfg.depth, cfg.drop_path_rule)
        x, _ = blocks(constrain(x, BATCH_AXES), jnp.asarray(rates))
        x = layer_norm(cfg.norm_eps, dtype, "norm")(x)
        features = x.mean(axis=1, dtype=jnp.float32)
        logits = classifier(cfg, RULES[cfg.init].linear)(features)
        return Output(logits=logits, features=features, tokens=x)


_VARIANTS: dict[str, MixerConfig] = facts.variants(MixerConfig)
_ARCHITECTURES = {(v.patch, v.depth, v.dim): f"{name}_224" for name, v in _VARIANTS.items()}


def _timm(cfg: MixerConfig) -> facts.Timm:
    sizes = {"patch": base.pair(cfg.patch, "patch"), "depth": cfg.depth, "dim": cfg.dim}
    args = {
        "img_size": list(base.pair(cfg.image_size, "image_size")),
        "mlp_ratio": [facts.ratio(w, cfg.dim) for w in (cfg.token_mlp_dim, cfg.channel_mlp_dim)],
    }
    fixed = {"gelu": Gelu.ERF, "norm_eps": 1e-6}
    return facts.Timm(facts.architecture("Mixer", _ARCHITECTURES, **sizes), args, fixed)


FAMILY = facts.Family(
    config=MixerConfig,
    module=Mixer,
    variants=_VARIANTS,
    validate=base.patch_grid,
    one_size=True,
    images=lambda cfg: facts.Images(facts.HALF),
    timm=_timm,
    timm_names=lambda cfg: facts.names("Mixer", "timm"),
    google=facts.Google(facts.names("Mixer", "google"), stem="stem/kernel"),
)
