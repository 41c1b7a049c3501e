# SPDX-License-Identifier: Apache-2.0
"""Errors a user can act on: one line that names the thing, the valid choices and what to do."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input. `main.py` and the CLI print its message in one line and exit with `status`."""

    status = 2


def unknown(kind: str, name: str, choices: Iterable[str]) -> UserError:
    """Build the error for a name that is none of `choices`, with the nearest valid ones first."""
    valid = sorted({str(choice) for choice in choices})
    near = difflib.get_close_matches(name, valid, n=3, cutoff=0.5)
    if near:
        hint = "did you mean " + " or ".join(repr(n) for n in near) + "?"
    else:
        shown = ", ".join(valid[:12]) + (f", ... ({len(valid)} in all)" if len(valid) > 12 else "")
        hint = f"valid: {shown or 'none'}."
    return UserError(f"unknown {kind} {name!r}; {hint}")
