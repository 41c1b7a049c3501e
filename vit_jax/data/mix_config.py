# SPDX-License-Identifier: Apache-2.0
"""How the examples of a batch are mixed."""

import dataclasses
import enum

from vit_jax.errors import UserError


class Partner(enum.StrEnum):
    """Which example of the global batch another is mixed with.

    PREVIOUS is big_vision's: the one before; of mixup's two shares the example itself has the
    larger. REVERSED is timm's: the batch back to front, with the share as it is drawn.
    """

    PREVIOUS = "previous"
    REVERSED = "reversed"


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class MixConfig:
    """Mixup and cutmix, on the device.

    Attributes:
        mixup_alpha: blend an image with another's, lambda ~ Beta(alpha, alpha) (arXiv:1710.09412);
            0 is off.
        cutmix_alpha: paste a box of another image, of area 1 - lambda (arXiv:1905.04899); 0 is off.
        prob: how often anything is mixed.
        switch_prob: where both are on, how often it is cutmix.
        per_example: draw for every example of the batch, not once for all (timm's "elem").
        partner: which image is the other.
    """

    mixup_alpha: float = 0.0
    cutmix_alpha: float = 0.0
    prob: float = 1.0
    switch_prob: float = 0.5
    per_example: bool = False
    partner: Partner = Partner.PREVIOUS


def is_on(cfg: MixConfig) -> bool:
    """Say whether anything is mixed."""
    return cfg.mixup_alpha > 0 or cfg.cutmix_alpha > 0


def check_mix(cfg: MixConfig, name: str = "data.mix") -> None:
    """Check every setting, also that those which were changed act.

    Raises:
        UserError: naming the field.
    """
    for key in ("mixup_alpha", "cutmix_alpha"):
        value = getattr(cfg, key)
        if value < 0:
            raise UserError(f"{name}.{key}={value} must not be negative; 0 is off")
    both = cfg.mixup_alpha > 0 and cfg.cutmix_alpha > 0
    needs = {
        "prob": (is_on(cfg), "mixup_alpha or cutmix_alpha"),
        "switch_prob": (both, "both mixup_alpha and cutmix_alpha"),
        "per_example": (is_on(cfg), "mixup_alpha or cutmix_alpha"),
        "partner": (is_on(cfg), "mixup_alpha or cutmix_alpha"),
    }
    plain = MixConfig()
    for key, (acts, need) in needs.items():
        value, default = getattr(cfg, key), getattr(plain, key)
        if value != default and not acts:
            raise UserError(
                f"{name}.{key}={value} has no effect without {need}; leave it at {default}"
            )
    if not 0 < cfg.prob <= 1:
        raise UserError(f"{name}.prob={cfg.prob} must be above 0 and at most 1")
    if not 0 < cfg.switch_prob < 1:
        raise UserError(
            f"{name}.switch_prob={cfg.switch_prob} must be between 0 and 1; for one of the two "
            "alone, set the alpha of the other to 0"
        )
