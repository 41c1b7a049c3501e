# SPDX-License-Identifier: Apache-2.0
"""Losses that jump: judged inside the step where it is then skipped, and written down."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.data import DataConfig, Source
from vit_jax.data.stream import stream_indices
from vit_jax.faults import WINDOW, FaultsConfig, is_spike
from vit_jax.train import workdir
from vit_jax.train.writers import read_jsonl


@flax.struct.dataclass
class Losses:
    """The last finite losses of a run, part of its state; fields are `Any` as those of the state.

    Attributes:
        values: float32 [WINDOW], loss i at i modulo WINDOW; 0 where there is none yet.
        count: int32 scalar, the finite losses so far.
    """

    values: Any
    count: Any


def no_losses() -> Losses:
    """Return the window of a run's beginning."""
    return Losses(jnp.zeros(WINDOW, jnp.float32), jnp.zeros((), jnp.int32))


def judge(losses: Losses, loss: jax.Array, sigmas: float) -> tuple[jax.Array, Losses]:
    """Say whether the loss is a spike, and add it to the window if it is finite; pure.

    A spike is added too: what stays high is soon no spike any more, and is learned from.
    """
    finite = jnp.isfinite(loss)
    spike = finite & (losses.count >= WINDOW) & is_spike(loss, losses.values, sigmas)
    values = losses.values.at[losses.count % WINDOW].set(loss)
    return spike, Losses(jnp.where(finite, values, losses.values), losses.count + finite)


def make_log(
    cfg: FaultsConfig,
    data_cfg: DataConfig,
    source: Source,
    place: Path,
    *,
    seed: int,
    say: Callable[[str], None],
) -> Callable[[int, float], None]:
    """Return what logs a spike by its step, counted from 1, and its loss.

    A line of spikes.jsonl in the workdir `place` names the examples of the whole global batch. A
    run that is killed and continues repeats its steps, but no line.
    """
    path, size, sigmas = place / workdir.SPIKES, data_cfg.batch_size, cfg.spike_sigmas
    known = {row["step"] for row in read_jsonl(path)}
    skipped = ", and skipped" if cfg.skip_spikes else ""

    def note(step: int, loss: float) -> None:
        say(
            f"warning: the loss {loss:.4g} of step {step:,} is a spike, {sigmas:g} standard "
            f"deviations above the last {WINDOW}{skipped}; its examples: {path}"
        )
        if jax.process_index() != 0 or step in known:
            return
        known.add(step)
        positions = np.arange((step - 1) * size, step * size)
        examples = stream_indices(positions, len(source), seed, data_cfg.repeats)
        names = [source.example_id(example) for example in examples.tolist()]
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "loss": loss, "examples": names}) + "\n")

    return note
