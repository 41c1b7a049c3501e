# SPDX-License-Identifier: Apache-2.0
"""Early stopping: counts evaluations without improvement; saved with every checkpoint.

A resumed run continues the count of its checkpoint, and every process reads the same count.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from vit_jax.checkpoints import CheckpointConfig
from vit_jax.settings.measures import Mode, resolved

KEY = "early_stop"  # in a checkpoint's metadata


@dataclasses.dataclass(frozen=True)
class Tally:
    """The best value of a metric so far.

    Attributes:
        metric, mode: its name, and which direction is better.
        best, step: the best value and the step that first reached it; None and 0 before the first.
        since: measurements after that one.
    """

    metric: str
    mode: Mode
    best: float | None = None
    step: int = 0
    since: int = 0

    def after(self, step: int, metrics: Mapping[str, float]) -> "Tally":
        """Count the measurement at a step, if the metric is among `metrics`.

        Equal and non-finite values are no improvement.
        """
        value = metrics.get(self.metric)
        if value is None:
            return self
        sign = 1 if self.mode == Mode.MAX else -1
        if math.isfinite(value) and (self.best is None or sign * value > sign * self.best):
            return dataclasses.replace(self, best=float(value), step=step, since=0)
        return dataclasses.replace(self, since=self.since + 1)

    def ends(self, patience: int) -> bool:
        """Return whether `patience` measurements brought no improvement; False for patience 0."""
        return self.best is not None and 0 < patience <= self.since


def resume(cfg: CheckpointConfig, metadata: Mapping[str, Any]) -> Tally:
    """Return the tally in a checkpoint's metadata, or a new one if the metric has changed."""
    saved = metadata.get(KEY, {})
    mode = resolved(cfg.metric, cfg.mode)
    if (saved.get("metric"), saved.get("mode")) == (cfg.metric, mode):
        return Tally(**{**saved, "mode": mode})
    return Tally(cfg.metric, mode)


def to_json(tally: Tally) -> dict[str, Any]:
    """Return the tally for a checkpoint's metadata, as `resume` reads it."""
    return {KEY: dataclasses.asdict(tally)}


def describe(tally: Tally, step: int, restored: int) -> str:
    """Describe why a run ended after `step` steps, and which step's parameters it has."""
    equal = "" if restored == tally.step else ", as good"
    return (
        f"stopped early at step {step:,}: no better {tally.metric} than {tally.best:.6g} of step "
        f"{tally.step:,} in {tally.since} evaluations; restored step {restored:,}{equal}"
    )
