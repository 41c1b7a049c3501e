# SPDX-License-Identifier: Apache-2.0
"""A run of several processes, of which one is gone: the others end in one line."""

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator
from typing import NoReturn

import jax

from vit_jax.errors import UserError

# How the transports of collectives, and jax's coordination service, say that a peer is gone.
_LOST = re.compile(r"gloo|nccl|connection|UNAVAILABLE|DEADLINE_EXCEEDED|heartbeat", re.IGNORECASE)


_LAST_WORDS = 5.0  # seconds


class LostProcess(UserError):
    """Another process of the run has died, or cannot be reached."""

    status = 75  # EX_TEMPFAIL: the same command continues


@contextlib.contextmanager
def other_processes() -> Iterator[None]:
    """Say in one line that another process of the run is gone, where computing with it fails.

    Raises:
        LostProcess: in place of the error of the collective.
    """
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # jit may raise either
        if not is_lost(error):
            raise
        reason = str(error).splitlines()[0]
        raise LostProcess(
            f"another process of this run died or cannot be reached ({reason}); start them all "
            "again, which continues"
        ) from error


def is_lost(error: BaseException) -> bool:
    """Say whether an error is that of a collective whose peer is gone."""
    # A device without memory is no lost peer: to start again would end the same way.
    return (
        jax.process_count() > 1
        and isinstance(error, jax.errors.JaxRuntimeError | ValueError)
        and not isinstance(error, UserError)
        and _LOST.search((str(error).splitlines() or [""])[0]) is not None
    )


def leave(status: int) -> NoReturn:
    """End this process though others have not: jax's own end would wait for them, then abort.

    Those that process 0 leaves abort at once; it gives them time to say what happened to them.
    """
    try:
        if jax.process_index() == 0:
            time.sleep(_LAST_WORDS)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or never open
                stream.flush()
    finally:
        os._exit(status)
