# SPDX-License-Identifier: Apache-2.0
"""One spelling of what data call their classes and splits, wherever the text comes from."""

import json
import numbers
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

_SPACES = re.compile(r"\s+")
_QUOTED = re.compile(r"""(["'])(.*)\1""", re.DOTALL)
# Characters that nobody sees: marks of direction, hyphens that may be. Joiners mean something.
_INVISIBLE = re.compile("[\0\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
_JOINERS = re.compile("[\u200c\u200d\ufe00-\ufe0f]")
# Pandas writes ids as 3.0 where one of them is missing.
_WHOLE = re.compile(r"(?:\+|-(?=0+(?:\.|$)))?(\d{1,999})(\.0*)?")
_DECIMAL = re.compile(r"[+-]?(\d{1,99}\.?\d{0,99}|\.\d{1,99})(e[+-]?\d{1,2})?")
_NEGATIVE = re.compile(r"-(\d{1,999})(\.0+)?")
_FRACTION = re.compile(r"-?\d+([.,]\d+)?")
# What columns of labels are usually called.
LABELS = ("label", "labels", "cls", "class", "class_id", "target")
# Words that may be a class, or a program's word for nothing.
NOTHING = ("none", "null", "na", "n/a", "<na>", "#n/a", "nil", "undefined")
_MOST = 40  # characters of a value that a message shows

# Names of files and folders that systems and programs create; so are names with a dot in front.
_SYSTEM = (
    *("__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "@eadir", "#recycle"),
    *("$recycle.bin", "system volume information", "lost+found"),
)
# Names of splits that mean the same, in any case.
_SAME = (("train", "training"), ("val", "validation", "valid", "dev"), ("test", "testing"))
KNOWN_SPLITS = {name for names in _SAME for name in names}


def one_spelling(text: str) -> str:
    """Return a label's, a class's or a split's text as this project spells it.

    Letters with accents are composed (Unicode's NFC), spaces at both ends go, those inside become
    one space; what nobody sees goes. Case stays: handwritten letters may well lie in "a" and "A".
    """
    return _SPACES.sub(" ", unicodedata.normalize("NFC", _INVISIBLE.sub("", text))).strip()


def alike(text: str) -> str:
    """Return what two spellings have in common that a person would take for one: no case."""
    return unicodedata.normalize("NFC", _JOINERS.sub("", one_spelling(text)).casefold())


def label_of(value: Any) -> str:
    """Return a label's text, whatever type a table, a tar or a record has it in; "" is no label.

    Text is spelled as `one_spelling` has it, without the quotes around it, and bytes are UTF-8.
    Whole numbers are themselves in any type, 3.0 is "3"; True and False are "true" and "false". No
    label are None, NaN, the word nan, no text, and -1.

    Raises ValueError: several labels, a number that is not whole or is below -1, bytes that are no
    text, or a value of another type.
    """
    if isinstance(value, np.ndarray | np.generic) and value.ndim == 0:
        value = value.item()
    if value is None:
        return ""
    if isinstance(value, bytes | bytearray):
        try:
            value = bytes(value).decode()
        except UnicodeDecodeError:
            raise ValueError(f"the label {_shown(bytes(value))} is no text in UTF-8") from None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = _unquoted(value)
        value = _container(text)
    elif isinstance(value, numbers.Number):
        text = _number(value)
    if isinstance(value, list | tuple | set | dict | np.ndarray):
        kind = "a dict" if isinstance(value, dict) else "several labels"
        advice = "an image has one label here; several are read from datasets of TFDS alone"
        raise ValueError(f"the label is {_shown(value)}, {kind}: {advice}")
    if not isinstance(value, str | numbers.Number):
        raise ValueError(f"the label is {_shown(value)}, of type {type(value).__name__}")
    negative = _NEGATIVE.fullmatch(text)
    if negative and int(negative[1]) > 1:
        raise ValueError(f"the label is {text!r}; there is none below 0 but -1, which is no label")
    nothing = (negative and int(negative[1])) or text.casefold().lstrip("+-") == "nan"
    return "" if nothing else text


def _container(text: str) -> Any:
    """Return the list or dict that a text is, as tables have them, else the text."""
    if text[:1] + text[-1:] not in ("[]", "{}"):
        return text
    found = (_json(each) for each in (text, text.replace("'", '"')))
    return next((each for each in found if isinstance(each, list | dict)), text)


def _number(value: Any) -> str:
    if value != value:  # NaN
        return ""
    try:
        whole = int(value)
    except (OverflowError, TypeError, ValueError):  # infinite, or complex
        whole = None
    if whole is None or whole != value:
        advice = "labels are classes; a number to be predicted is not read here"
        raise ValueError(f"the label is {_shown(value)}, no whole number: {advice}")
    return str(whole)


def _unquoted(text: str) -> str:
    """Return a text without quotes around all of it; what is JSON is read as such."""
    text = one_spelling(text)
    while found := _QUOTED.fullmatch(text):
        if found[1] in found[2].replace(f"\\{found[1]}", ""):
            break
        inside = _json(text)
        text = one_spelling(inside if isinstance(inside, str) else found[2])
    return text


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."


def class_names(names: Iterable[str]) -> tuple[str, ...]:
    """Spell the names that metadata give classes; as they are, where two would become one."""
    given = tuple(names)
    if given == ("",):  # so TFDS reads a list without any
        return ()
    spelled = tuple(map(one_spelling, given))
    return spelled if len({*spelled}) == len({*given}) else given


def classes_of(labels: Mapping[str, int]) -> tuple[dict[str, str], tuple[str, ...], list[str]]:
    """Return what class each label is, the classes in their order, and what is to be said.

    Whole numbers go by value, and two spellings of one number are one class. If one label is
    anything else, all are words: each is a class, sorted. "" is no label.

    Args:
        labels: those of all examples, from `label_of`, and how often each occurs.

    Returns:
        The class of each label, the classes, and one line for each two that look alike.
    """
    counts = {text: count for text, count in labels.items() if text}
    values = {text: whole_number(text) for text in sorted(counts)}
    if None in values.values():
        return {text: text for text in counts}, tuple(sorted(counts)), list(look_alike(counts))
    spelled: dict[int, list[str]] = {}
    for text in sorted(counts, key=lambda text: (int(values[text] or 0), text)):
        spelled.setdefault(int(values[text] or 0), []).append(text)
    names, notes = {}, []
    for value, texts in spelled.items():
        alone = len(texts) == 1 and texts[0].isdecimal()
        names |= dict.fromkeys(texts, texts[0] if alone else str(value))
        if len(texts) > 1:
            notes.append(f"the labels {_listed(texts, counts)} are one number, and one class")
    return names, tuple(dict.fromkeys(names.values())), notes


def contradiction(ones: Sequence[str], others: Sequence[str]) -> tuple[int, int] | None:
    """Return two places that show that two columns of labels do not mean the same, or None.

    Words must be alike in each row, and numbers stand for one label of the other column each.
    """
    columns = (ones, others), (others, ones)
    means: tuple[dict[str, tuple[str, int]], ...] = {}, {}
    for place, pair in enumerate(zip(ones, others, strict=True)):
        if not all(pair):
            continue
        if None is whole_number(pair[0]) is whole_number(pair[1]) and len({*map(alike, pair)}) > 1:
            return place, place
        for known, (given, other) in zip(means, columns, strict=True):
            meant, before = known.setdefault(given[place], (other[place], place))
            if meant != other[place]:
                return before, place
    return None


def without_label(count: int, total: int) -> list[str]:
    """Return the line that says how many examples have no label, if any."""
    return [f"{count:,} of {total:,} without a label"] if count else []


def whole_number(text: str) -> int | None:
    """Return the number that a label is, 3 of "3", "03", "+3" and "3.0", or None."""
    found = _WHOLE.fullmatch(text)
    return int(found[1]) if found else None


def _listed(texts: Iterable[str], counts: Mapping[str, int]) -> str:
    return " and ".join(f"{text!r} ({counts[text]:,})" for text in texts)


def twins(names: Iterable[str]) -> list[list[str]]:
    """Return the classes, two or more at a time, that a person may take for one."""
    found: dict[str, list[str]] = {}
    for text in sorted(names):
        key = re.sub(r"[\s_-]+", " ", alike(text)).strip() or text
        key = re.sub(r"(?<![0-9.])0+(?=[0-9])", "", unicodedata.normalize("NFKC", key))
        number = text.strip() if _DECIMAL.fullmatch(alike(text)) else ""
        found.setdefault(repr(float(number) + 0.0) if number else key, []).append(text)
    return [texts for texts in found.values() if len(texts) > 1]


def look_alike(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield a line for each classes that a person may take for one, or for no label.

    They differ in case, in marks between words, in the form of letters or in how a number is
    written. `counts` has the examples of each class.
    """
    for texts in twins(counts):
        says = f"are {len(texts)} classes; if they are one, spell them alike"
        yield f"the labels {_listed(texts, counts)} {says}"
    for text in sorted(counts):
        if text.casefold() in NOTHING:
            says = "is a class; if it stands for no label, leave it empty"
            yield f"the label {_listed([text], counts)} {says}"
    numbers = all(map(_FRACTION.fullmatch, counts))
    if numbers and None in map(whole_number, counts):
        some = ", ".join(sorted(counts)[:3])
        yield f"the labels are numbers ({some}, ...), of which each is a class of its own"


def split_names(texts: Iterable[str]) -> dict[str, str]:
    """Return the split that each text names.

    Those that differ in case, spaces or quotes alone are one.
    """
    spelled: dict[str, set[str]] = {}
    names = {text: _unquoted(text) for text in texts}
    for name in names.values():
        spelled.setdefault(alike(name), set()).add(name)
    chosen = {key: min(each, key=lambda name: (name != key, name)) for key, each in spelled.items()}
    return {text: chosen[alike(name)] for text, name in names.items()}


def meaning(split: str) -> str:
    """Return "train", "val" or "test" for a split that means this, else what is `alike` to it."""
    name = alike(split)
    return next((group[0] for group in _SAME if name in group), name)


def split_notes(splits: Iterable[str]) -> list[str]:
    """Return a line for each splits of one meaning, "val" and "valid"."""
    meanings: dict[str, list[str]] = {}
    for name in splits:
        meanings.setdefault(meaning(name), []).append(repr(name))
    several = (each for each in meanings.values() if len(each) > 1)
    return [f"{' and '.join(each)} are {len(each)} splits, of one meaning" for each in several]


def parts_of(split: str) -> list[tuple[str, str]]:
    """Return name and slice, "" where there is none, of each part of "train[:99%] + val"."""
    pieces = re.split(r"\+(?![^\[]*\])", split)
    found = [piece.partition("[") for piece in pieces]
    return [(name.strip(), (bracket + rest).strip()) for name, bracket, rest in found]


def with_known_names(split: str, names: Sequence[str]) -> str:
    """Replace names of splits in "validation[:9%]" by those of `names` that mean the same.

    Case, spaces around a name and the way its accents are written do not count.
    """
    spelled = {alike(name): name for name in reversed(names)}

    def known(text: str) -> str:
        word = alike(text)
        same = next((group for group in _SAME if word in group), ())
        fits = (spelled[name] for name in (word, *same) if name in spelled)
        return text if text in names else next(fits, text)

    return "+".join(known(name) + part for name, part in parts_of(split))


def read_class_names(text: str) -> tuple[str, ...]:
    """Return the names of the classes that a file lists, in the order of their ids.

    One a line, or "0 cat" with ids from 0 or 1; a JSON list; a JSON object from ids to names, as
    id2label, from ids to [synset, name], as Keras' class_index.json, or from names to ids.

    Raises ValueError: JSON of another form, ids that are not each of 0 to K - 1, or an empty name.
    """
    text = text.removeprefix("\ufeff").strip()
    names: Sequence[Any]
    if text.startswith(("[", "{")) and (found := _json(text)) is not None:
        names = found if isinstance(found, list) else _by_id(found)
    else:
        lines = [one_spelling(line) for line in text.splitlines()]
        numbered = [re.fullmatch(r"([0-9]{1,9})(?:\s*[:,;=]\s*|\s+)(\S.*)", line) for line in lines]
        ids = [int(found[1]) for found in numbered if found]
        first = min(ids, default=2)
        if first < 2 <= len(lines) and sorted(ids) == [*range(first, first + len(lines))]:
            found = {int(each[1]): each[2] for each in numbered if each}
            names = [found[k] for k in sorted(found)]
        else:
            names = lines
    for number, name in enumerate(names):
        if not isinstance(name, str) or not one_spelling(name):
            raise ValueError(f"the name of class {number} is {_shown(name)}; give a text")
    return tuple(map(one_spelling, names))


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # names may begin with a bracket
        return None


def _by_id(found: Mapping[str, Any]) -> list[Any]:
    """Return the names of a JSON object in the order of their ids."""
    if found and all(type(value) is int for value in found.values()):
        found = {str(value): name for name, value in found.items()}
    if {*found} != set(map(str, range(len(found)))):
        raise ValueError(f"a JSON object must name each class 0 to K - 1; it has {len(found)} keys")
    names = [found[str(k)] for k in range(len(found))]
    return [each[1] if isinstance(each, list) and len(each) == 2 else each for each in names]


def is_hidden(name: str) -> bool:
    """Return whether a file or folder is hidden, or created by a system."""
    return name.startswith(".") or name.casefold() in _SYSTEM
