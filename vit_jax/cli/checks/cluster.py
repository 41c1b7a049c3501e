# SPDX-License-Identifier: Apache-2.0
"""Checks of `doctor` on several processes together: what differs, and who is slow.

What processes tell one another goes through JAX's coordination service and not through their
devices: a process that cannot compute with the others is named by them.
"""

import collections
import contextlib
import functools
import itertools
import json
import os
import platform
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from vit_jax.cli.checks import machine
from vit_jax.cli.checks.machine import BROKEN, OK, WARNING, Finding
from vit_jax.errors import UserError, some

_ANSWER = 120.0  # seconds that a process may take for a check longer than the others
_CLOCKS = 2.0  # seconds
_SLOW = 1.5  # times the median
_BYTES = 2**24  # of an array that all devices sum
_ROUNDS = 5
_WORK = 512  # width of a square matrix
_STATES = (OK, WARNING, BROKEN)
_calls = itertools.count()  # what is gathered, one after the other


def index() -> int:
    """Return the number of this process in its job, by the environment before they have met."""
    if "jax" in sys.modules and _state().client is not None:
        return _state().process_id
    env = os.environ
    ranks = {
        "JAX_NUM_PROCESSES": "JAX_PROCESS_ID",
        "SLURM_STEP_NUM_TASKS": "SLURM_PROCID",
        "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK",
    }
    for size, rank in ranks.items():
        if env.get(size):
            return 0 if env[size] == "1" else int(env.get(rank) or 0)
    return 0


def count() -> int:
    """Return the number of processes that have met."""
    return _state().num_processes


def _state() -> Any:
    from jax._src import distributed  # jax has no public seam

    return distributed.global_state


def gathered(value: Any) -> list[Any]:
    """Return the value of each process, JSON; all call it, in one order.

    Raises UserError: one does not answer.
    """
    client, name = _state().client, f"doctor/{next(_calls)}"
    client.key_value_set(f"{name}/{index()}", json.dumps(value))
    found = []
    for process in range(count()):
        try:
            told = client.blocking_key_value_get(f"{name}/{process}", int(_ANSWER * 1000))
        except Exception as error:  # of jaxlib's own kind
            raise UserError(f"process {process} has not answered in {_ANSWER:.0f} s") from error
        found.append(json.loads(told))
    return found


def together(check: Callable[[], Finding]) -> Finding:
    """Return the worst of what the processes find, and who has it."""
    found = [Finding(*each) for each in gathered(check())]
    worst = max(found, key=lambda each: _STATES.index(each.state))
    if worst.state == OK:
        return found[0]
    have = [process for process, each in enumerate(found) if each.state == worst.state]
    return worst._replace(text=f"{_named(have, _hosts())}: {worst.text}")


def hosts() -> Finding:
    """Compare the versions and the devices of all processes."""
    import jax

    from vit_jax.version import __version__

    kinds = collections.Counter(device.device_kind for device in jax.local_devices())
    versions = {name: machine.version_of(name) for name in machine.SHOWN}
    facts = {"vit_jax": __version__, "Python": platform.python_version(), **versions}
    facts["devices"] = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    return judge_facts(gathered(facts), _hosts())


def judge_facts(facts: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Finding:
    """Name the processes that differ from most; `names` are their hosts."""
    differing = []
    for fact in facts[0]:
        values = [of[fact] for of in facts]
        usual = collections.Counter(values).most_common(1)[0][0]
        for value in dict.fromkeys(v for v in values if v != usual):
            who = [process for process, v in enumerate(values) if v == value]
            differing.append(f"{_named(who, names)} has {fact} {value}, not {usual}")
    if differing:
        fix = "install one environment on all, and use machines of one kind"
        return Finding(BROKEN, some(differing), fix)
    text = f"{len(facts)} processes on {len(set(names))} host(s)"
    return Finding(OK, f"{text}, of the same versions, each with {facts[0]['devices']}")


def clocks() -> Finding:
    """Compare the hosts' clocks, read as all processes leave a barrier."""
    _meet()
    return judge_clocks(gathered(time.time()), _hosts())


def judge_clocks(seconds: Sequence[float], names: Sequence[str]) -> Finding:
    """Name the processes whose clock is away from the median."""
    usual = statistics.median_low(seconds)
    away = [second - usual for second in seconds]
    wrong = [
        f"the clock of {_named([process], names)} is {each:+.1f} s from the others'"
        for process, each in enumerate(away)
        if abs(each) > _CLOCKS
    ]
    if wrong:
        return Finding(WARNING, some(wrong), "times in logs and of files differ: start NTP there")
    return Finding(OK, f"clocks are within {max(away) - min(away):.2f} s of one another")


def speed() -> Finding:
    """Time the same work on each process by itself."""
    import jax
    import jax.numpy as jnp

    work = jax.jit(lambda x: jax.lax.fori_loop(0, 8, lambda _, y: jnp.tanh(y @ x), x))
    x = jax.device_put(jnp.ones((_WORK, _WORK)) / _WORK, jax.local_devices()[0])
    _meet()  # so that processes of one host disturb each other as in a run
    return judge_speed(gathered(_timed(lambda: work(x))), _hosts(), "does the same work")


def judge_speed(seconds: Sequence[float], names: Sequence[str], does: str) -> Finding:
    """Name the processes that are slower than the median; `does` what was timed."""
    usual = statistics.median_low(seconds)
    slow = [
        f"{_named([process], names)} {does} in {each * 1e3:.1f} ms, others in {usual * 1e3:.1f} ms"
        for process, each in enumerate(seconds)
        if each > _SLOW * usual
    ]
    if slow:
        fix = "look for another program, heat or fewer cores there; a run waits for its slowest"
        return Finding(WARNING, some(slow), fix)
    most = max(seconds) / usual
    return Finding(OK, f"each {does} in {usual * 1e3:.1f} ms, the slowest in {most:.2f} times that")


def all_reduce(mesh_cfg: Any) -> Finding:
    """Sum an array over the devices of each axis of a run's mesh, and between neighbours.

    Without `mesh_cfg`, over all devices.

    Raises UserError: the mesh does not fit the devices.
    """
    import jax
    import numpy as np
    from jax.sharding import Mesh

    from vit_jax.devices import sharding

    mesh = sharding.make_mesh(mesh_cfg or sharding.MeshConfig())
    told, shape = [], dict(mesh.shape)
    for axis, size in shape.items():
        if size > 1:
            _meet()
            seconds = max(gathered(_summed(mesh, axis)))
            speed = 2 * (size - 1) / size * _BYTES / seconds / 1e9
            told.append(f"{axis} ({size}) in {seconds * 1e3:.1f} ms, {speed:.2f} GB/s")
    done = Finding(OK, f"mesh {shape}: {_BYTES / 1e6:.1f} MB summed over {' and '.join(told)}")
    if count() == 2:
        return done  # of one link both ends are as slow
    first = {device.process_index: device for device in reversed(jax.devices())}
    best = float("inf")
    for left in range(count()):
        pair = (left, (left + 1) % count())
        _meet()
        if index() in pair:
            ends = np.array([first[process] for process in pair])
            best = min(best, _summed(Mesh(ends, ("pair",)), "pair"))
    judged = judge_speed(gathered(best), _hosts(), "sums with its nearer neighbour")
    return judged if judged.state != OK else done


def _summed(mesh: Any, axis: str) -> float:
    """Return the seconds of an all-reduce along an axis. Raises UserError: the sum is wrong."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    names = mesh.axis_names
    shape = (*mesh.shape.values(), _BYTES // 4)
    rest = PartitionSpec(*(None if name == axis else name for name in names))
    ones = NamedSharding(mesh, PartitionSpec(*names))
    x = jax.jit(lambda: jnp.ones(shape, jnp.float32), out_shardings=ones)()
    along = names.index(axis)
    add = jax.jit(lambda x: x.sum(along, keepdims=True), out_shardings=NamedSharding(mesh, rest))
    seconds = _timed(lambda: add(x))
    found = float(np.asarray(add(x).addressable_shards[0].data).ravel()[-1])
    if found != mesh.shape[axis]:
        raise UserError(f"a sum of {mesh.shape[axis]} ones over {axis} is {found}")
    return seconds


def _timed(work: Callable[[], Any]) -> float:
    """Return the least seconds of some rounds, after one to compile."""
    import jax

    jax.block_until_ready(work())
    found = []
    for _ in range(_ROUNDS):
        began = time.monotonic()
        jax.block_until_ready(work())
        found.append(time.monotonic() - began)
    return min(found)


def _meet() -> None:
    """Wait for all processes."""
    with contextlib.suppress(Exception):  # who is missing does not answer next, and is named there
        _state().client.wait_at_barrier(f"doctor {next(_calls)}", int(_ANSWER * 1000))


@functools.cache
def _hosts() -> list[str]:
    """Return the host of each process; all call it."""
    return gathered(os.environ.get("SLURMD_NODENAME") or socket.gethostname())


def _named(who: Iterable[int], names: Sequence[str]) -> str:
    """Name processes with their hosts."""
    return some([f"process {process} on {names[process]}" for process in who])
