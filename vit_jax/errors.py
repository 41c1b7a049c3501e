# SPDX-License-Identifier: Apache-2.0
"""Errors a user can act on: one line that names the thing, the valid choices and what to do."""

import contextlib
import difflib
import errno
from collections.abc import Iterable, Iterator, Sequence


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


# Errors of the machine, not of the path: the same call may work later.
MACHINE = (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT)


class NonFinite(UserError):
    """Losses or gradients are not finite step after step, or what is to be saved is not."""

    status = 70  # EX_SOFTWARE


_typed = False  # whether messages name flags


@contextlib.contextmanager
def of_command_line() -> Iterator[None]:
    """Let messages name flags, for a command line, instead of Python's arguments and fields."""
    global _typed
    before, _typed = _typed, True
    try:
        yield
    finally:
        _typed = before


def setting(text: str) -> str:
    """Write how to set a value, such as "config.model.num_classes=3" or "model=vit_b16".

    On a command line this is a flag, in Python an argument or the field of a config.
    """
    return f"--{text}" if _typed else text.removeprefix("config.")


def shown(name: str) -> str:
    """Write a file's name in one line: one with line breaks or odd bytes as Python's repr."""
    return name if name.isprintable() else repr(name)


def some(lines: Sequence[str], most: int = 4) -> str:
    """Join the first lines: "lr: 1 -> 2; seed: 0 -> 1; and 3 more"."""
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return "; ".join([*lines[:most], *more])


def unknown(kind: str, name: str, choices: Iterable[str]) -> UserError:
    """Build the error for a name outside `choices`, with the nearest valid ones first."""
    valid = sorted({str(choice) for choice in choices})
    near = difflib.get_close_matches(name, valid, n=3, cutoff=0.5)
    if near:
        hint = "did you mean " + " or ".join(repr(n) for n in near) + "?"
    else:
        shown = ", ".join(valid[:12]) + (f", ... ({len(valid)} in all)" if len(valid) > 12 else "")
        hint = f"valid: {shown or 'none'}."
    return UserError(f"unknown {kind} {name!r}; {hint}")
