# SPDX-License-Identifier: Apache-2.0
"""Failures before a command's own code runs: an old Python, a missing package, Ctrl-C."""

from __future__ import annotations  # a Python that is too old parses this file too

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from vit_jax.process import garbage, signals

_LEAST = (3, 11)
_PACKAGE = __name__.partition(".")[0]


def begin() -> None:
    """Make Ctrl-C end the process in one line, and refuse a Python that is too old."""
    signals.end_at_once()
    garbage.collect_seldom()
    if sys.version_info < _LEAST:
        has, needs = (".".join(map(str, version)) for version in (sys.version_info[:3], _LEAST))
        _refuse(
            f"{sys.executable} is Python {has}, and this needs Python {needs} or newer{_instead()}"
        )


def load(module: str) -> Callable[[Sequence[str]], int]:
    """Import the `main` of a command's module; a missing package ends the process in one line."""
    try:
        return importlib.import_module(module).main
    except ModuleNotFoundError as error:
        name = (error.name or _PACKAGE).partition(".")[0]
        if name == _PACKAGE:
            raise
        from vit_jax import errors  # late: a Python that is too old cannot read it

        _refuse(f"{errors.missing(name)}{_instead()}")


def _instead() -> str:
    """Name the environment that `make` creates, if it exists and is not in use."""
    python = os.path.join(".venv", "bin", "python")
    if os.path.realpath(".venv") == os.path.realpath(sys.prefix) or not os.access(python, os.X_OK):
        return ""
    return f"; {python} is here, start with that"


def _refuse(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)  # the status of every bad input
