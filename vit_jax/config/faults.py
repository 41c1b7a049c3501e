# SPDX-License-Identifier: Apache-2.0
"""What a run does about losses that are not finite, losses that jump, and waits without an end."""

import dataclasses
from typing import Any

from vit_jax.errors import UserError
from vit_jax.settings.fields import value

WINDOW = 128  # finite losses that a spike is measured against


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class FaultsConfig:
    """What a run does about non-finite losses, loss spikes and hangs.

    Attributes:
        max_nonfinite: end the run after this many steps in a row whose loss or gradient was not
            finite; each of them changes nothing but counters.
        spike_sigmas: a loss this many standard deviations above the mean of the last 128 finite
            ones is a spike: it is logged with its examples; 0 does not look.
        skip_spikes: such a step changes nothing but counters either.
        hang_seconds: end the process where no step, batch of an evaluation or save is finished for
            this long, the first step's compilation left out; 0 waits for ever.
    """

    max_nonfinite: int = value(20, least=1, free=True)
    spike_sigmas: float = value(6.0, least=0, note="0 turns it off")
    skip_spikes: bool = False
    hang_seconds: float = value(1800.0, least=0, note="0 turns it off", free=True)


def validate(cfg: FaultsConfig) -> None:
    """Refuse to skip spikes where nothing looks for them."""
    if cfg.skip_spikes and not cfg.spike_sigmas:
        raise UserError("faults.skip_spikes=True skips nothing with spike_sigmas=0; set it to 6")


def is_spike(loss: Any, losses: Any, sigmas: float) -> Any:
    """Return whether a finite loss is `sigmas` standard deviations above `losses` [WINDOW].

    Works on numpy and traced arrays; False when the variance overflows.
    """
    return loss > losses.mean() + sigmas * losses.std()
