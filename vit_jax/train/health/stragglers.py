# SPDX-License-Identifier: Apache-2.0
"""Which host the others wait for.

A step is one program on all devices, so every host measures nearly the same time for it. A slow
host spends more time by itself, on its data and between steps, while the others wait in the step
for its devices to join. That time is compared.
"""

from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax.train.report.goodput import Phase

_OWN = (Phase.DATA, Phase.OTHER)  # compiling, evals and saves are shared


class Stragglers:
    """Compares the hosts' own time between two log lines; returns it one log line later.

    The numbers are exchanged behind the steps in flight: waiting for them would idle the devices.
    """

    def __init__(self) -> None:
        self._before: Mapping[Phase, float] = dict.fromkeys(Phase, 0.0)
        self._in_flight: jax.Array | None = None

    def scalars(self, seconds: Mapping[Phase, float]) -> dict[str, float]:
        """Return the slowest host before the last log line and its lag; {} for one process.

        All processes call this after the same step, with `Goodput.seconds`. `perf/slowest_host` is
        a process index; `perf/slowest_host_lag` is how much longer that host's own time is than the
        median host's, as a share of the steps' time.
        """
        if jax.process_count() == 1:
            return {}
        spent = {phase: seconds[phase] - self._before[phase] for phase in Phase}
        own = sum(spent[phase] for phase in _OWN)
        found = {} if self._in_flight is None else compare(np.asarray(self._in_flight))
        self._in_flight = _gather(np.array([own, own + spent[Phase.STEP]], np.float32))
        self._before = dict(seconds)
        return found


def compare(times: np.ndarray) -> dict[str, float]:
    """Return the slowest host, given seconds (by itself, of all steps) [P, 2] of each process."""
    own = times[:, 0]
    slowest = int(own.argmax())
    median = np.sort(own)[(len(own) - 1) // 2]  # of two, the faster
    return {
        "perf/slowest_host": float(slowest),
        "perf/slowest_host_lag": float((own[slowest] - median) / max(times[slowest, 1], 1e-9)),
    }


def _gather(mine: np.ndarray) -> jax.Array:
    """Gather a few numbers [n] from every process, [P, n], without waiting."""
    by_process = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
    grid = np.asarray(by_process).reshape(jax.process_count(), -1)
    mesh = Mesh(grid, ("process", "device"))
    split = NamedSharding(mesh, PartitionSpec("process"))
    every = jax.make_array_from_process_local_data(split, mine[None], (len(grid), len(mine)))
    with jax.set_mesh(mesh):  # the run's mesh may order the devices otherwise
        return _copy(every)


@jax.jit
def _copy(x: jax.Array) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, PartitionSpec())
