# SPDX-License-Identifier: Apache-2.0
"""The settings of self-distillation: see `objectives.dino`."""

import dataclasses
import enum
from collections.abc import Iterator
from typing import ClassVar

from vit_jax import models
from vit_jax.data import Crop, DataConfig, Resize, TransformConfig
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig, base
from vit_jax.objectives import hiding
from vit_jax.objectives.base import ObjectiveConfig
from vit_jax.objectives.gram import GramConfig
from vit_jax.settings.durations import parse
from vit_jax.settings.fields import check_effects, group, value


class Balance(enum.StrEnum):
    """What keeps the teacher from giving every image the same target."""

    CENTRE = "centre"  # subtract a moving average of its logits: DINO
    SINKHORN = "sinkhorn"  # spread the batch over the prototypes by Sinkhorn-Knopp: DINOv2, v3


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class HeadConfig:
    """The head of student and teacher; the defaults are DINO's.

    Attributes:
        prototypes: K.
        hidden_dim, bottleneck_dim, layers: of the MLP before them.
        unit_prototypes: divide each prototype by its norm.
    """

    prototypes: int = value(65536, least=2)
    hidden_dim: int = value(2048, least=1)
    bottleneck_dim: int = value(256, least=1)
    layers: int = value(3, least=1)
    unit_prototypes: bool = True


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class DinoConfig(ObjectiveConfig):
    """Settings of self-distillation; the defaults are DINO's of ViTs.

    The first large crop is made by `data.transform`. The teacher is the run's moving average,
    `ema_decay` to `ema_decay_end`.

    Attributes:
        second: the transform of the second large crop.
        small: the transform of the small crops.
        small_crops: how many of them.
        small_size: their (H, W) in pixels; (S,) means square.
        head: of the images' features.
        student_temperature: of the student's scores.
        teacher_temperature: of the teacher's.
        first_temperature: of the teacher's at step 0, from where it rises linearly.
        temperature_warmup: for how long.
        balance: what keeps the teacher from collapse.
        patch_weight: of iBOT's loss of hidden patches (arXiv:2111.07832); 0 is off.
        patch_head: of the patches' tokens.
        shared_head: they use the images' head instead, as on ImageNet-1k in iBOT and DINOv2.
        hidden_images: the share of the large crops of which patches are hidden.
        hidden_share: the range of the share of their patches that is.
        spread_weight: of KoLeo, which spreads the features of a batch (arXiv:1806.03198); 0 is off.
        gram: Gram anchoring, which holds the patches to an earlier teacher's (DINOv3).
    """

    uses_labels: ClassVar[bool] = False
    splits_batch: ClassVar[bool] = False
    needs_average: ClassVar[bool] = True
    scores_images: ClassVar[bool] = False

    second: TransformConfig = group(TransformConfig)
    small: TransformConfig = group(
        lambda: TransformConfig(crop=Crop.RANDOM_RESIZED, resize=Resize.BICUBIC, area=(0.05, 0.4))
    )
    small_crops: int = value(8, least=0)
    small_size: tuple[int, ...] = value((96, 96), unit="pixels")
    head: HeadConfig = group(HeadConfig)
    student_temperature: float = value(0.1, above=0)
    teacher_temperature: float = value(0.07, above=0)
    first_temperature: float = value(0.04, above=0)
    temperature_warmup: str = value("30 epochs", unit="duration")
    balance: Balance = Balance.CENTRE
    patch_weight: float = value(0.0, least=0, note="0 is off")
    patch_head: HeadConfig = group(HeadConfig)
    shared_head: bool = False
    hidden_images: float = value(0.5, above=0, most=1)
    hidden_share: tuple[float, ...] = value((0.1, 0.5), lengths=(2,), least=0, below=1)
    spread_weight: float = value(0.0, least=0, note="0 is off")
    gram: GramConfig = group(GramConfig)

    def _effects(self) -> Iterator[tuple[bool, str, *tuple[str, ...]]]:
        """Yield whether settings have an effect beside the others, when not, and their names."""
        without = "without objective.patch_weight"
        yield self.patch_weight > 0, without, "shared_head", "hidden_images", "hidden_share"
        yield not self.shared_head, "with objective.shared_head", "patch_head"
        warms = bool(self.temperature_warmup)
        yield warms, "without objective.temperature_warmup", "first_temperature"

    def check(self, model: ModelConfig, data: DataConfig) -> None:
        """Raise UserError for crops that the model cannot take, in one line."""
        hiding.check(model, "self-distillation")
        check_effects(self, "objective.", self._effects())
        self.gram.check(model)
        if self.temperature_warmup:
            parse(self.temperature_warmup)
        full = models.input_shape(model)[:2]
        small = base.pair(self.small_size, "small_size")
        if self.small_crops and small != full:
            models.patch_grid(model, small)
            if not getattr(model, "dynamic_image_size", False):
                why = "are of another size than the large ones; set model.dynamic_image_size=True"
                raise UserError(
                    f"objective.small_crops of {small[0]} x {small[1]} pixels {why}",
                    field="objective.small_crops",
                )
        if self.patch_weight:
            low, high = self.hidden_share
            if low > high or not int(hiding.num_patches(model) * high):
                what = f"objective.hidden_share={self.hidden_share}"
                raise UserError(f"{what} must be (least, most), at most one patch or more")
