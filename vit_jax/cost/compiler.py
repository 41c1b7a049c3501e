# SPDX-License-Identifier: Apache-2.0
"""Compile a traced program, with what the compiler logs and, where it fails, its reason."""

import contextlib
import dataclasses
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from vit_jax.errors import UserError
from vit_jax.process import waiting

_REMATERIALIZED = "involuntary full rematerialization"
TAKE_LESS = "fewer images a chip, accum_steps, model.remat=full or mesh.fsdp take less"


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program compiled by jax, and the seconds that took.

    `num_rematerialized` counts the arrays that the partitioner makes whole on every device for want
    of a direct way between two shardings; each is a line of its log.
    """

    program: Any
    seconds: float
    num_rematerialized: int


def compile_lowered(lowered: Any, options: Mapping[str, Any] | None = None) -> Compiled:
    """Compile what `jit(...).lower(...)` returned, with XLA's options besides the program's own.

    Raises UserError: it does not compile; the compiler's reason in one line.
    """
    start = time.monotonic()
    waiting.by_another_compiler()
    try:
        with _log() as log, _unkept():
            program = lowered.compile(compiler_options=dict(options) if options else None)
    except jax.errors.JaxRuntimeError as error:
        raise UserError(reason(str(error))) from error
    return Compiled(program, time.monotonic() - start, log[0].lower().count(_REMATERIALIZED))


def reason(message: str) -> str:
    """Return in one line why XLA does not compile a program: of a TPU's page, the memory needed."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    why = lines[0] if lines else "the compiler gives no reason"
    used = re.search(r"Used ([\d.]+)([KMG]) of ([\d.]+)([KMG]) hbm", message)
    if used is not None:
        why = f"out of memory, {used[1]} {used[2]}iB needed of the {used[3]} {used[4]}iB that a "
        why += f"chip has; {TAKE_LESS}"
    return f"does not compile: {why}"


@contextlib.contextmanager
def _unkept() -> Iterator[None]:
    """Keep a program out of jax's cache on disk, which cannot read it without its hardware."""
    setting = "jax_persistent_cache_min_compile_time_secs"
    before = jax.config.values[setting]
    jax.config.update(setting, math.inf)
    try:
        yield
    finally:
        jax.config.update(setting, before)


@contextlib.contextmanager
def _log() -> Iterator[list[str]]:
    """Copy what C++ writes to the process's standard error, which is not sys.stderr.

    Another process copies, and so shows the last words of a compiler that ends this one.
    """
    text = [""]
    sys.stderr.flush()
    with tempfile.NamedTemporaryFile() as file:
        kept = os.dup(2)
        copy = subprocess.Popen(["tee", file.name], stdin=subprocess.PIPE, stdout=kept)
        assert copy.stdin is not None
        os.dup2(copy.stdin.fileno(), 2)
        try:
            yield text
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            copy.stdin.close()
            copy.wait()
            text[0] = file.read().decode(errors="replace")
