# SPDX-License-Identifier: Apache-2.0
"""Python's search for objects that refer to each other and are not in use any more."""

import atexit
import gc

_EVERY = 50_000  # new objects


def collect_seldom() -> None:
    """Let Python search seldom, and not at its end.

    By Python's own setting the search was a sixth of a warm start, and half a second at the end of
    a run of a million objects, which the system takes back anyway. Objects that are in no circle go
    at once, as ever.
    """
    gc.set_threshold(_EVERY)
    atexit.register(gc.freeze)
