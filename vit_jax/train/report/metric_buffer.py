# SPDX-License-Identifier: Apache-2.0
"""Training metrics between two log lines, fetched without stalling the device."""

import collections
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from vit_jax.config.faults import WINDOW, FaultsConfig, is_spike
from vit_jax.errors import NonFinite

# Steps in flight on the device before the host waits: enough to keep it busy, few enough that
# batches do not pile up in its memory.
_IN_FLIGHT = 2
KEY, _OLD_KEY = "metrics", "meter"  # in a checkpoint's metadata; in that of an older one


def saved_in(metadata: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what a checkpoint's metadata has of `MetricBuffer.to_json`; None if it has nothing."""
    return metadata.get(KEY, metadata.get(_OLD_KEY))


class MetricBuffer:
    """Collects metrics of steps and lets the host run at most a few steps ahead of the device."""

    def __init__(
        self,
        faults: FaultsConfig,
        log_spike: Callable[[int, float], None],
        *,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        """Start empty, or with `saved`, what `to_json` returned when the run was saved.

        The next log line then equals, to the bit, that of a run that was never interrupted.
        `log_spike` gets the step and the loss of each spike.
        """
        self._faults, self._log_spike = faults, log_spike
        saved = saved or {"losses": [], "nonfinite": 0, "done": [], "pending": []}
        self._losses = collections.deque(saved["losses"], maxlen=WINDOW)
        self._nonfinite: int = saved["nonfinite"]
        self._done: list[dict[str, float]] = list(saved["done"])
        self._pending = collections.deque[tuple[int, Mapping[str, Any]]](saved["pending"])

    def to_json(self) -> dict[str, Any]:
        """Return `saved`, to be merged into a checkpoint's metadata; waits for the device."""
        pending = [(step, _to_host(metrics)) for step, metrics in self._pending]
        saved = {"losses": list(self._losses), "nonfinite": self._nonfinite, "done": self._done}
        return {KEY: {**saved, "pending": pending}}

    def add(self, step: int, metrics: dict[str, jax.Array]) -> None:
        """Add a step's device scalars; waits for an earlier step, and raises what `read` does."""
        self._pending.append((step, metrics))
        while len(self._pending) > _IN_FLIGHT:
            self._fetch()

    def read(self, *, everything: bool = False) -> dict[str, float]:
        """Return the means since the last call as `train/...`, and the number of spikes.

        Unless `everything`, the newest steps, still on the device, are left to the next call.

        Raises NonFinite: too many steps in a row were not finite.
        """
        while self._pending and (everything or not self._done):
            self._fetch()
        finite = [m for m in self._done if not m["nonfinite"]] or self._done
        # Common names only: a run may continue with an objective that has other metrics.
        names = [name for name in self._done[-1] if all(name in m for m in self._done)]
        scalars = {f"train/{name}": float(np.mean([m[name] for m in finite])) for name in names}
        # The newest learning rate, not a mean; the skipped steps' share is over all steps.
        scalars["train/lr"] = self._done[-1]["lr"]
        scalars["train/nonfinite"] = float(np.mean([m["nonfinite"] for m in self._done]))
        if self._faults.spike_sigmas:
            scalars["train/spikes"] = sum(m.get("spikes", 0.0) for m in self._done)
        self._done = []
        return scalars

    def wait(self) -> None:
        """Wait until the device has done every step so far."""
        jax.block_until_ready([metrics for _, metrics in self._pending])

    def _fetch(self) -> None:
        step, metrics = self._pending.popleft()
        values = _to_host(metrics)
        self._nonfinite = self._nonfinite + 1 if values["nonfinite"] else 0
        if self._nonfinite >= self._faults.max_nonfinite:
            raise NonFinite(
                f"loss or gradient was not finite in {self._nonfinite} steps up to {step}; the "
                "parameters are still those before them. Lower optim.lr, set optim.clip_norm=1 "
                "or use model.dtype=float32"
            )
        if self._faults.spike_sigmas:
            if "spikes" not in values:  # the step itself judges where it skips spikes
                values["spikes"] = float(self._is_spike(values["loss"]))
            if values["spikes"]:
                self._log_spike(step, values["loss"])
        self._done.append(values)

    def _is_spike(self, loss: float) -> bool:
        """Return whether a loss is a spike and add it to the window, as `spikes.judge` does."""
        if not math.isfinite(loss):
            return False
        full = len(self._losses) == WINDOW
        spike = full and bool(is_spike(loss, np.asarray(self._losses), self._faults.spike_sigmas))
        self._losses.append(loss)
        return spike


def _to_host(metrics: Mapping[str, Any]) -> dict[str, float]:
    # `jax.device_get` takes ten times as long for a few scalars.
    return {name: float(np.asarray(value)) for name, value in metrics.items()}
