# SPDX-License-Identifier: Apache-2.0
"""When one process of a run is lost, the others end with one line."""

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator
from typing import NoReturn

import jax

from vit_jax.errors import UserError

# Words in the errors of the collectives' transports and of jax's coordination service.
_LOST = re.compile(r"gloo|nccl|connection|UNAVAILABLE|DEADLINE_EXCEEDED|heartbeat", re.IGNORECASE)
_GRACE = 5.0  # seconds


class LostProcess(UserError):
    """Another process of the run has died, or cannot be reached."""

    status = 75  # EX_TEMPFAIL: the same command continues


@contextlib.contextmanager
def other_processes() -> Iterator[None]:
    """Raise LostProcess, one line, in place of the error of a failed collective."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # jit may raise either
        if not is_lost(error):
            raise
        raise LostProcess(
            "another process of this run died or cannot be reached "
            f"({str(error).splitlines()[0]}); start them all again, which continues"
        ) from error


def is_lost(error: BaseException) -> bool:
    """Return whether a collective failed because another process is gone."""
    # Out of memory is no lost peer: a restart would end the same way.
    return (
        jax.process_count() > 1
        and isinstance(error, jax.errors.JaxRuntimeError | ValueError)
        and not isinstance(error, UserError)
        and _LOST.search((str(error).splitlines() or [""])[0]) is not None
    )


def leave(status: int) -> NoReturn:
    """End this process without waiting for the others, as jax's own exit would, and then abort.

    The others abort when process 0 exits, so it first gives them time to print their errors.
    """
    try:
        if jax.process_index() == 0:
            time.sleep(_GRACE)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or never open
                stream.flush()
    finally:
        os._exit(status)
