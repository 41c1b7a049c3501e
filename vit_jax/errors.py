# SPDX-License-Identifier: Apache-2.0
"""Errors a user can act on: one line that names the thing, the valid choices and what to do."""

import difflib
import enum
import math
import typing
from collections.abc import Iterable
from typing import Any


class UserError(ValueError):
    """Bad input. `main.py` and the CLI print its message in one line and exit with `status`.

    Each kind of fault has a status of its own, named as in sysexits.h where it has a name there.
    """

    status = 2


class DataError(UserError):
    """An image, a record or a label cannot be used."""

    status = 65  # EX_DATAERR


# A checkpoint, or anything else that a run keeps, cannot be written or read (EX_IOERR).
IO_ERROR = 74


class NonFinite(UserError):
    """Losses or gradients are not finite step after step, or what is to be saved is not."""

    status = 70  # EX_SOFTWARE


def shown(name: str) -> str:
    """Write a file's name in one line: one with line breaks or odd bytes as Python's repr."""
    return name if name.isprintable() else repr(name)


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


# What a tuple field may hold: what to call it, its types, and an example where it has no default.
_ELEMENTS: dict[Any, tuple[str, type | tuple[type, ...], tuple[Any, ...]]] = {
    int: ("whole numbers", int, (1, 3, 7)),
    float: ("numbers", (int, float), (0.5, 1.0)),
    str: ("strings", str, ("^head",)),
}


def elements(kind: Any, name: str, value: Any, default: Any) -> Any:
    """Refuse a tuple with elements of another type than its field's: a flag takes any.

    Args:
        kind: the field's type; of one other than tuple[int, ...] and the like nothing is asked.
        name: the field, for the message.
        value: what it is set to; a list becomes a tuple, a whole number among floats one of them.
        default: the field's, an example of what it may be.

    Raises:
        UserError: no tuple, or one of something else.
    """
    of = typing.get_args(kind)[:1] if typing.get_origin(kind) is tuple else ()
    if not of or of[0] not in _ELEMENTS:
        return value
    words, types, example = _ELEMENTS[of[0]]
    value = tuple(value) if isinstance(value, list) else value
    if not isinstance(value, tuple) or not all(
        isinstance(item, types) and not isinstance(item, bool) for item in value
    ):
        raise UserError(f"{name}={value!r} must be {words}, such as {written(default or example)}")
    return tuple(map(_as_float, value)) if of[0] is float else value


def _as_float(number: int | float) -> float:
    """Return a float also of a whole number, which a flag reads as an int."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


def check_number(name: str, value: Any) -> None:
    """Refuse NaN, infinity and what 64 bits do not hold, in a number or a tuple of numbers.

    Comparisons with bounds may let them pass, and arithmetic stumbles over them.

    Raises:
        UserError: naming the field.
    """
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, float) and not math.isfinite(item):
            raise UserError(f"{name}={value} must be finite")
        if isinstance(item, int) and abs(item) >= 2**63:
            raise UserError(f"{name} is a number of more than 64 bits; choose a smaller one")


def written(values: tuple[Any, ...]) -> str:
    """Write a tuple as a flag takes it: 1,3,7 or "('30%','60%')"."""
    if not any(isinstance(value, str) for value in values):
        return ",".join(map(str, values))
    items = ",".join(map(repr, values))
    return f'"({items}{"," if len(values) == 1 else ""})"'
