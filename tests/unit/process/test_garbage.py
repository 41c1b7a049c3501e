# SPDX-License-Identifier: Apache-2.0
"""A start makes Python search for garbage seldom, and a process ends without a search."""

import subprocess
import sys

_PROGRAM = """
import atexit, gc
atexit.register(lambda: print(gc.get_threshold()[0], gc.get_freeze_count() > 0))
from vit_jax.process import launch
launch.begin()
"""


def test_a_start_seldom_looks_for_cycles() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True)
    assert done.stdout == "50000 True\n", done.stderr
