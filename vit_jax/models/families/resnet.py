# SPDX-License-Identifier: Apache-2.0
"""ResNet (arXiv:1512.03385) with bottleneck blocks, the baseline in most papers' tables.

Differs from paper: the stride is on the 3x3 convolution ("v1.5"), as in torchvision, timm and
NVIDIA's examples, not on the 1x1 before it.
"""

import dataclasses

from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.devices.sharding import BATCH_AXES, constrain
from vit_jax.errors import UserError
from vit_jax.models import base, facts
from vit_jax.models.base import ModelConfig, Output
from vit_jax.models.conv.conv import Padding, max_pool
from vit_jax.models.conv.resnet import ConvNorm, StageShape, apply_stages, classify_map
from vit_jax.settings.fields import value

_EXPANSION = 4  # width of a block over that between its convolutions


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class ResNetConfig(ModelConfig):
    """A ResNet of bottleneck blocks with BatchNorm; the defaults are ResNet-50.

    It accepts images of any size: the stem's convolution and pool and every stage but the first
    halve it, rounding up.

    Attributes:
        depths: blocks of each stage.
        widths: channels of each stage, four times those between a block's convolutions.
        stem_width: channels after the stem.
        norm_eps: of every BatchNorm.
        zero_init_last: start the scale of a block's last BatchNorm at zero, so that the block
            starts as its shortcut (arXiv:1706.02677 section 5.1).
        dropout_rate: before the head.
        drop_path_rate: stochastic depth, from 0 in the first block to this in the last.
    """

    depths: tuple[int, ...] = value((3, 4, 6, 3), least=1)
    widths: tuple[int, ...] = value((256, 512, 1024, 2048), least=1)
    stem_width: int = value(64, least=1)
    norm_eps: float = 1e-5
    zero_init_last: bool = True
    dropout_rate: float = value(0.0, least=0, below=1)
    drop_path_rate: float = value(0.0, least=0, below=1)


def validate(cfg: ResNetConfig) -> None:
    """Raise UserError for fields that do not go together."""
    base.pair(cfg.image_size, "image_size")
    if not cfg.depths or len(cfg.depths) != len(cfg.widths):
        raise UserError(
            f"model.depths={cfg.depths} and model.widths={cfg.widths} need a number for each stage"
        )
    if any(width % _EXPANSION for width in cfg.widths):
        raise UserError(f"model.widths={cfg.widths} must be multiples of {_EXPANSION}")


class ResNet(nn.Module):
    """ResNet over [B, H, W, C] images of any size, already normalised; it has no tokens."""

    cfg: ResNetConfig

    @nn.compact
    def __call__(self, image: Float[Array, "B H W C"], *, train: bool = False) -> Output:
        cfg = self.cfg
        base.check_input(image, base.pair(cfg.image_size, "image_size"), cfg.channels)
        x = ConvNorm(cfg.stem_width, 7, cfg, train, stride=2, name="stem")(image)
        x = constrain(max_pool(x, Padding.SYMMETRIC), BATCH_AXES)
        shapes = [
            StageShape(depth, width, width // _EXPANSION, stride=2 if i else 1)
            for i, (depth, width) in enumerate(zip(cfg.depths, cfg.widths, strict=True))
        ]
        x = apply_stages(cfg, shapes, x, train)
        # PyTorch's default for a linear layer, U(+-1/sqrt(fan_in)).
        kernel_init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
        return classify_map(self, cfg, x, kernel_init, train)


def _timm(cfg: ResNetConfig) -> facts.Timm:
    channels = [width // _EXPANSION for width in cfg.widths]
    args = {"layers": list(cfg.depths), "channels": channels}
    return facts.Timm("resnet50", args, {"norm_eps": 1e-5}, "stem/conv")


def _timm_lacks(cfg: ResNetConfig) -> str:
    fits = len(cfg.depths) == 4 and cfg.stem_width == 64
    return "" if fits else "another model.stem_width than 64 or other than 4 model.depths"


FAMILY = facts.Family(
    config=ResNetConfig,
    module=ResNet,
    variants=facts.variants(ResNetConfig),
    stem="stem/conv",
    validate=validate,
    images=lambda cfg: facts.Images(bilinear=True),
    timm=_timm,
    timm_names=lambda cfg: facts.names("ResNet", "timm"),
    timm_lacks=_timm_lacks,
)
