# SPDX-License-Identifier: Apache-2.0
"""Command lines with a config file and overrides: every mistake is one line with a suggestion."""

import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags
from ml_collections import config_flags
from ml_collections.config_flags import tuple_parser

from vit_jax import errors
from vit_jax.errors import UserError
from vit_jax.process import escapes, signals
from vit_jax.settings import config_files
from vit_jax.settings.names import check_value_path, did_you_mean, nearest, words, written

if TYPE_CHECKING:
    from vit_jax.config.tree import Config

# Errors of a disk without room: full, over quota, or a file over its limit.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def read_config(argv: Sequence[str], values: flags.FlagValues | None = None) -> "Config":
    """Parse a command line and return its checked config; `values` are the command's own flags.

    Raises UserError: an unknown flag or key, a value of the wrong type, a config that cannot be.
    """
    config, rest = take("config", argv)
    if not config:
        raise UserError(f"which run? add --config=FILE, one of: {', '.join(config_files.names())}")
    file, argument = config_files.find(config)
    # Late: help and a mistyped file are answered before jax is imported.
    from vit_jax.cli.parsing.by_name import set_groups
    from vit_jax.config import check
    from vit_jax.config.saved import load

    base = load(file, argument, rest)
    values = flags.FlagValues() if values is None else values
    trees = {"config": base}
    parse(set_groups(base, rest), values, trees=trees)
    check(trees["config"])
    return trees["config"]


def parse(
    argv: Sequence[str],
    values: flags.FlagValues,
    *,
    positional: bool = False,
    trees: dict[str, Any] | None = None,
) -> list[str]:
    """Parse a command line; returns its arguments that are no flags, if it may have `positional`s.

    `argv` begins with the program's name; `trees` are dataclasses by name, replaced by what flags
    `--NAME.FIELD` make of them.

    Raises UserError: an unknown flag, a value of the wrong type, anything that is no flag.
    """
    for name, base in (trees or {}).items():
        for word in argv[1:]:
            if found := re.match(rf"--?(?:no)?{name}\.([^=]*)", word):
                check_value_path(base, found[1], root=name)
        config_flags.DEFINE_config_dataclass(name, base, flag_values=values, sys_argv=list(argv))
    values.set_gnu_getopt(positional)  # flags after other arguments
    try:
        rest = values(list(argv))
    except flags.UnrecognizedFlagError as error:
        flag = f"--{error.flagname}"
        # An unknown --lr may be a field.
        if near := nearest(trees, error.flagname, alike=1) if trees else []:
            raise UserError(f"unknown flag {flag!r}; {did_you_mean(near)}", field=flag) from error
        raise errors.unknown("flag", flag, [f"--{n}" for n in values], field=flag) from error
    except (flags.Error, ValueError, TypeError) as error:
        raise UserError(_in_words(error, values, argv)) from error
    if trees:
        trees |= {name: values[name].value for name in trees}
    if len(rest) > 1 and not positional:
        raise UserError(f"unexpected argument {rest[1]!r}; flags are written --name=value")
    return rest[1:]


def _in_words(error: Exception, values: flags.FlagValues, argv: Sequence[str]) -> str:
    """Return the message of a parse error: what a mistaken value must be, else absl's own text."""
    found = re.match(r"flag --([\w.]+)=", str(error))
    if not found or found[1] not in values:
        return " ".join(str(error).split())
    name, value = found[1], take(found[1], argv)[0]
    parser, default = values[name].parser, values[name].default
    if isinstance(parser, flags.EnumClassParser):
        choices = [str(choice.value) for choice in parser.enum_class]
        return str(errors.unknown(f"--{name}", str(value), choices))
    if isinstance(parser, tuple_parser.TupleParser):
        shown = written(tuple(default)) if default else "1,2 or \"('a','b')\""
        return f"--{name}={value} must be a tuple, such as {shown}"
    kinds = {flags.BooleanParser: bool, flags.IntegerParser: int, flags.FloatParser: float}
    form = next((words(kind) for cls, kind in kinds.items() if isinstance(parser, cls)), "else")
    return f"--{name}={value} must be {form}"


def run(main: Callable[[], int | None], argv: Sequence[str]) -> int:
    """Call `main`, turning a UserError into one line on standard error; returns the exit status."""
    try:
        with errors.of_command_line():
            return main() or 0
    except (KeyboardInterrupt, Exception) as error:
        if not signals.interrupted(error):
            return _status(error, debug="--debug" in argv)
        print("interrupted", file=sys.stderr)
        return signals.INTERRUPTED


def _status(failure: BaseException, *, debug: bool) -> int:
    """Print what ended a command, where it is no fault of the code; returns the exit status."""
    try:
        if "jax" not in sys.modules:
            raise failure
        from vit_jax.devices import hardware

        with hardware.explained("lower the batch size, --batch_size=N"):
            raise failure
    except UserError as error:
        print_error(str(error), debug=debug)
        return error.status
    except ModuleNotFoundError as error:
        if (error.name or "vit_jax").partition(".")[0] == "vit_jax":
            raise
        print_error(errors.missing(error.name or ""), debug=debug)
        return UserError.status
    except BrokenPipeError:  # a reader such as `head` has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at its end
        return 141  # as the shell has it for SIGPIPE
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        if error.errno in _NO_ROOM or error.errno in errors.MACHINE:
            mend = f" (errno {error.errno}); mend that"
            mend = "; make room" if error.errno in _NO_ROOM else mend
            print_error(f"{what}{mend}, then start the same command again", debug=debug)
            return errors.IO_ERROR
        # The user named this path; any part of the code may be the first to open it.
        if error.errno in (errno.ENAMETOOLONG, errno.EACCES) and error.filename:
            print_error(f"{error.filename}: {error.strerror}", debug=debug)
            return UserError.status
        raise


def print_error(what: str, *, debug: bool) -> None:
    """Print what went wrong, while it is handled, in one line whatever the value that it quotes."""
    if debug:
        traceback.print_exc()
    print(f"error: {escapes.terminal(' '.join(what.splitlines()))}", file=sys.stderr)


def take(name: str, argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """Take --name out of a command line, before the flags can be parsed; `--name.FIELD` stays.

    Returns what it is set to, None where it is not, and the other words in their order.

    Raises UserError: it is given twice.
    """
    found, rest, unread = [], [], iter(argv)
    for word in unread:
        if flag := re.fullmatch(rf"--?{re.escape(name)}(?:=(.*))?", word, re.DOTALL):
            found.append(next(unread, "") if flag[1] is None else flag[1])
        else:
            rest.append(word)
    if len(found) > 1:
        raise UserError(f"--{name} is given twice; which of them?")
    return (found[0] if found else None), rest
