# SPDX-License-Identifier: Apache-2.0
"""RegNetY (arXiv:2003.13678): a residual network whose block widths follow a quantised line.

RegNetY-16GF is the teacher of DeiT (arXiv:2012.12877).
"""

import dataclasses
import itertools
import math

from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.devices.sharding import BATCH_AXES, constrain
from vit_jax.errors import UserError
from vit_jax.models import base, facts
from vit_jax.models.base import ModelConfig, Output
from vit_jax.models.conv.resnet import ConvNorm, StageShape, apply_stages, classify_map
from vit_jax.settings.fields import value

_MULTIPLE = 8  # of every width of the quantised line (section 3.3)


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class RegNetConfig(ModelConfig):
    """A RegNetY, with bottleneck ratio 1; the defaults are RegNetY-16GF.

    Block j of the network has the width w0 + wa * j, rounded to w0 times a whole power of wm, then
    to a multiple of 8; blocks of one width are one stage, whose first block halves height and
    width. Fields not listed are as in `ResNetConfig`.

    Attributes:
        depth: blocks, over all stages.
        w0, wa, wm: initial width, slope and quantisation of the line of widths.
        group_width: channels of a group of the 3x3 convolutions; a stage's width is rounded to the
            nearest multiple.
        group_min_ratio: round up where the nearest multiple is below this share of the width, and
            halves always up, as torchvision does with 0.9; 0 for neither.
        se_ratio: width of the squeeze-and-excitation layer (arXiv:1709.01507) relative to a block's
            input; 0 for none, a RegNetX.
    """

    depth: int = value(18, least=1, most=1000)
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


def stages(cfg: RegNetConfig) -> list[StageShape]:
    """Return the stages of the line of widths (equations 2 to 4), rounded to the group width."""
    powers = [round(math.log1p(cfg.wa * j / cfg.w0) / math.log(cfg.wm)) for j in range(cfg.depth)]
    widths = [_MULTIPLE * round(cfg.w0 * cfg.wm**power / _MULTIPLE) for power in powers]
    found = []
    for width, blocks in itertools.groupby(widths):
        group = min(cfg.group_width, width)
        count = round(width / group)
        if cfg.group_min_ratio:
            count = math.floor(width / group + 0.5)
            count += count * group < cfg.group_min_ratio * width
        width = count * group
        found.append(StageShape(len(list(blocks)), width, width, stride=2, groups=count))
    return found


def validate(cfg: RegNetConfig) -> None:
    """Raise UserError for fields that do not go together."""
    base.pair(cfg.image_size, "image_size")
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
        cfg = self.cfg
        base.check_input(image, base.pair(cfg.image_size, "image_size"), cfg.channels)
        x = ConvNorm(cfg.stem_width, 3, cfg, train, stride=2, name="stem")(image)
        x = apply_stages(cfg, stages(cfg), constrain(x, BATCH_AXES), train)
        return classify_map(self, cfg, x, nn.initializers.normal(0.01), train)


def _timm(cfg: RegNetConfig) -> facts.Timm:
    fields = ("depth", "w0", "wa", "wm", "group_min_ratio", "stem_width", "se_ratio")
    args = facts.timm_args(cfg, *fields, group_size="group_width")
    return facts.Timm("regnety_160", args, {"norm_eps": 1e-5}, "stem/conv")


def _timm_lacks(cfg: RegNetConfig) -> str:
    count = len(stages(cfg))
    return "" if count == 4 else f"{count} stages (model.depth, w0, wa and wm): its RegNet has 4"


FAMILY = facts.Family(
    config=RegNetConfig,
    module=RegNet,
    variants=facts.variants(RegNetConfig),
    stem="stem/conv",
    validate=validate,
    timm=_timm,
    timm_names=lambda cfg: facts.names("RegNet", "timm"),
    timm_lacks=_timm_lacks,
    timm_convolutions=lambda cfg: r"/se/fc[12]/kernel$",
    official_names=facts.names("RegNet", "official"),
)
