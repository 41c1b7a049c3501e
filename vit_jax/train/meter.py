# SPDX-License-Identifier: Apache-2.0
"""Training metrics between two lines of the log, fetched without stalling the device."""

import collections
import math
from collections.abc import Callable

import jax
import numpy as np

from vit_jax.errors import NonFinite
from vit_jax.faults import WINDOW, FaultsConfig, is_spike

# Steps in flight on the device before the host waits: enough to keep it busy, few enough that
# batches do not pile up in its memory.
_IN_FLIGHT = 2


class Meter:
    """Collects the metrics of steps and keeps the host a few steps behind the device."""

    def __init__(self, faults: FaultsConfig, note_spike: Callable[[int, float], None]) -> None:
        """Give `note_spike` the step and the loss of each spike."""
        self._faults = faults
        self._note_spike = note_spike
        self._losses, self._num_losses = np.zeros(WINDOW), 0
        self._pending: collections.deque[tuple[int, dict[str, jax.Array]]] = collections.deque()
        self._done: list[dict[str, float]] = []
        self._nonfinite = 0

    def add(self, step: int, metrics: dict[str, jax.Array]) -> None:
        """Take a step's metrics as device scalars; waits for a step a few before it.

        Raises:
            NonFinite: too many steps in a row were not finite.
        """
        self._pending.append((step, metrics))
        while len(self._pending) > _IN_FLIGHT:
            self._fetch()

    def read(self, *, everything: bool = False) -> dict[str, float]:
        """Return the means since the last call as `train/...`, of spikes the number.

        Without `everything` the newest steps, still on the device, wait for the next call.

        Raises:
            NonFinite: as `add`.
        """
        while self._pending and (everything or not self._done):
            self._fetch()
        finite = [m for m in self._done if not m["nonfinite"]] or self._done
        scalars = {
            f"train/{name}": float(np.mean([m[name] for m in finite])) for name in self._done[0]
        }
        # The rate is the newest, not a mean; skipped steps count over all of them.
        scalars["train/lr"] = self._done[-1]["lr"]
        scalars["train/nonfinite"] = float(np.mean([m["nonfinite"] for m in self._done]))
        if self._faults.spike_sigmas:
            scalars["train/spikes"] = sum(m["spikes"] for m in self._done)
        self._done = []
        return scalars

    def wait(self) -> None:
        """Wait until the device has done every step so far."""
        jax.block_until_ready([metrics for _, metrics in self._pending])

    def _fetch(self) -> None:
        step, metrics = self._pending.popleft()
        # Not `jax.device_get`, which takes the host ten times as long for a few scalars.
        values = {name: float(np.asarray(value)) for name, value in metrics.items()}
        self._nonfinite = self._nonfinite + 1 if values["nonfinite"] else 0
        if self._nonfinite >= self._faults.max_nonfinite:
            raise NonFinite(
                f"loss or gradient was not finite in {self._nonfinite} steps up to {step}; the "
                "parameters are still those before them. Lower optim.lr, set optim.clip_norm=1 "
                "or use model.dtype=float32"
            )
        if self._faults.spike_sigmas:
            if "spikes" not in values:  # where spikes are skipped, the step has judged
                values["spikes"] = float(self._is_spike(values["loss"]))
            if values["spikes"]:
                self._note_spike(step, values["loss"])
        self._done.append(values)

    def _is_spike(self, loss: float) -> bool:
        """Judge and remember a loss as `spikes.judge` does, since this process began."""
        if not math.isfinite(loss):
            return False
        full = self._num_losses >= WINDOW
        spike = full and bool(is_spike(loss, self._losses, self._faults.spike_sigmas))
        self._losses[self._num_losses % WINDOW] = loss
        self._num_losses += 1
        return spike
