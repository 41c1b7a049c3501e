# SPDX-License-Identifier: Apache-2.0
"""When checkpoints are saved, which of them stay and by which metric, and where they may lie."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

from vit_jax import errors
from vit_jax.errors import UserError, shown
from vit_jax.settings import measures
from vit_jax.settings.fields import value
from vit_jax.settings.measures import Mode, resolved

_PATTERN = "*?[]\\"  # the special characters of a pattern of file names


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class CheckpointConfig:
    """When to save and what to keep.

    Attributes:
        every: duration between saves; the last step is saved too, and with `keep_best` every step
            at which `metric` is measured.
        keep: how many of the newest checkpoints stay.
        keep_best: how many of the best by `metric` stay besides; 0 is none.
        metric: name of an evaluation metric, such as "val/top1".
        mode: whether a larger or a smaller metric is better; "" is the metric's own direction
            (`measures.declare`), and another one is refused.
        patience: stop the run early where `metric` has been measured this many times in a row
            without a new best, and end with the best parameters; 0 never stops.
    """

    every: str = value("1 epoch", unit="duration")
    keep: int = value(2, least=1)
    keep_best: int = value(1, least=0)
    metric: str = "val/top1"
    mode: Mode = Mode.AUTO
    patience: int = value(0, least=0)


def ranked(metrics: Mapping[int, Mapping[str, float]], metric: str, mode: Mode) -> list[int]:
    """List the steps with a finite metric from the best to the worst, the later of equals first."""
    sign = 1 if resolved(metric, mode) is Mode.MAX else -1
    values = {step: of_step.get(metric, math.nan) for step, of_step in metrics.items()}
    finite = [step for step in values if math.isfinite(values[step])]
    return sorted(finite, key=lambda step: (sign * values[step], step), reverse=True)


def steps_in(directory: Path) -> list[int]:
    """List the steps of the finished checkpoints in a directory, oldest first."""
    entries = directory.iterdir() if directory.is_dir() else ()
    return sorted(int(entry.name) for entry in entries if entry.name.isdecimal())


def check_path(directory: Path) -> None:
    """Raise UserError for a path whose characters keep Orbax from finding its checkpoints again.

    Orbax finds the parts of a checkpoint by a pattern of file names that begins with the path, and
    stores the path as UTF-8.
    """
    odd = sorted(set(str(directory)) & set(_PATTERN))
    if odd:
        raise UserError(
            f"{directory} has {' '.join(odd)} in its path, by which checkpoints are not found "
            f"again; choose a workdir without any of {' '.join(_PATTERN)}"
        )
    try:
        str(directory).encode()
    except UnicodeEncodeError:
        raise UserError(
            f"{shown(str(directory))} is no UTF-8, which checkpoints need; choose another workdir"
        ) from None


def check_ranking(cfg: CheckpointConfig, periods: Mapping[str, str]) -> None:
    """Raise UserError if no evaluation during training measures the metric that ranks checkpoints.

    A `mode` against the metric's own direction is refused too. `periods` says how often each metric
    is measured, by its name; "" is once, at the end.
    """
    patience = f"checkpoint.patience={cfg.patience}"
    if cfg.patience and not cfg.keep_best:
        raise UserError(f"{patience} ends with the best parameters; set checkpoint.keep_best=1")
    measured = [metric for metric, every in periods.items() if every]
    if cfg.patience and not measured:
        raise UserError(f"{patience} counts evaluations; give one a period: evals.<name>.every")
    ranked = cfg.patience or (cfg.keep_best and cfg.metric and measured)
    if ranked and cfg.metric in periods and cfg.metric not in measured:
        name = cfg.metric.partition("/")[0].removesuffix("_ema")
        others = f"evals.{name}.every, or choose {', '.join(measured)}"
        raise UserError(f"checkpoint.metric={cfg.metric!r} is measured only last; set {others}")
    if ranked and cfg.metric not in measured:
        raise errors.unknown("checkpoint.metric", cfg.metric, measured)
    if cfg.metric in periods:
        measures.direction(cfg.metric, cfg.mode)


def directed(cfg: CheckpointConfig) -> CheckpointConfig:
    """Return the config with its metric's direction, for the run's records.

    A later reader of the run may not know the direction of a metric that a user declared.
    """
    if cfg.mode is not Mode.AUTO or measures.of(cfg.metric) is None:
        return cfg
    return dataclasses.replace(cfg, mode=measures.resolved(cfg.metric, cfg.mode))


def turned(cfg: CheckpointConfig, saved: Mapping[str, str]) -> str:
    """Return a line if the run ranked its metric in the other direction before, else "".

    `saved` is the tree of the config that its newest checkpoint was saved with.
    """
    if saved.get("metric") != cfg.metric or saved.get("mode") in (None, "", cfg.mode):
        return ""
    return f"it has kept the {saved['mode']} {cfg.metric}; from here on it keeps the {cfg.mode}"
