# SPDX-License-Identifier: Apache-2.0
"""By which metric, and in which direction, checkpoints are ranked, and what cannot rank them."""

import dataclasses
from collections.abc import Mapping

from vit_jax import errors
from vit_jax.checkpoints.config import CheckpointConfig
from vit_jax.errors import UserError
from vit_jax.settings import measures
from vit_jax.settings.measures import Mode


def check_ranking(cfg: CheckpointConfig, periods: Mapping[str, str]) -> None:
    """Raise UserError for a metric that no evaluation during training measures, or ranked wrongly.

    `periods` are how often each metric is measured, by its name; "" is once, at the end.
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

    Who reads the run later may not know a metric of one's own.
    """
    if cfg.mode is not Mode.AUTO or measures.of(cfg.metric) is None:
        return cfg
    return dataclasses.replace(cfg, mode=measures.resolved(cfg.metric, cfg.mode))


def turned(cfg: CheckpointConfig, saved: Mapping[str, str]) -> str:
    """Describe in a line that a run ranked its metric the other way round before; else "".

    `saved` is the tree of the config that its newest checkpoint was saved with.
    """
    if saved.get("metric") != cfg.metric or saved.get("mode") in (None, "", cfg.mode):
        return ""
    return f"it has kept the {saved['mode']} {cfg.metric}; from here on it keeps the {cfg.mode}"
