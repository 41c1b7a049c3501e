# SPDX-License-Identifier: Apache-2.0
"""Whether the processes of a run are about to train the same thing, asked before the first step."""

import json
import platform
import re
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from vit_jax import __version__, config_json
from vit_jax.checkpoints import DIRECTORY
from vit_jax.errors import UserError

_TOKEN = ".processes"  # what process 0 leaves in the workdir for the others to find
_SECONDS = 10.0  # a network file system may show a new file late
# Each host may have its own copy of the data, at its own place, and its own number of cores.
_OWN = re.compile(
    r"^(data\.(data_dir|num_threads|num_workers|prefetch|cache)|init\.weights"
    r"|objective\.distill\.(weights|cache))$"
)


def facts(config: Mapping[str, Any], data: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """Return what must be the same for all processes of a run, by name.

    Args:
        config: of `config_json.to_json`.
        data: of `identity.describe`.
        place: the workdir.
    """
    flat = config_json.flatten(config)
    found = {name: value for name, value in flat.items() if not _OWN.search(name)}
    for split, of in data.items():
        found |= {f"{split} {key}": of[key] for key in ("examples", "digest")}
    folder = place / DIRECTORY
    steps = [int(e.name) for e in folder.iterdir() if e.name.isdecimal()] if folder.is_dir() else []
    return found | {
        "latest checkpoint": max(steps, default=None),
        "vit_jax": __version__,
        "jax": jax.__version__,
        "Python": platform.python_version(),
    }


def agree(here: Mapping[str, Any], place: Path) -> None:
    """Compare the processes of this run, and see that all have the same workdir.

    All of them call it, process 0 with the workdir made.

    Args:
        here: this process's `facts`.
        place: the workdir.

    Raises:
        UserError: they differ; the same line in every process.
    """
    if jax.process_count() == 1:
        return
    first = jax.process_index() == 0
    token = secrets.token_hex(8)
    if first:
        (place / _TOKEN).write_text(token)
    all_facts = [json.loads(x) for x in _gather(json.dumps([socket.gethostname(), token, here]))]
    hosts = [host for host, *_ in all_facts]
    shared = _sees(place / _TOKEN, all_facts[0][1])
    seen = [json.loads(x) for x in _gather(json.dumps(shared))]
    if first:
        (place / _TOKEN).unlink(missing_ok=True)
    blind = [i for i, sees in enumerate(seen) if not sees]
    if blind:
        raise UserError(
            f"process {blind[0]} on {hosts[blind[0]]} does not find in {place} what process 0 on "
            f"{hosts[0]} wrote there; give all processes one workdir, on a file system they share"
        )
    for index, (host, _, there) in enumerate(all_facts):
        lines = differences(all_facts[0][2], there)
        if lines:
            more = f"; and {len(lines) - 4} more" if len(lines) > 4 else ""
            raise UserError(
                f"process {index} on {host} is about to train something else than process 0 on "
                f"{hosts[0]}: {'; '.join(lines[:4])}{more}; start all with one command, of one "
                "version, on the same data"
            )


def differences(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """List "name: value, not value" where the facts of a process are not those of the first."""
    return [
        f"{name}: {other.get(name, 'absent')!r}, not {first.get(name, 'absent')!r}"
        for name in sorted(first.keys() | other.keys())
        if first.get(name) != other.get(name)
    ]


def _sees(file: Path, token: str) -> bool:
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            if file.read_text() == token:
                return True
        except OSError:
            pass
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)


def _gather(text: str) -> Sequence[str]:
    """Return the texts of all processes, in their order."""
    raw = np.frombuffer(text.encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.asarray(raw.size))
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: raw.size] = raw
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [
        bytes(row[: int(size)]).decode() for row, size in zip(rows, np.ravel(sizes), strict=True)
    ]
