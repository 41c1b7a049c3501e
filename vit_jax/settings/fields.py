# SPDX-License-Identifier: Apache-2.0
"""What the fields of a config may hold: declared at the field, checked by `conform` for all.

Config files, Python calls and flags go through `conform`, so they take the same values and give the
same messages.
"""

import dataclasses
import enum
import functools
import math
import operator
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from vit_jax.errors import UserError, unknown
from vit_jax.settings.names import brief, words

_MISSING = dataclasses.MISSING


_INSIDE = {
    "at least": operator.ge,
    "above": operator.gt,
    "at most": operator.le,
    "below": operator.lt,
}


def value(
    default: Any,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    lengths: tuple[int, ...] = (),
    note: str = "",
    unit: str = "",
    free: bool = False,
) -> Any:
    """Declare a field of a config: its default, its range, and whether a run may change it.

    Args:
        default: an immutable value.
        least, above, most, below: bounds of a number, or of every number in a tuple, however deep;
            `above` and `below` are outside of the range themselves.
        lengths: how many items a tuple may have.
        note: the end of the message about a value out of range: "0 turns it off".
        unit: of a number, "pixels"; "duration" of a string that `settings.durations` reads.
        free: a continued run may change it: it changes rounding at most, or when the run ends.
    """
    bounds = zip(_INSIDE, (least, above, most, below), strict=True)
    given = {word: bound for word, bound in bounds if bound is not None}
    metadata = {"bounds": given, "lengths": lengths, "note": note, "unit": unit, "free": free}
    return dataclasses.field(default=default, metadata=metadata)


def group(kind: Callable[[], Any], *, free: bool = False) -> Any:
    """Declare a field that holds fields: a dataclass, a dict, or a function that makes one.

    `free` as in `value`, for all of them.
    """
    return dataclasses.field(default_factory=kind, metadata={"free": free})


def is_free(node: Any, path: str) -> bool:
    """Return whether a config's field "model.remat", or a group around it, is declared free.

    A name that the config lacks is not.
    """
    for name in path.split("."):
        field = getattr(node, "__dataclass_fields__", {}).get(name)
        if field is None or field.metadata.get("free"):
            return field is not None
        node = getattr(node, name)
    return False


def conform(node: Any, path: str = "") -> None:
    """Bring every value of a config to its field's annotation, in place, and check its range.

    What can mean one thing alone is taken: "center" for Crop.CENTER, 64 for (64,), a list for a
    tuple, 1 for 1.0. Dataclasses inside follow, by their own classes. `path` stands before the
    fields in messages, such as "data.".

    Raises UserError: a value of another kind, no such choice, a number out of range, not finite or
    of more than 64 bits; it names the field, the value, and what it may be.
    """
    kinds = annotations(type(node))
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        read = conformed(kinds[field.name], path + field.name, value, _default(field))
        check_range(path + field.name, read, field.metadata)
        if read is not value:
            setattr(node, field.name, read)


def check_effects(
    node: Any, path: str, rules: Iterable[tuple[bool, str, *tuple[str, ...]]]
) -> None:
    """Refuse settings that were changed and do nothing.

    Args:
        node: a config that is made without arguments.
        path: what stands before its fields in messages, such as "optim.".
        rules: whether some settings act, the words for when they do not, and their names.
    """
    default = type(node)()
    for acts, when, *names in rules:
        for name in () if acts else names:
            given, usual = getattr(node, name), getattr(default, name)
            if given != usual:
                why = f"has no effect {when}; leave it at {usual if usual != '' else repr('')}"
                raise UserError(f"{path}{name}={given} {why}")


def check_range(name: str, value: Any, declared: Mapping[str, Any], text: str = "") -> None:
    """Refuse what `value` declares to be out of range; `text` is the value as it was written."""
    bounds, lengths = declared.get("bounds", {}), declared.get("lengths", ())
    if lengths and len(value) not in lengths:
        must = f"hold {' or '.join(map(str, lengths))} values"
    elif all(_INSIDE[word](x, bounds[word]) for x in _numbers(value) for word in bounds):
        return
    else:
        must = "be " + " and ".join(f"{word} {bound}" for word, bound in bounds.items())
    note = f"; {declared['note']}" if declared["note"] else ""
    raise UserError(f"{name}={text or value} must {must}{note}")


def _numbers(value: Any) -> Iterator[float]:
    """Yield a number, or all those in a tuple."""
    if isinstance(value, tuple):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, int | float):
        yield value


def regex(name: str, pattern: str) -> re.Pattern[str]:
    """Compile a pattern that the field `name` holds, or raise UserError."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UserError(f"{name}: {pattern!r} is not a regex: {error}", field=name) from None


@functools.cache
def annotations(cls: type) -> Mapping[str, Any]:
    """Return the types of a dataclass's fields by name, those written as strings resolved."""
    return typing.get_type_hints(cls)


def _default(field: dataclasses.Field) -> Any:
    made = field.default_factory
    return field.default if made is _MISSING else made


def conformed(kind: Any, name: str, value: Any, default: Any = _MISSING) -> Any:
    """Return a value as its annotation `kind` has it, as `conform` does; ranges are not checked.

    An annotation that is neither a type nor made of types takes anything. `name` is the field's,
    `default` its default, an example for messages.
    """
    value = _read(kind, name, value, default)
    _check_numbers(name, value)
    return value


def _read(kind: Any, name: str, value: Any, default: Any) -> Any:
    if getattr(value, "ndim", None) == 0:
        value = value.item()  # a number of NumPy's, or of jax's
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _read_union(kind, name, value, default)
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
    if kind is float and type(value) is int:  # as a flag reads 1
        return float(value) if abs(value) < 2**1023 else math.inf
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
    choices = [str(choice.value) for choice in kind]
    raise unknown(name, str(value), choices, field=name)


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


def _check_numbers(name: str, value: Any) -> None:
    """Refuse NaN, infinity and what 64 bits do not hold: bounds and arithmetic let them pass."""
    for number in _numbers(value):
        if isinstance(number, float) and not math.isfinite(number):
            raise UserError(f"{name}={value} must be finite")
        if isinstance(number, int) and abs(number) >= 2**63:
            raise UserError(f"{name} is a number of more than 64 bits; choose a smaller one")


def _wrong(kind: Any, name: str, value: Any, default: Any) -> UserError:
    of_type = "" if isinstance(value, tuple) else f" ({type(value).__name__})"
    return UserError(f"{name}={brief(value)}{of_type} must be {words(kind, default, value)}")


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
    """Return {"optim.lr": 0.001, ...} for what `plain` returns."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
