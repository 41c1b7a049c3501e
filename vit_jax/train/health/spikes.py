# SPDX-License-Identifier: Apache-2.0
"""Loss spikes: detected, skipped inside the step on request, and logged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.config.faults import WINDOW, FaultsConfig, is_spike
from vit_jax.data import DataConfig, Source
from vit_jax.data.order import stream_indices
from vit_jax.data.sources.base import balance_of
from vit_jax.train.report.writers import read_jsonl
from vit_jax.workdir import folder as workdir


@flax.struct.dataclass
class Losses:
    """A run's last finite losses, saved with its state; fields are `Any` as in `TrainState`."""

    values: Any  # float32 [WINDOW], loss i at i modulo WINDOW; 0 where not yet written
    count: Any  # int32 scalar, the finite losses so far


def no_losses() -> Losses:
    """Return the empty window of step 0."""
    return Losses(jnp.zeros(WINDOW, jnp.float32), jnp.zeros((), jnp.int32))


def judge(losses: Losses, loss: jax.Array, sigmas: float) -> tuple[jax.Array, Losses]:
    """Return whether the loss is a spike, and the window with the loss if it is finite; pure.

    A spike enters the window too, so that a loss that stays high soon counts as normal.
    """
    finite = jnp.isfinite(loss)
    spike = finite & (losses.count >= WINDOW) & is_spike(loss, losses.values, sigmas)
    values = losses.values.at[losses.count % WINDOW].set(loss)
    return spike, Losses(jnp.where(finite, values, losses.values), losses.count + finite)


def make_log(
    cfg: FaultsConfig,
    data_cfg: DataConfig,
    source: Source,
    workdir_path: Path,
    *,
    seed: int,
    log: Callable[[str], None],
) -> Callable[[int, float], None]:
    """Return a function that logs a spike, given its step, counted from 1, and its loss.

    It adds a line to spikes.jsonl in `workdir_path` that names the examples of the global
    batch. A run that is killed and resumed repeats steps, but no line.
    """
    path, size, sigmas = workdir_path / workdir.SPIKES, data_cfg.batch_size, cfg.spike_sigmas
    logged = {row["step"] for row in read_jsonl(path)}
    skipped = ", and skipped" if cfg.skip_spikes else ""

    def log_spike(step: int, loss: float) -> None:
        log(
            f"warning: the loss {loss:.4g} of step {step:,} is a spike, {sigmas:g} standard "
            f"deviations above the last {WINDOW}{skipped}; its examples: {path}"
        )
        if jax.process_index() != 0 or step in logged:
            return
        logged.add(step)
        positions = np.arange((step - 1) * size, step * size)
        balance = balance_of(source, data_cfg.balance)
        examples = stream_indices(positions, len(source), seed, data_cfg.repeats, balance)
        names = [source.example_id(example) for example in examples.tolist()]
        with path.open("a", encoding="utf-8") as file:
            print(json.dumps({"step": step, "loss": loss, "examples": names}), file=file)

    return log_spike
