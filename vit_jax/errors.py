# SPDX-License-Identifier: Apache-2.0
"""Errors a user can act on: one line that names the thing, the valid choices and what to do."""

import contextlib
import difflib
import errno
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

# What a text may begin with: a flag, or a field with its value, "optim.warmup=-1 must be ...".
_FIELD = re.compile(r"--\w+(?:\.\w+)*|[a-z_]\w*(?:\.\w+)*(?==)")


class UserError(ValueError):
    """Bad input. `main.py` and the CLI print its message in one line and exit with `status`.

    Each kind of fault has a status of its own, named as in sysexits.h where it has a name there.
    `code` is the function that raised it, "config.checks.check_micro_batches"; `field` is the
    config's field or the flag that is wrong, "optim.warmup" or "--workdir", or "" for none. A text
    that begins with FIELD=VALUE or --FLAG needs no `field`. An error that is raised in the handling
    of another and repeats its text keeps the other's code, and its field if it has none itself.
    """

    status = 2

    def __new__(cls, *args: object, **_: object) -> Self:
        """Note who makes the error, before the constructors of subclasses are on the stack."""
        error = super().__new__(cls, *args)
        error.code = _caller()
        return error

    def __init__(self, *args: object, field: str | None = None) -> None:
        super().__init__(*args)
        text, inner = str(self), sys.exception()
        if not (isinstance(inner, UserError) and str(inner) in text):
            inner = None
        self.code: str = inner.code if inner else self.code
        if field is None:
            begins = _FIELD.match(text)
            field = begins[0] if begins else inner.field if inner else ""
        self.field = field.removeprefix("--config.")

    def __reduce__(self) -> tuple[Any, ...]:  # for subclasses with constructors of their own
        return _made_again, (type(self), self.args, self.__dict__)


def _made_again(kind: type[UserError], args: tuple[Any, ...], state: dict[str, Any]) -> UserError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


def _caller() -> str:
    """Return the function that called into this module: "data.checks.check_fixed"."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    # An outer function stands for those in it: Python 3.12 has none of its own for a comprehension.
    function = frame.f_code.co_qualname.partition(".<locals>")[0]
    return f"{frame.f_globals.get('__name__', '')}.{function}".removeprefix("vit_jax.")


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


def unknown(kind: str, name: str, choices: Iterable[str], *, field: str | None = None) -> UserError:
    """Build the error for a name outside `choices`, with the nearest valid ones first.

    A `kind` that is a field or a flag, "model.pool" or "--dtype", is the error's `field`.
    """
    if field is None and " " not in kind and (kind.startswith("--") or "." in kind):
        field = kind
    valid = sorted({str(choice) for choice in choices})
    near = difflib.get_close_matches(name, valid, n=3, cutoff=0.5)
    if near:
        hint = "did you mean " + " or ".join(repr(n) for n in near) + "?"
    else:
        shown = ", ".join(valid[:12]) + (f", ... ({len(valid)} in all)" if len(valid) > 12 else "")
        hint = f"valid: {shown or 'none'}."
    return UserError(f"unknown {kind} {name!r}; {hint}", field=field)


# What is imported under another name than it is installed by.
_INSTALLED_AS = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "orbax": "orbax-checkpoint",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


def install(extra: str = "") -> str:
    """Return the command that installs the package with an extra, in a clone or elsewhere."""
    clone = Path(__file__).parents[1]
    named = f"[{extra}]" if extra else ""
    what = f"-e '{clone}{named}'" if (clone / "pyproject.toml").is_file() else f"'vitjax{named}'"
    return f"{sys.executable} -m pip install {what}"


def missing(module: str) -> str:
    """Return the line for a module that is not installed, with the command that installs it."""
    from importlib import metadata  # late: it takes as long as the rest of a help

    name = module.partition(".")[0]
    wanted = re.sub(r"[-_.]+", "-", _INSTALLED_AS.get(name, name)).lower()
    try:
        lines = metadata.requires("vitjax") or []
    except metadata.PackageNotFoundError:  # run from a folder, where nothing says what it needs
        lines = []
    extra = ""
    for line in lines:
        parts = re.match(r"([\w.-]+).*?(?:extra == [\"'](\w+)[\"'])?$", line)
        if parts and re.sub(r"[-_.]+", "-", parts[1]).lower() == wanted:
            extra = parts[2] or ""
            break
    return f"the package {name!r} is not installed; {install(extra)} installs it"
