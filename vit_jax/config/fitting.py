# SPDX-License-Identifier: Apache-2.0
"""What a config leaves to the data, and its durations in steps."""

import dataclasses
import math
from collections.abc import Mapping

from vit_jax.config.tree import Config
from vit_jax.errors import UserError
from vit_jax.settings.durations import Clock

_AUTO = "auto"


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run's durations in steps; 0 means "only at the end"."""

    clock: Clock
    total_steps: int
    log_every: int
    checkpoint_every: int
    eval_every: Mapping[str, int]


def metric_periods(cfg: Config) -> dict[str, str]:
    """Return the period of every metric that the evaluations measure, such as "val/top1"."""
    return {
        f"{name}{suffix}/{key}": evaluation.every
        for name, evaluation in cfg.evals.items()
        for suffix in (("", "_ema") if cfg.ema_decay else ("",))
        for key in evaluation.metrics
    }


def fitted(cfg: Config, num_examples: int, num_classes: int) -> Config:
    """Return the config with what it leaves to the data; the same one where it leaves nothing.

    Raises UserError: with that it does not go together.
    """
    found = guessed(cfg, num_examples, num_classes)
    if found is not cfg:
        found.objective.check(found.model, found.data)
        check_micro_batches(found)
    return found


def guessed(cfg: Config, num_examples: int, num_classes: int) -> Config:
    """Return the config as `fitted` does, unchecked: for numbers that may not be the data's.

    The head has the dataset's classes. A batch is an eighth of the images, of 8 to 128, and a power
    of 2; a run lasts 30 epochs, but 1,000 to 20,000 steps: short epochs need more of them.
    """
    model, reading, duration = cfg.model, cfg.data, cfg.duration
    if cfg.objective.uses_labels and not model.num_classes:
        model = dataclasses.replace(model, num_classes=num_classes)
    if not reading.batch_size:
        size = 2 ** int(math.log2(min(max(num_examples / 8, 8), 128)))
        reading = dataclasses.replace(reading, batch_size=size)
    if duration == _AUTO:
        steps = min(max(30 * num_examples // reading.batch_size, 1_000), 20_000)
        duration = f"{steps} steps"
    same = model is cfg.model and reading is cfg.data and duration == cfg.duration
    changed = {"model": model, "data": reading, "duration": duration}
    return cfg if same else dataclasses.replace(cfg, **changed)


def plan(cfg: Config, num_examples: int) -> Plan:
    """Turn every duration of the config into steps, for a training split of `num_examples`."""
    clock = Clock(batch_size=cfg.data.batch_size, num_examples=num_examples)
    total = clock.steps(cfg.duration)
    if total < 1:
        raise UserError(f"duration={cfg.duration!r} is no training at all; try '90 epochs'")
    clock = dataclasses.replace(clock, total_steps=total)
    return Plan(
        clock=clock,
        total_steps=total,
        log_every=clock.steps(cfg.log.every),
        checkpoint_every=clock.steps(cfg.checkpoint.every),
        eval_every={name: clock.steps(e.every) for name, e in cfg.evals.items()},
    )


def check_micro_batches(cfg: Config) -> None:
    """Raise UserError if the micro-batches of a step are not of one size."""
    steps, size = cfg.accum_steps, cfg.data.batch_size
    if size % steps:
        raise UserError(f"accum_steps={steps} must divide data.batch_size={size}")
