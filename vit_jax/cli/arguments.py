# SPDX-License-Identifier: Apache-2.0
"""Command lines read by argparse: a mistake is one line, as everywhere."""

import argparse
import difflib
import re
from typing import NoReturn

from vit_jax.errors import UserError


class Parser(argparse.ArgumentParser):
    """A parser that raises UserError where argparse prints its usage and exits."""

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong, and where to read what is right."""
        raise UserError(f"{message}{self._hint(message)}; see {self.prog} --help")

    def _hint(self, message: str) -> str:
        known = [flag for flag in self._option_string_actions if flag.startswith("--")]
        found = re.match(r"unrecognized arguments: (--[^\s=]*)", message)
        near = difflib.get_close_matches(found[1], known, n=1, cutoff=0.5) if found else []
        return f"; did you mean {near[0]}?" if near else ""
