# SPDX-License-Identifier: Apache-2.0
"""Initial values of the weights: Google's, timm's and DeiT's, MoCo v3's, MAE's, ViT-5's rules."""

import dataclasses
import enum
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

Initializer = Callable[..., jax.Array]


class Init(enum.StrEnum):
    """Which code's rules to initialise by."""

    JAX = "jax"  # google-research/vision_transformer: xavier uniform
    TIMM = "timm"  # timm and facebookresearch/deit: normal(0.02)
    MOCO = "moco"  # MoCo v3 (arXiv:2104.02057), as timm's `moco` mode
    MAE = "mae"  # facebookresearch/mae (arXiv:2111.06377)
    VIT5 = "vit5"  # ViT-5 (arXiv:2602.08071): timm's, and registers like the class token


@dataclasses.dataclass(frozen=True)
class InitRules:
    """The initializers of one code, by the role of the weight."""

    linear: Initializer
    qkv: Callable[[int], Initializer]  # takes the number of projections fused in one kernel
    mlp_bias: Initializer
    patch_kernel: Initializer
    patch_bias: Callable[[int], Initializer]  # takes the fan-in of the patch kernel
    token: Initializer
    register: Initializer = dataclasses.field(  # that of timm's reg_token
        default_factory=lambda: nn.initializers.normal(1e-6)
    )


def _fused_xavier(count: int) -> Initializer:
    """Return Xavier uniform for each of `count` equal projections that share one matrix."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        limit = math.sqrt(6 / (shape[0] + shape[1] // count))
        return jax.random.uniform(key, shape, dtype, -limit, limit)

    return init


def _uniform(limit: float) -> Initializer:
    return lambda key, shape, dtype=jnp.float32: jax.random.uniform(
        key, shape, dtype, -limit, limit
    )


def _torch_conv(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    # PyTorch's default for a convolution, kaiming_uniform(a=sqrt(5)): U(+-1/sqrt(fan_in)).
    return _uniform(1 / math.sqrt(math.prod(shape[:-1])))(key, shape, dtype)


def _flat_xavier(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    """Xavier uniform for a patch kernel as the matrix that it is."""
    return _uniform(math.sqrt(6 / (math.prod(shape[:-1]) + shape[-1])))(key, shape, dtype)


_zeros = nn.initializers.zeros
# trunc_normal_(std=.02) of PyTorch cuts at the absolute values +-2, a hundred sigma: it is a plain
# normal, unlike JAX's truncated_normal(0.02), which cuts at two sigma.
_normal02 = nn.initializers.normal(0.02)

RULES: dict[Init, InitRules] = {
    Init.JAX: InitRules(
        linear=nn.initializers.xavier_uniform(),
        qkv=_fused_xavier,  # Flax initialises q, k and v as kernels of their own
        mlp_bias=nn.initializers.normal(1e-6),
        patch_kernel=nn.initializers.lecun_normal(),
        patch_bias=lambda fan_in: _zeros,
        token=_zeros,
    ),
    Init.TIMM: InitRules(
        linear=_normal02,
        qkv=lambda count: _normal02,
        mlp_bias=_zeros,
        patch_kernel=_torch_conv,
        patch_bias=lambda fan_in: _uniform(1 / math.sqrt(fan_in)),
        token=_normal02,  # facebookresearch/deit; later timm has 1e-6
    ),
    Init.MOCO: InitRules(
        linear=nn.initializers.xavier_uniform(),
        qkv=_fused_xavier,
        mlp_bias=_zeros,
        patch_kernel=_torch_conv,
        patch_bias=lambda fan_in: _uniform(1 / math.sqrt(fan_in)),
        token=nn.initializers.normal(1e-6),
    ),
    Init.MAE: InitRules(
        linear=nn.initializers.xavier_uniform(),
        qkv=lambda count: nn.initializers.xavier_uniform(),  # of the fused matrix
        mlp_bias=_zeros,
        patch_kernel=_flat_xavier,
        patch_bias=lambda fan_in: _uniform(1 / math.sqrt(fan_in)),
        token=_normal02,
    ),
}
RULES[Init.VIT5] = dataclasses.replace(RULES[Init.TIMM], register=_normal02)
POS_EMBED = _normal02  # of all these codes
