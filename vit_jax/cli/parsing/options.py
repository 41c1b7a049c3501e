# SPDX-License-Identifier: Apache-2.0
"""Command lines of the verbs: a dataclass declares a verb's flags, and all else comes from it.

Flags have the names and types of its fields; defaults, help and ranges stand at the fields
(`flag`), what the verb does in the class's docstring. absl reads the words, as for `main.py`.
"""

import dataclasses
import enum
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from absl import flags as absl_flags

from vit_jax.cli.parsing import flags
from vit_jax.errors import UserError
from vit_jax.settings import fields
from vit_jax.settings.names import words

_WIDTH, _INDENT = 100, 26  # of the help
# What stands for a value in the help, by its type.
_FORMS = {int: "N", float: "X", str: "NAME", Path: "FILE"}
_OTHERS = ("[", ".", "=", " ")  # forms of what is no flag of its own


def flag(default: Any, help: str, form: str = "", *, ask: str = "", **bounds: Any) -> Any:
    """Declare a flag. It is required if there is an `ask`, the error without it.

    Args:
        default: the value without the flag; immutable.
        help: what the flag does; the help adds the default.
        form: what the help shows as its value, by default its type or choices. "[IMAGE ...]" is for
            the arguments that are no flags; "=FILE", " FILE ...", ".FIELD=VALUE" are for flags that
            the verb's reader defines.
        bounds: of numbers, as for `fields.value`.
    """
    metadata = {**fields.value(default, **bounds).metadata, "help": help, "form": form, "ask": ask}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(kw_only=True)
class Options:
    """The flag that all verbs have."""

    usage: ClassVar[str] = ""  # by default made from the name of the class's file and its flags
    debug: bool = flag(False, "show the traceback of an error")


@dataclasses.dataclass(kw_only=True)
class ConfigOptions(Options):
    """The flags of verbs that `read_config` reads."""

    config: str = flag(
        "",
        "the run: a name that `configs` lists, or a file of one's own; --config.optim.lr=1e-3 sets "
        "a field, --config.model=deit_s16 a model by name (docs/configs.md)",
        "=NAME",
        ask="which run?",
    )


Kind = TypeVar("Kind", bound=Options)
Read = Callable[[type[Kind], Sequence[str]], tuple[Any, ...]]


def verb(
    cls: type[Kind], command: Callable[..., int | None], read: Read | None = None
) -> Callable[[Sequence[str]], int]:
    """Return a verb's `main`, from the command line (program name first) to the exit status.

    A verb's module that is run itself, `python -m vit_jax.cli.predict`, runs it here. `command`
    takes what `read` makes of the command line: a `cls`, and what the verb needs besides.
    """

    def main(argv: Sequence[str]) -> int:
        return run(cls, argv, command, read)

    if command.__module__ == "__main__":
        sys.exit(main(sys.argv))
    return main


def run(
    cls: type[Kind], argv: Sequence[str], command: Callable[..., int | None], read: Read | None
) -> int:
    """Print the help on request, else run the verb."""
    if any(word in ("-h", "--help", "-help") for word in argv[1:]):
        return flags.run(lambda: print(help_text(cls), flush=True), argv)
    return flags.run(lambda: command(*(read or read_options)(cls, argv)), argv)


def read_options(cls: type[Kind], argv: Sequence[str]) -> tuple[Kind]:
    """Read a command line."""
    return (read_trees(cls, argv, {}),)


def read_config(cls: type[Kind], argv: Sequence[str]) -> tuple[Kind, Any]:
    """Read a command line with --config; returns the options and the checked Config."""
    values = _defined(cls)
    cfg = flags.read_config(argv, values)
    return _filled(cls, values, []), cfg


def read_trees(cls: type[Kind], argv: Sequence[str], trees: dict[str, Any]) -> Kind:
    """Read a command line; `trees` as in `flags.parse`."""
    values = _defined(cls)
    takes_arguments = any(field.metadata["form"][:1] == "[" for field in dataclasses.fields(cls))
    rest = flags.parse(argv, values, positional=takes_arguments, trees=trees)
    return _filled(cls, values, rest)


def _defined(cls: type[Options]) -> absl_flags.FlagValues:
    values = absl_flags.FlagValues()
    for field, kind in _fields(cls):
        if not field.metadata["form"].startswith(_OTHERS):
            make: Any = absl_flags.DEFINE_bool if kind is bool else absl_flags.DEFINE_string
            make(_name(field), None, field.metadata["help"], flag_values=values)
    return values


def _filled(cls: type[Kind], values: absl_flags.FlagValues, rest: Sequence[str]) -> Kind:
    """Build the options from parsed flags and from `rest`, the arguments that are no flags.

    Raises UserError: a value of another type or out of range, a flag that is missing.
    """
    given: dict[str, Any] = {}
    for field, kind in _fields(cls):
        form, name = field.metadata["form"], _name(field)
        if form[:1] == "[" and typing.get_origin(kind) is tuple:
            given[field.name] = tuple(rest)
        elif form[:1] == "[" and rest:
            if len(rest) > 1:
                raise UserError(f"unexpected argument {rest[1]!r}; flags are written --name=value")
            given[field.name] = _read(kind, form.strip("[]"), rest[0], field)
        elif not form.startswith(_OTHERS) and values[name].present:
            given[field.name] = _read(kind, f"--{name}", values[name].value, field)
    for field, _ in _fields(cls):
        required = field.metadata["ask"] and not field.metadata["form"].startswith(_OTHERS[1:])
        if required and given.get(field.name, field.default) == field.default:
            raise UserError(field.metadata["ask"])
    return cls(**given)


def _fields(cls: type[Options]) -> Iterator[tuple[dataclasses.Field, Any]]:
    """Yield the fields with their types, None left out; the class's own first, `debug` last."""
    own = inspect.get_annotations(cls)
    order = sorted(dataclasses.fields(cls), key=lambda f: (f.name == "debug", f.name not in own))
    for field in order:
        kind = fields.annotations(cls)[field.name]
        kinds = [arg for arg in typing.get_args(kind) if arg is not type(None)]
        optional = type(None) in typing.get_args(kind)
        yield field, kinds[0] if optional else kind


def _name(field: dataclasses.Field) -> str:
    """Return a flag's name: that of its field, but for an underscore that Python needs."""
    return field.name.removesuffix("_")


def _read(kind: Any, name: str, text: Any, field: dataclasses.Field) -> Any:
    """Convert a flag's value to its type."""
    if isinstance(text, bool):
        return text
    if kind is Path and not text:
        return field.default
    if kind is Path and text.startswith("-"):
        raise UserError(f"{name}={text} looks like a flag; name a file or a folder")
    makes = {int: int, float: float, Path: lambda text: Path(text).expanduser()}
    try:
        if typing.get_origin(kind) is tuple:
            one = typing.get_args(kind)[0]
            items = [word.strip() for word in text.split(",") if word or one is not str]
            value = tuple(fields.conformed(one, name, makes.get(one, str)(x)) for x in items)
        else:
            value = fields.conformed(kind, name, makes.get(kind, str)(text))
    except UserError:
        raise
    except ValueError:
        raise UserError(f"{name}={text} must be {words(kind, field.default)}") from None
    fields.check_range(name, value, field.metadata, text)
    return value


def help_text(cls: type[Options]) -> str:
    """Write a verb's help: usage, what it does, its flags, examples and exit status.

    From its first indented line on, an example, the class's docstring comes after the flags.
    """
    text = inspect.cleandoc(cls.__doc__ or "")
    what, examples = re.split(r"(?m)^(?=  )|\Z", text, maxsplit=1)
    lines = [line for field, kind in _fields(cls) for line in _help(field, kind)]
    return "\n\n".join([f"usage: {usage(cls)}", what.strip(), "\n".join(lines), examples]).rstrip()


def usage(cls: type[Options]) -> str:
    """Return how a verb is called: its name, the flags that it needs, its arguments."""
    file = Path(inspect.getfile(cls))
    inside = "sweep " if file.parent.name == "sweeps" else ""
    verb, arguments = f"vit_jax {inside}{file.stem}", []
    for field, kind in _fields(cls):
        form, needed = field.metadata["form"], field.metadata["ask"]
        if form[:1] == "[":
            arguments.append(form.strip("[]") if needed else form)
        elif needed:
            verb += f" {_written(field, kind)}"
    return cls.usage or " ".join([verb, *arguments, "[flags]"])


def _help(field: dataclasses.Field, kind: Any) -> Iterator[str]:
    """Yield the lines of a flag's help."""
    text, usual = field.metadata["help"], field.default
    usual = ",".join(map(str, usual)) if isinstance(usual, tuple) else usual
    if not isinstance(usual, bool) and usual not in (None, "", Path()):
        text += f" (default: {usual})"
    left, indent = f"  {_written(field, kind)}".ljust(_INDENT), " " * _INDENT
    if left[-2:] != "  ":
        yield left.rstrip()
        left = indent
    yield from textwrap.wrap(text, _WIDTH, initial_indent=left, subsequent_indent=indent)


def _written(field: dataclasses.Field, kind: Any) -> str:
    """Write a flag as the help shows it."""
    form, name, args = field.metadata["form"], _name(field), typing.get_args(kind)
    if kind is bool:
        return f"--{name}, --no{name}" if field.default is None else f"--{name}"
    if form.startswith(_OTHERS):
        return form.strip("[]") if form[0] == "[" else f"--{name}{form}"
    if args:
        form = form or f"{_FORMS.get(args[0], 'NAME')},..."
    elif issubclass(kind, enum.Enum):
        form = "|".join(str(choice.value) for choice in kind)
    return f"--{name}={form or _FORMS[kind]}"
