# SPDX-License-Identifier: Apache-2.0
"""Which host the others wait for.

A step is one program on all devices, so every host's clock gives it nearly the same time. What
differs is the part that a host spends by itself, on its data and between steps, while the others
wait in the step for its devices to join. That part is compared.
"""

from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax.train.clock import Stage

_OWN = (Stage.DATA, Stage.OTHER)  # what a host spends by itself; compiling, evals, saves are shared


class Stragglers:
    """Compares the hosts' own time between two lines of the log; knows it one line later.

    The numbers travel behind the steps in flight: to wait for them would leave the devices idle.
    """

    def __init__(self) -> None:
        self._before: Mapping[Stage, float] = dict.fromkeys(Stage, 0.0)
        self._travelling: jax.Array | None = None

    def scalars(self, seconds: Mapping[Stage, float]) -> dict[str, float]:
        """Return, of the line before, the slowest host and its lag; nothing of a single process.

        All processes call this after the same step. `perf/slowest_host` is a process index;
        `perf/slowest_host_lag` is the share of the time of steps by which that host's own part is
        longer than the median host's.

        Args:
            seconds: of this process's clock.
        """
        if jax.process_count() == 1:
            return {}
        spent = {stage: seconds[stage] - self._before[stage] for stage in Stage}
        own = sum(spent[stage] for stage in _OWN)
        told = {} if self._travelling is None else compare(np.asarray(self._travelling))
        self._travelling = _gather(np.array([own, own + spent[Stage.STEP]], np.float32))
        self._before = dict(seconds)
        return told


def compare(times: np.ndarray) -> dict[str, float]:
    """Name the slowest host by each one's seconds (by itself, of all steps) [P, 2]."""
    own = times[:, 0]
    slowest = int(own.argmax())
    median = np.sort(own)[(len(own) - 1) // 2]  # of two, the faster
    return {
        "perf/slowest_host": float(slowest),
        "perf/slowest_host_lag": float((own[slowest] - median) / max(times[slowest, 1], 1e-9)),
    }


def _gather(mine: np.ndarray) -> jax.Array:
    """Send a few numbers [n] of every process to all: [P, n]; waits for nothing."""
    by_process = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
    grid = np.asarray(by_process).reshape(jax.process_count(), -1)
    mesh = Mesh(grid, ("process", "device"))
    split = NamedSharding(mesh, PartitionSpec("process"))
    every = jax.make_array_from_process_local_data(split, mine[None], (len(grid), len(mine)))
    with jax.set_mesh(mesh):  # the run's may have the devices in another order
        return _copy(every)


@jax.jit
def _copy(x: jax.Array) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, PartitionSpec())
