# SPDX-License-Identifier: Apache-2.0
"""RegNetY (arXiv:2003.13678): a residual network whose block widths follow a quantised line.

Sizes: figure 16 of the paper's appendix; `_tv`: those of torchvision, whose widths are rounded
otherwise. RegNetY-16GF is the teacher of DeiT (arXiv:2012.12877).
"""

import dataclasses
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.errors import UserError
from vit_jax.fields import value
from vit_jax.models.base import (
    ModelConfig,
    Output,
    check_input,
    compute_dtype,
    pair,
)
from vit_jax.models.layers import bottleneck
from vit_jax.models.layers.capture import record
from vit_jax.models.layers.drop_path import DropPathRule, drop_path_rates
from vit_jax.models.layers.dropout import Dropout
from vit_jax.models.layers.head import classifier
from vit_jax.sharding import BATCH_AXES, constrain

_MULTIPLE = 8  # of which every width of the quantised line is one (section 3.3)
_DEEPEST = 1000  # blocks


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class RegNetConfig(ModelConfig):
    """A RegNetY, with bottleneck ratio 1; the defaults are RegNetY-16GF.

    Block j of the network has the width w0 + wa * j, rounded to w0 times a whole power of wm, then
    to 8; blocks of one width are one stage, whose first block halves height and width.

    Attributes:
        depth: blocks, over all stages.
        w0, wa, wm: initial width, slope and quantisation of the line of widths.
        group_width: channels of a group of the 3x3 convolutions; a stage's width is rounded to the
            nearest multiple.
        group_min_ratio: round up where the nearest multiple is below this share of the width, and
            halves always up, as torchvision does with 0.9; 0 for neither.
        stem_width: channels after the stem.
        se_ratio: width of the squeeze-and-excitation layer (arXiv:1709.01507) relative to a block's
            input; 0 for none, a RegNetX.
        norm_eps: of every BatchNorm.
        zero_init_last: start the scale of a block's last BatchNorm at zero, and so the block as its
            shortcut.
        dropout_rate: before the head.
        drop_path_rate: stochastic depth, from 0 in the first block to this in the last.
    """

    depth: int = value(18, least=1, most=_DEEPEST)
    w0: int = value(200, least=1)
    wa: float = value(106.23, least=0)
    wm: float = value(2.48, above=1)
    group_width: int = value(112, least=1)
    group_min_ratio: float = 0.0
    stem_width: int = value(32, least=1)
    se_ratio: float = value(0.25, least=0, most=1)
    norm_eps: float = 1e-5
    zero_init_last: bool = True
    dropout_rate: float = value(0.0, least=0, below=1)
    drop_path_rate: float = value(0.0, least=0, below=1)


# name: (w0, wa, wm, depth, group width)
SIZES = {
    "200mf": (24, 36.44, 2.49, 13, 8),
    "400mf": (48, 27.89, 2.09, 16, 8),
    "600mf": (48, 32.54, 2.32, 15, 16),
    "800mf": (56, 38.84, 2.4, 14, 16),
    "1600mf": (48, 20.71, 2.65, 27, 24),
    "3200mf": (80, 42.63, 2.66, 21, 24),
    "4gf": (96, 31.41, 2.24, 22, 64),
    "6400mf": (112, 33.22, 2.27, 25, 72),
    "8gf": (192, 76.82, 2.19, 17, 56),
    "12gf": (168, 73.36, 2.37, 19, 112),
    "16gf": (200, 106.23, 2.48, 18, 112),
    "32gf": (232, 115.89, 2.53, 20, 232),
}
VARIANTS: dict[str, RegNetConfig] = {
    f"regnety_{size}{suffix}": RegNetConfig(
        w0=w0, wa=wa, wm=wm, depth=depth, group_width=group_width, group_min_ratio=ratio
    )
    for suffix, ratio, sizes in (("", 0.0, SIZES), ("_tv", 0.9, ("800mf", "8gf")))
    for size in sizes
    for w0, wa, wm, depth, group_width in [SIZES[size]]
}


class Stage(NamedTuple):
    """Blocks of one width, and the number of groups of their 3x3 convolutions."""

    depth: int
    width: int
    groups: int


def stages(cfg: RegNetConfig) -> list[Stage]:
    """Return the stages that the line of widths makes (equations 2 to 4; group width after)."""
    powers = [round(math.log1p(cfg.wa * j / cfg.w0) / math.log(cfg.wm)) for j in range(cfg.depth)]
    widths = [_MULTIPLE * round(cfg.w0 * cfg.wm**power / _MULTIPLE) for power in powers]
    found = []
    for width, blocks in itertools.groupby(widths):
        group = min(cfg.group_width, width)
        count = round(width / group)
        if cfg.group_min_ratio:
            count = math.floor(width / group + 0.5)
            count += count * group < cfg.group_min_ratio * width
        found.append(Stage(len(list(blocks)), count * group, count))
    return found


def validate(cfg: RegNetConfig) -> None:
    """Refuse fields that do not go together, in one line that names them."""
    pair(cfg.image_size, "image_size")
    if cfg.w0 % _MULTIPLE:
        raise UserError(f"model.w0={cfg.w0} must be a multiple of {_MULTIPLE}")
    if cfg.group_min_ratio not in (0.0, 0.9):
        raise UserError(f"model.group_min_ratio={cfg.group_min_ratio} must be 0 or 0.9")
    try:
        widths = [stage.width for stage in stages(cfg)]
    except OverflowError:
        raise UserError(
            f"model.w0={cfg.w0}, wa={cfg.wa} and wm={cfg.wm} make stages without end; lower them"
        ) from None
    narrowest = min(cfg.stem_width, *widths)
    if cfg.se_ratio and not round(cfg.se_ratio * narrowest):
        raise UserError(
            f"model.se_ratio={cfg.se_ratio} leaves nothing of the narrowest block's {narrowest} "
            "channels; choose a larger one, or 0 for no squeeze-and-excitation"
        )


class RegNet(nn.Module):
    """RegNet over [B, H, W, C] images of any size, already normalised; it has no tokens."""

    cfg: RegNetConfig

    @nn.compact
    def __call__(self, image: Float[Array, "B H W C"], *, train: bool = False) -> Output:
        cfg, dtype = self.cfg, compute_dtype(self.cfg)
        check_input(image, pair(cfg.image_size, "image_size"), cfg.channels)
        x = bottleneck.ConvNorm(
            cfg.stem_width, 3, cfg.norm_eps, dtype, train, stride=2, name="stem"
        )(image)
        x = constrain(x, BATCH_AXES)
        rates = drop_path_rates(cfg.drop_path_rate, cfg.depth, DropPathRule.LINEAR).tolist()
        for i, stage in enumerate(stages(cfg)):
            own, rates = tuple(rates[: stage.depth]), rates[stage.depth :]
            x = bottleneck.Stage(
                width=stage.width,
                inner_width=stage.width,
                stride=2,
                drop_path_rates=own,
                norm_eps=cfg.norm_eps,
                dtype=dtype,
                train=train,
                policy=cfg.remat,
                groups=stage.groups,
                squeeze_ratio=cfg.se_ratio,
                zero_init_last=cfg.zero_init_last,
                name=f"stage{i}",
            )(x)
        record(self, "map", lambda: x)
        features: jax.Array = x.mean(axis=(1, 2), dtype=jnp.float32)
        y = Dropout(cfg.dropout_rate, deterministic=not train)(features)
        logits = classifier(cfg, nn.initializers.normal(0.01))(y)
        return Output(logits=logits, features=features, tokens=None)
