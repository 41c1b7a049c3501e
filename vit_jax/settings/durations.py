# SPDX-License-Identifier: Apache-2.0
"""Durations as people write them: "90 epochs", "1e6 examples" or "5%" in steps; seconds as text."""

import dataclasses
import math
import re

from vit_jax.errors import UserError

_FORM = re.compile(
    r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+]?[0-9]+)?)\s*"
    r"(?:(?P<steps>steps?)|(?P<epochs>ep|epochs?)|(?P<examples>examples?)|(?P<percent>%|percent))\s*"
)


def parse(text: str) -> tuple[float, str]:
    """Split a duration into its number and unit: "steps", "epochs", "examples" or "percent"."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise UserError(
            f"cannot read the duration {text!r}; write a number and a unit: "
            "'10_000 steps', '90 epochs', '300000 examples' or '5%'"
        )
    return float(match[1].replace("_", "")), str(match.lastgroup)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clock:
    """Converts durations to steps.

    Attributes:
        batch_size: global batch size, in examples.
        num_examples: length of one epoch of the training split, in examples.
        total_steps: length of the whole run, in steps; None while it is being computed.
    """

    batch_size: int
    num_examples: int
    total_steps: int | None = None

    def steps(self, text: str) -> int:
        """Return the duration in steps, at least 1 for a positive one; "" is 0.

        Raises UserError: unreadable or infinite, or "%" while the length of the run is unknown.
        """
        if not text:
            return 0
        steps, unit = parse(text)
        if unit == "examples":
            steps /= self.batch_size
        elif unit == "epochs":
            steps = steps * self.num_examples / self.batch_size
        elif unit == "percent":
            if self.total_steps is None:
                raise UserError(f"{text!r}: the length of the run itself cannot be a percentage")
            steps = steps / 100 * self.total_steps
        if not math.isfinite(steps):
            raise UserError(f"the duration {text!r} is longer than any number of steps")
        # Floor, as big_vision does: 90 epochs of 1,268,355 at 1,024 are 111,476 full steps. 1e-9
        # offsets the rounding error of products such as 0.1 * 30.
        return max(int(steps + 1e-9), 1) if steps > 0 else 0


def format_duration(seconds: float) -> str:
    """Write seconds as `8s`, `1m12s`, `3h05m` or `2d04h`."""
    whole = round(seconds)
    for unit, small, size, step in (
        ("d", "h", 86400, 3600),
        ("h", "m", 3600, 60),
        ("m", "s", 60, 1),
    ):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // step:02d}{small}"
    return f"{whole}s"
