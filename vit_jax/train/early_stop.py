# SPDX-License-Identifier: Apache-2.0
"""When a run has stopped getting better: counted along with it, saved with every checkpoint.

The count belongs to the state that it was reached with: a run that is killed and continues counts
on from there, and every process of it reads the same.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from vit_jax.checkpoints import CheckpointConfig
from vit_jax.checkpoints.config import Mode

KEY = "early_stop"  # in a checkpoint's metadata


@dataclasses.dataclass(frozen=True)
class Tally:
    """What the measurements of one metric have come to.

    Attributes:
        metric, mode: which, and which direction is better.
        best, step: the best value and where it was first reached; None and 0 before the first one.
        since: measurements after that.
    """

    metric: str
    mode: Mode
    best: float | None = None
    step: int = 0
    since: int = 0

    def after(self, step: int, metrics: Mapping[str, float]) -> "Tally":
        """Count what was measured at a step; nothing, where the metric is not among `metrics`.

        An equal value is no better one, nor is one that is not finite.
        """
        value = metrics.get(self.metric)
        if value is None:
            return self
        sign = 1 if self.mode == Mode.MAX else -1
        if math.isfinite(value) and (self.best is None or sign * value > sign * self.best):
            return dataclasses.replace(self, best=float(value), step=step, since=0)
        return dataclasses.replace(self, since=self.since + 1)

    def ends(self, patience: int) -> bool:
        """Say whether there is a best value and none better in `patience` measurements (0: no)."""
        return self.best is not None and 0 < patience <= self.since


def resume(cfg: CheckpointConfig, metadata: Mapping[str, Any]) -> Tally:
    """Return the tally saved in a checkpoint's metadata; a new one if it is of another metric."""
    saved = metadata.get(KEY, {})
    if (saved.get("metric"), saved.get("mode")) == (cfg.metric, cfg.mode):
        return Tally(**{**saved, "mode": cfg.mode})
    return Tally(cfg.metric, cfg.mode)


def to_json(tally: Tally) -> dict[str, Any]:
    """Return what `resume` reads back, to be merged into a checkpoint's metadata."""
    return {KEY: dataclasses.asdict(tally)}


def describe(tally: Tally, step: int, restored: int) -> str:
    """Say why a run ended after `step` steps, and with the parameters of which step."""
    equal = "" if restored == tally.step else ", as good"
    return (
        f"stopped early at step {step:,}: no better {tally.metric} than {tally.best:.6g} of step "
        f"{tally.step:,} in {tally.since} evaluations; restored step {restored:,}{equal}"
    )
