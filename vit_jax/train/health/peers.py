# SPDX-License-Identifier: Apache-2.0
"""The processes of a run compare config, data, versions and checkpoints before the first step."""

import contextlib
import json
import platform
import re
import secrets
import socket
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from vit_jax.checkpoints import DIRECTORY
from vit_jax.checkpoints.config import steps_in
from vit_jax.config import saved as config_json
from vit_jax.data.sources.partition import KINDS
from vit_jax.devices.hosts import gather
from vit_jax.errors import UserError, some
from vit_jax.version import __version__

_TOKEN = ".processes"  # process 0 writes it into the workdir for the others to read
_SECONDS = 10.0  # a network file system may show a new file late
_PAUSES = (0.5, 1.0, 2.0, 3.0, 4.0)  # seconds between searches for the newest checkpoint
# Each host may have its own copy of the data in its own folder, and its own number of cores.
_LOCAL = re.compile(
    r"^(data\.(data_dir|num_threads|num_workers|prefetch|cache)|init\.weights"
    r"|objective\.distill\.(weights|cache))$"
)


def facts(
    config: Mapping[str, Any], data: Mapping[str, Any], class_names: Sequence[str]
) -> dict[str, Any]:
    """Return what must be equal in all processes of a run, by name.

    `config` is what `config_json.to_json` returns, `data` what `data_identity.describe` does, and
    `class_names` are those of the training split.
    """
    found = {
        name: "" if str(value).startswith(KINDS) else value
        for name, value in config_json.flatten(config).items()
        if not _LOCAL.search(name)
    }
    for split, of in data.items():
        found |= {f"{split} {key}": of[key] for key in ("examples", "digest")}
    return found | {
        "classes (checksum of their names)": zlib.crc32(json.dumps(list(class_names)).encode()),
        "vit_jax": __version__,
        "jax": jax.__version__,
        "Python": ".".join(platform.python_version_tuple()[:2]),
    }


def agree_on_weights(what: str, digest: str) -> None:
    """Raise UserError, the same line in every process, if processes read different weights."""
    if jax.process_count() == 1:
        return
    for index, (host, other) in enumerate(found := gather([socket.gethostname(), digest])):
        if other != found[0][1]:
            raise UserError(
                f"process {index} on {host} has read other {what} than process 0 on "
                f"{found[0][0]} (digest {other}, not {found[0][1]}); give all the same file"
            )


def agree(here: Mapping[str, Any], path: Path, *, shared: bool = True) -> None:
    """Compare the `facts` of this run's processes, and check that they share the workdir `path`.

    All processes call it, after process 0 has created the workdir; unless it is `shared`, each has
    one of its own.

    Raises UserError: they differ; the same line in every process.
    """
    if jax.process_count() == 1:
        return
    first = jax.process_index() == 0
    token = secrets.token_hex(8)
    if first:
        (path / _TOKEN).write_text(token)
    all_facts = gather([socket.gethostname(), token, here])
    hosts = [host for host, *_ in all_facts]
    seen = gather(not shared or _sees(path / _TOKEN, all_facts[0][1]))
    if first:
        (path / _TOKEN).unlink(missing_ok=True)
    blind = [i for i, sees in enumerate(seen) if not sees]
    if blind:
        raise UserError(
            f"process {blind[0]} on {hosts[blind[0]]} does not find in {path} what process 0 on "
            f"{hosts[0]} wrote there; give all processes one workdir, on a file system they share"
        )
    for index, (host, _, there) in enumerate(all_facts):
        lines = differences(all_facts[0][2], there)
        if lines:
            raise UserError(
                f"process {index} on {host} is about to train something else than process 0 on "
                f"{hosts[0]}: {some(lines)}; start all with one command, of one "
                "version, on the same data"
            )
    _agree_on_latest(path, hosts)


def _agree_on_latest(path: Path, hosts: Sequence[str]) -> None:
    """Wait until all processes see the same newest checkpoint, else raise UserError."""
    for pause in (*_PAUSES, None):
        steps = gather(max(steps_in(path / DIRECTORY), default=None))
        other = next((i for i, step in enumerate(steps) if step != steps[0]), None)
        if other is None:
            return
        if pause is not None:
            time.sleep(pause)
    seen = ["none" if step is None else f"step {step:,}" for step in steps]
    raise UserError(
        f"process {other} on {hosts[other]} finds {seen[other]} in {path} as the newest "
        f"checkpoint, process 0 on {hosts[0]} {seen[0]}; start all again once they see the same "
        "files"
    )


def differences(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """List "name: value, not value" where the facts of a process differ from the first's."""
    return [
        f"{name}: {other.get(name, 'absent')!r}, not {first.get(name, 'absent')!r}"
        for name in sorted(first.keys() | other.keys())
        if first.get(name) != other.get(name)
    ]


def _sees(file: Path, token: str) -> bool:
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if file.read_text() == token:
                return True
        time.sleep(0.1)
    return False
