# SPDX-License-Identifier: Apache-2.0
"""Checks of `doctor` on what is written to: the place of runs, and that of compiled programs."""

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import jax

from vit_jax.analysis.tables import format_bytes
from vit_jax.cli.finding import BROKEN, OK, WARNING, Finding
from vit_jax.errors import UserError
from vit_jax.train import workdir

_BLOCK, _BLOCKS = 2**20, 8
_LITTLE_SPACE = 2**30
_ELSEWHERE = "free some space, or choose another --workdir"


def disk(place: Path) -> Finding:
    """Write, sync and read a file where runs are kept, and see whether locks work there.

    The place itself is not made: the nearest folder above that is there stands for it.
    """
    workdir.check(place)
    folder = standing(place)
    free = shutil.disk_usage(folder).free
    text = f"{folder}: {format_bytes(free)} free"
    try:
        with tempfile.NamedTemporaryFile(prefix=".doctor-", dir=folder) as file:
            rate = _write_and_read(file)
            lock = _lock_fails(file)
    except OSError as error:
        reason = error.strerror or str(error)
        return Finding(BROKEN, f"{text}, and no file can be kept there ({reason})", _ELSEWHERE)
    text += f", written and read at {rate / 2**20:,.0f} MiB/s"
    if lock:
        fix = "start no second run on the same workdir: it would not be noticed"
        return Finding(WARNING, f"{text}, but files cannot be locked ({lock})", fix)
    if free < _LITTLE_SPACE:
        return Finding(WARNING, text, _ELSEWHERE)
    return Finding(OK, f"{text}; locks work")


def standing(place: Path) -> Path:
    """Return the nearest folder that is there, of a place and those above it.

    Raises:
        UserError: something else is in the way.
    """
    place = place.expanduser().absolute()
    while not place.is_dir():
        if place.exists():
            raise UserError(f"{place} is no folder; choose another place")
        place = place.parent
    return place


def _write_and_read(file: Any) -> float:
    """Return the bytes per second, through to the disk.

    Raises:
        OSError: it cannot be written, or reads otherwise.
    """
    block, begin = os.urandom(_BLOCK), time.monotonic()
    for _ in range(_BLOCKS):
        file.write(block)
    file.flush()
    os.fsync(file.fileno())
    with open(file.name, "rb") as again:
        for _ in range(_BLOCKS):
            if again.read(_BLOCK) != block:
                raise OSError("it reads other bytes than were written")
    return _BLOCK * _BLOCKS / (time.monotonic() - begin)


def _lock_fails(file: Any) -> str:
    """Say why a lock does not keep a second one out; "" where it does."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.strerror or str(error)
    with open(file.name, "rb") as second:
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return ""
        except OSError as error:
            return error.strerror or str(error)
    return "two hold the same lock"


def cache() -> Finding:
    """Say where compiled programs are kept, after `startup.configure`."""
    settings = jax.config.values
    where = settings["jax_compilation_cache_dir"]
    fix = "set JAX_COMPILATION_CACHE_DIR to a folder that can be written"
    if not settings["jax_enable_compilation_cache"]:
        text = "JAX_ENABLE_COMPILATION_CACHE=false: every start compiles anew"
        return Finding(WARNING, text, "unset it")
    if not where:
        return Finding(WARNING, "compiled programs are not kept: every start compiles anew", fix)
    if "://" in where:
        return Finding(OK, f"{where}, not looked at")
    try:
        folder = standing(Path(where))
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_BLOCK))
            file.flush()
    except (OSError, UserError) as error:
        reason = getattr(error, "strerror", None) or error
        text = f"{where} cannot be written ({reason}): every start compiles anew"
        return Finding(WARNING, text, fix)
    count, free = len(list(Path(where).glob("*-cache"))), shutil.disk_usage(folder).free
    text = f"{where}: {count:,} compiled programs, {format_bytes(free)} free"
    return Finding(WARNING, text, "free some space") if free < _LITTLE_SPACE else Finding(OK, text)
