# SPDX-License-Identifier: Apache-2.0
"""Errors a user can act on: one line that names the thing, the valid choices and what to do."""

import difflib
import enum
from collections.abc import Iterable
from typing import Any


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


def choice(kind: Any, name: str, value: Any) -> Any:
    """Read a plain string, `pool="map"`, as the choice that it names, where a field has choices.

    Code compares choices by identity: a string would silently be none of them.

    Args:
        kind: the field's type; the value of one that is no StrEnum is returned as it is.
        name: the field, for the message.
        value: what it is set to.

    Raises:
        UserError: no such choice.
    """
    if not (isinstance(kind, type) and issubclass(kind, enum.StrEnum)):
        return value
    if value not in list(kind):
        raise unknown(name, str(value), list(kind))
    return kind(value)
