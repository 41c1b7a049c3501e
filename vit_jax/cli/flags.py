# SPDX-License-Identifier: Apache-2.0
"""Command lines with a config file and overrides: every mistake is one line with a suggestion."""

import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from absl import flags
from ml_collections import config_flags
from ml_collections.config_flags import tuple_parser

from vit_jax import errors, fields, signals
from vit_jax.errors import UserError
from vit_jax.field_names import check_value_path, did_you_mean, nearest, value_at

if TYPE_CHECKING:
    from vit_jax.config import Config


# What the system says of a disk without room: full, over quota, or a file over its limit.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def define(argv: Sequence[str]) -> flags.FlagValues:
    """Define the flags that every command with a config shares, in a set of their own."""
    values = flags.FlagValues()
    config_flags.DEFINE_config_file(
        "config", None, "The run: a file in configs/.", flag_values=values, sys_argv=list(argv)
    )
    flags.DEFINE_bool("debug", False, "Show the traceback of an error.", flag_values=values)
    return values


def read_config(argv: Sequence[str], values: flags.FlagValues) -> "Config":
    """Parse a command line and return its checked config.

    Args:
        argv: the command line, program name first.
        values: from `define`, with the command's own flags added.

    Raises:
        UserError: an unknown flag or key, a value of the wrong type, a config that cannot be.
    """
    config = value_of("config", argv)
    if config is None:
        raise UserError(f"which run? add --config=FILE, one of: {', '.join(_config_files())}")
    path = Path(config.split(":")[0])
    if not os.path.isfile(path):  # unlike pathlib's, False of a name that is too long
        raise errors.unknown("config file", str(path), _config_files())
    # Late: help and a mistyped file are answered before jax is imported.
    from vit_jax.config import Config, check, check_types
    from vit_jax.models import ModelConfig, refuse_name

    override = re.compile(r"--?(?:no)?config\.([^=]*)(?:=(.*))?", re.DOTALL)
    overrides = [found.groups() for word in argv[1:] if (found := override.fullmatch(word))]
    try:
        # First without overrides: an unknown key is then looked up in the config itself.
        plain = [argv[0], f"--config={config}"]
        bare = flags.FlagValues()
        config_flags.DEFINE_config_file("config", flag_values=bare, sys_argv=plain)
        bare(plain)
        base = bare["config"].value
        if not isinstance(base, Config):
            raise UserError(f"{path}: get_config() must return a vit_jax.config.Config")
        check_types(base)
    except Exception as error:  # whatever a user's own file does
        cause = _without_wrapping(error)
        if isinstance(cause, UserError):
            raise cause from None
        told, _, argument = config.partition(":")
        if argument and str(cause).startswith("get_config() takes 0 positional arguments"):
            raise UserError(f"{told} takes no argument; drop ':{argument}'") from error
        raise UserError(f"{path} cannot be read: {type(cause).__name__}: {cause}") from error
    for field, value in overrides:
        if isinstance(value_at(base, field), ModelConfig):
            refuse_name(
                value,
                f"--config.{field}={value}",
                f", in the config file; a flag sets one field of it, --config.{field}.depth=12",
            )
        check_value_path(base, field)
    parse(argv, values, tree={"config": base})
    cfg = cast(Config, values["config"].value)
    check(cfg)
    return cfg


def _without_wrapping(error: BaseException) -> BaseException:
    """Return what a config file raised, which config_flags and absl wrap with its traceback."""
    while error.__context__ is not None and (
        isinstance(error, flags.Error) or str(error).startswith("Error whilst parsing config file")
    ):
        error = error.__context__
    return error


def parse(
    argv: Sequence[str],
    values: flags.FlagValues,
    *,
    positional: bool = False,
    tree: Mapping[str, Any] | None = None,
) -> list[str]:
    """Parse a command line and return its arguments that are no flags, where it may have some.

    Args:
        argv: the command line, program name first.
        values: the flags.
        positional: whether it may have arguments that are no flags.
        tree: configs by the names of their flags: an unknown `--lr` may be a field of theirs.

    Raises:
        UserError: an unknown flag, a value of the wrong type, anything that is no flag.
    """
    values.set_gnu_getopt(positional)  # flags after other arguments
    try:
        rest = values(list(argv))
    except flags.UnrecognizedFlagError as error:
        near = nearest(tree, error.flagname, alike=1) if tree else []
        if near:
            told = f"unknown flag '--{error.flagname}'; {did_you_mean(near)}"
            raise UserError(told) from error
        raise errors.unknown("flag", "--" + error.flagname, [f"--{n}" for n in values]) from error
    except (flags.Error, ValueError, TypeError) as error:
        raise UserError(_in_words(error, values)) from error
    if len(rest) > 1 and not positional:
        raise UserError(f"unexpected argument {rest[1]!r}; flags are written --name=value")
    return rest[1:]


def _in_words(error: Exception, values: flags.FlagValues) -> str:
    """Say of what form the value should be, where absl shows what its parser raised."""
    told = " ".join(str(error).split())
    found = re.match(r"flag --([\w.]+)=", told)
    if not found or found[1] not in values or error.__context__ is None:
        return told
    parser, default = values[found[1]].parser, values[found[1]].default
    if isinstance(parser, tuple_parser.TupleParser):
        shown = fields.written(tuple(default)) if default else "1,2 or \"('a','b')\""
        form = f"a tuple, such as {shown}"
    elif isinstance(parser, flags.BooleanParser):
        form = fields.words(bool)
    elif isinstance(parser, flags.IntegerParser) and parser.lower_bound is None:
        form = fields.words(int)
    elif isinstance(parser, flags.FloatParser) and parser.lower_bound is None:
        form = fields.words(float)
    elif isinstance(parser, flags.EnumClassParser):
        name, _, value = told.removesuffix(f": {error.__context__}").partition("=")
        choices = [str(choice.value) for choice in parser.enum_class]
        return str(errors.unknown(name.removeprefix("flag "), value, choices))
    else:
        return told  # of a choice or a range, absl says which
    cause = " ".join(str(error.__context__).split())
    return f"{told.removesuffix(f': {cause}').removeprefix('flag ')} must be {form}"


def run(main: Callable[[], int | None], argv: Sequence[str]) -> int:
    """Call `main`, turning a UserError into one line on standard error; returns the exit status."""
    try:
        return main() or 0
    except (KeyboardInterrupt, Exception) as error:
        if not signals.interrupted(error):
            return _status(error, argv)
        print("interrupted", file=sys.stderr)
        return signals.INTERRUPTED


def _status(failure: BaseException, argv: Sequence[str]) -> int:
    """Tell what ended a command, where it is no fault of the code; returns the exit status."""
    try:
        raise failure
    except UserError as error:
        tell(str(error), argv)
        return error.status
    except BrokenPipeError:  # a reader such as `head` has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at its end
        return 141  # as the shell has it for SIGPIPE
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        if error.errno in _NO_ROOM:
            tell(f"{what}{error.strerror}; make room, then start the same command again", argv)
            return errors.IO_ERROR
        if error.errno in errors.MACHINE:
            reason = f"{error.strerror} (errno {error.errno})"
            tell(f"{what}{reason}; mend that, then start the same command again", argv)
            return errors.IO_ERROR
        # Of a path that a user named, wherever it is first looked at.
        if error.errno in (errno.ENAMETOOLONG, errno.EACCES) and what:
            tell(f"{what}{error.strerror}", argv)
            return UserError.status
        raise


def tell(what: str, argv: Sequence[str]) -> None:
    """Say what went wrong, while it is handled, in one line whatever the value that it quotes."""
    if "--debug" in argv:
        traceback.print_exc()
    print(f"error: {' '.join(what.splitlines())}", file=sys.stderr)


def value_of(name: str, argv: Sequence[str]) -> str | None:
    """Return what --name is set to, before the flags can be parsed; None where it is not.

    Raises:
        UserError: it is given twice.
    """
    if sum(re.fullmatch(rf"--?{name}(=.*)?", argument) is not None for argument in argv) > 1:
        raise UserError(f"--{name} is given twice; which of them?")
    for i, argument in enumerate(argv):
        if re.fullmatch(rf"--?{name}", argument) and i + 1 < len(argv):
            return argv[i + 1]
        match = re.fullmatch(rf"--?{name}=(.*)", argument)
        if match:
            return match[1]
    return None


def _config_files() -> list[str]:
    if not os.path.isdir("configs"):
        return []
    return sorted(
        f"configs/{name}"
        for name in os.listdir("configs")
        if name.endswith(".py") and not name.startswith("_")
    )
