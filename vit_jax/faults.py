# SPDX-License-Identifier: Apache-2.0
"""What a run does about losses that are not finite, losses that jump, and waits without an end."""

import dataclasses
import math
from typing import Any

from vit_jax.errors import UserError

WINDOW = 128  # finite losses that a spike is measured against


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class FaultsConfig:
    """When a run doubts itself.

    Attributes:
        max_nonfinite: end the run after this many steps in a row whose loss or gradient was not
            finite; each of them changes nothing but counters.
        spike_sigmas: a loss this many standard deviations above the mean of the last 128 finite
            ones is a spike: it is told, and its examples are written down; 0 does not look.
        skip_spikes: such a step changes nothing but counters either.
        hang_seconds: end the process where no step, batch of an evaluation or save is finished for
            this long, the first step's compilation left out; 0 waits for ever.
    """

    max_nonfinite: int = 20
    spike_sigmas: float = 6.0
    skip_spikes: bool = False
    hang_seconds: float = 1800.0


def validate(cfg: FaultsConfig) -> None:
    """Check the ranges.

    Raises:
        UserError: naming the field.
    """
    if cfg.max_nonfinite < 1:
        raise UserError(f"faults.max_nonfinite={cfg.max_nonfinite} must be at least 1")
    for field in ("spike_sigmas", "hang_seconds"):
        value = getattr(cfg, field)
        if not 0 <= value < math.inf:
            raise UserError(f"faults.{field}={value} must be at least 0; 0 turns it off")
    if cfg.skip_spikes and not cfg.spike_sigmas:
        raise UserError(
            "faults.skip_spikes=True skips nothing with faults.spike_sigmas=0; set it to 6"
        )


def is_spike(loss: Any, losses: Any, sigmas: float) -> Any:
    """Say whether a finite loss is `sigmas` standard deviations above `losses` [WINDOW].

    Of numbers on the host or, traced, on a device. Of losses whose squares overflow none is above.
    """
    return loss > losses.mean() + sigmas * losses.std()
