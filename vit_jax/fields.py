# SPDX-License-Identifier: Apache-2.0
"""Every value of a config against its field's annotation, wherever it comes from.

Config files, Python calls and flags go through `conform`, so they take the same values and give the
same messages.
"""

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

from vit_jax.errors import UserError, unknown

_MISSING = dataclasses.MISSING


def conform(node: Any, path: str = "") -> None:
    """Bring every value of a config to its field's annotation, in place.

    What can mean one thing alone is taken: "center" for Crop.CENTER, 64 for (64,), a list for a
    tuple, 1 for 1.0.

    Args:
        node: a dataclass; those inside it follow, by their own classes.
        path: what stands before its fields in messages, such as "data.".

    Raises:
        UserError: a value of another kind, no such choice, a number that is not finite or of more
            than 64 bits; it names the field, the value with its type, and what it may be.
    """
    kinds = annotations(type(node))
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        read = conformed(kinds[field.name], path + field.name, value, _default(field))
        if read is not value:
            setattr(node, field.name, read)


@functools.cache
def annotations(cls: type) -> Mapping[str, Any]:
    """Return the types of a dataclass's fields by name, those written as strings resolved."""
    return typing.get_type_hints(cls)


def _default(field: dataclasses.Field) -> Any:
    made = field.default_factory
    return field.default if made is _MISSING else made


def conformed(kind: Any, name: str, value: Any, default: Any = _MISSING) -> Any:
    """Return a value as its annotation has it; `conform` says what is taken.

    Args:
        kind: the annotation; of one that is neither a type nor made of types nothing is asked.
        name: the field, for messages.
        value: what it is set to.
        default: the field's, an example of what it may be; without one there is none.

    Raises:
        UserError: as `conform`.
    """
    value = _read(kind, name, value, default)
    _check_numbers(name, value, value)
    return value


def _read(kind: Any, name: str, value: Any, default: Any) -> Any:
    if getattr(value, "ndim", None) == 0:
        value = value.item()  # a number of NumPy's, or of jax's
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _read_union(kind, name, value, default)
    if origin is typing.Literal:
        if not any(value == arg and type(value) is type(arg) for arg in args):
            raise unknown(name, str(value), map(str, args))
        return value
    if origin is tuple:
        return _read_tuple(kind, name, value, default)
    if origin is dict:
        return _read_dict(kind, name, value, default)
    if kind is Any or not isinstance(kind, type) or origin is not None:
        return value
    if issubclass(kind, enum.Enum):
        return _read_choice(kind, name, value)
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, kind):
            raise _wrong(kind, name, value, default)
        conform(value, f"{name}.")
        return value
    if kind is bool and type(value) is int and value in (0, 1):
        return bool(value)  # as a flag takes them
    if kind is float and type(value) is int:
        return _as_float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _wrong(kind, name, value, default)
    return value


def _read_union(kind: Any, name: str, value: Any, default: Any) -> Any:
    """Take the first of the kinds that the value is of, as it stands rather than converted."""
    args = typing.get_args(kind)
    exact = [arg for arg in args if isinstance(arg, type) and type(value) is arg]
    for arg in (*exact, *args):
        try:
            return _read(arg, name, value, default)
        except UserError:
            continue
    raise _wrong(kind, name, value, default)


def _read_choice(kind: type[enum.Enum], name: str, value: Any) -> Any:
    """Read a plain string, `pool="map"`, as the choice that it names.

    Code compares choices by identity: a string would silently be none of them.
    """
    if isinstance(value, kind):
        return value
    for choice in kind:
        # Flags take names of either case, so all do.
        if isinstance(value, str) and value.lower() in (str(choice.value), choice.name.lower()):
            return choice
    raise unknown(name, str(value), [str(choice.value) for choice in kind])


def _read_tuple(kind: Any, name: str, value: Any, default: Any) -> Any:
    args = typing.get_args(kind)
    many = len(args) == 2 and args[1] is Ellipsis
    if isinstance(value, range):
        value = tuple(value)
    if getattr(value, "ndim", 0) == 1:
        value = tuple(value.tolist())  # an array of NumPy's, or of jax's
    items = tuple(value) if isinstance(value, list) else value
    if many and isinstance(value, str | int | float) and typing.get_origin(args[0]) is None:
        items = (value,)  # one alone, as a flag takes it
    if not isinstance(items, tuple) or (not many and len(items) != len(args)):
        raise _wrong(kind, name, value, default)
    kinds = args[:1] * len(items) if many else args
    read = []
    for part, item in zip(kinds, items, strict=True):
        try:
            read.append(_read(part, name, item, _MISSING))
        except UserError:
            raise _wrong(kind, name, value, default) from None
    same = len(read) == len(items) and all(a is b for a, b in zip(read, items, strict=True))
    return items if same else tuple(read)


def _read_dict(kind: Any, name: str, value: Any, default: Any) -> Any:
    of_key, of_value = typing.get_args(kind)
    if not isinstance(value, dict) or not all(isinstance(key, of_key) for key in value):
        raise _wrong(kind, name, value, default)
    read = {key: _read(of_value, f"{name}.{key}", item, _MISSING) for key, item in value.items()}
    return value if all(read[key] is value[key] for key in value) else read


def _as_float(number: int) -> float:
    """Return a whole number, as which a flag reads 1, as a float."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _check_numbers(name: str, value: Any, item: Any) -> None:
    """Refuse NaN, infinity and what 64 bits do not hold, in a number or a tuple of numbers.

    Comparisons with bounds may let them pass, and arithmetic stumbles over them.
    """
    if isinstance(item, tuple):
        for one in item:
            _check_numbers(name, value, one)
    if isinstance(item, float) and not math.isfinite(item):
        raise UserError(f"{name}={value} must be finite")
    if isinstance(item, int) and abs(item) >= 2**63:
        raise UserError(f"{name} is a number of more than 64 bits; choose a smaller one")


def _wrong(kind: Any, name: str, value: Any, default: Any) -> UserError:
    of_type = "" if isinstance(value, tuple) else f" ({type(value).__name__})"
    return UserError(f"{name}={_shown(value)}{of_type} must be {words(kind, default, value)}")


def _shown(value: Any) -> str:
    """Write a value for a message, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        text = "..."
    return text if len(text) <= 200 else f"{text[:197]}..."


# Of each scalar: one of it, several of it, and an example.
_SCALARS: dict[Any, tuple[str, str, Any]] = {
    int: ("whole number", "whole numbers", 3),
    float: ("number", "numbers", 0.5),
    str: ("string", "strings", "^head"),
    bool: ("true or false", "true or false", True),
    type(None): ("None", "None", None),
}
_EXAMPLES = {int: (1, 3, 7), float: (0.5, 1.0), str: ("^head",)}


def words(kind: Any, default: Any = _MISSING, value: Any = None) -> str:
    """Say in a few words what a field of this annotation may be, for a message.

    Args:
        kind: the annotation.
        default: the field's, an example of what it may be.
        value: what was given instead: a number for a string was probably meant as a duration.
    """
    args = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        several = _SCALARS[args[0]][1] if args[0] in _SCALARS else f"a tuple of {_one(args[0])}s"
        if Ellipsis not in args:
            several = _one(kind)
        example = default if isinstance(default, tuple) and default else _example(kind)
        return f"{several}, such as {written(example)}"
    if kind is str and isinstance(default, str) and default:
        return f"a string, such as {default!r}"
    if kind is str and isinstance(value, int | float) and not isinstance(value, bool):
        return f"a string: '{_shown(value)}', or as a duration '{_shown(value)} steps'"
    one = _one(kind)
    if kind not in (bool, type(None)) and typing.get_origin(kind) is None:
        one = f"a{'n' if one[0] in 'AEIO' else ''} {one}"
    if dataclasses.is_dataclass(kind) and isinstance(default, type):
        return f"{one}, such as {default.__name__}()"
    return one


def _one(kind: Any) -> str:
    """Name one value of an annotation."""
    args, origin = typing.get_args(kind), typing.get_origin(kind)
    if kind in _SCALARS:
        return _SCALARS[kind][0]
    if origin in (typing.Union, types.UnionType):
        return " or ".join(words(arg) for arg in args)
    if origin is dict:
        return f"a dict from {_one(args[0])} to {_one(args[1])}"
    if origin is tuple:
        return "(" + ", ".join("..." if arg is Ellipsis else _one(arg) for arg in args) + ")"
    return getattr(kind, "__name__", str(kind))


def _example(kind: Any) -> Any:
    args = typing.get_args(kind)
    if typing.get_origin(kind) is not tuple:
        return _SCALARS[kind][2] if kind in _SCALARS else kind
    if len(args) == 2 and args[1] is Ellipsis:
        return _EXAMPLES.get(args[0], (_example(args[0]),))
    return tuple(map(_example, args))


def written(values: tuple[Any, ...]) -> str:
    """Write a tuple as a flag takes it: 1,3,7 or "('30%','60%')"."""
    if all(isinstance(value, int | float) for value in values):
        return ",".join(map(str, values))
    items = ",".join(map(repr, values))
    return f'"({items}{"," if len(values) == 1 else ""})"'


def plain(node: Any) -> Any:
    """Return a value of a config as JSON has it: dicts, lists, strings and numbers.

    A config of one of several classes, a model's or an objective's, names its own under "family".
    """
    if isinstance(node, dict):
        return {key: plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [plain(value) for value in node]
    if isinstance(node, enum.Enum):
        return node.value
    if not dataclasses.is_dataclass(node):
        return node
    one_of_several = any(map(dataclasses.is_dataclass, type(node).__mro__[1:]))
    family = {"family": type(node).__name__} if one_of_several else {}
    return family | {f.name: plain(getattr(node, f.name)) for f in dataclasses.fields(node)}


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return {"optim.lr": 0.001, ...} of what `plain` returns."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
