# SPDX-License-Identifier: Apache-2.0
"""Which class of one list is which of another: by name, never by position.

imagenet_classes.tsv has the 1,000 classes of ImageNet (ILSVRC 2012) in the order of every published
model, one a line: the WordNet 3.0 synset; its lemmas; "a" and "r" for the 200 classes of ImageNet-A
(arXiv:1907.07174) and ImageNet-R (arXiv:2006.16241) each; and the folder of ObjectNet
(objectnet.dev) whose objects its authors map to it, one of 113.
"""

import collections
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from vit_jax.data.names import alike, one_spelling

NUM_CLASSES = 1000
_NUMBERED = re.compile(r"(?:class[ _]?)?(\d+)")
_SHOWN = 3  # names in a message


@functools.cache
def names_by_synset() -> Mapping[str, str]:
    """Return {"n01440764": "tench, Tinca tinca", ...}, in the order of the class ids."""
    return {row[0]: row[1] for row in _rows()}


def _rows() -> list[list[str]]:
    lines = Path(__file__).with_name("imagenet_classes.tsv").read_text().splitlines()
    return [[*line.split("\t"), "", ""][:4] for line in lines]


@functools.cache
def groups_of(dataset: str) -> Mapping[str, tuple[int, ...]]:
    """Return the classes of "imagenet_a", "imagenet_r" or "objectnet" and the ids here of each.

    ObjectNet's are named by its folders, and have one to three ids; the others by their synsets.
    """
    found: dict[str, tuple[int, ...]] = {}
    for k, (synset, _, sets, folder) in enumerate(_rows()):
        name = folder if dataset == "objectnet" else synset * (dataset[-1] in sets)
        if name:
            found[name] = (*found.get(name, ()), k)
    return dict(sorted(found.items()))


def readable(class_names: Sequence[str]) -> tuple[str, ...]:
    """Replace synsets, which TFDS and folders of ImageNet have for names, by words."""
    names = names_by_synset()
    return tuple(names.get(name, name) for name in class_names)


def matched(given: Sequence[str], names: Sequence[str]) -> tuple[int | None, ...]:
    """Return, of each of the `given` classes, the place in `names` of the same one, else None.

    Names are compared in one spelling (`names.one_spelling`), and after ImageNet's synsets have
    become words. Where `names` are ImageNet's, "0" to "999" are its ids too: sorted as text, as the
    folders of ImageNet-V2 are, 10 follows 1. A name that stands there twice is none of them, unless
    both lists are the same.
    """
    ours, theirs = _readable(names), _readable(given)
    raw = tuple(map(one_spelling, given))
    if raw == tuple(map(one_spelling, names)):
        return tuple(range(len(ours)))
    # The words of some synsets are those of another too; the synsets are not.
    places = _once(ours) | _once(tuple(map(one_spelling, names)))
    synsets = names_by_synset()
    if len(ours) == len(synsets) and ours == _readable(tuple(synsets)):
        places |= {synset: k for k, synset in enumerate(synsets)}
        places |= {str(k): k for k in range(len(ours))}
    found = [places.get(x, places.get(word)) for x, word in zip(raw, theirs, strict=True)]
    if ours != theirs:
        return tuple(found)
    return tuple(i if k is None else k for i, k in enumerate(found))


def same(given: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether two lists name the same classes in the same order."""
    return matched(given, names) == tuple(range(len(names)))


def only_count(names: Sequence[str], beside: Sequence[str]) -> bool:
    """Return whether names say nothing but a class's place, and those `beside` them say more.

    That is "0", "1" or "class 0", "class 1", beside names without a number.
    """
    found = [_NUMBERED.fullmatch(name) for name in names]
    places = all(hit is not None and int(hit[1]) == k for k, hit in enumerate(found))
    return places and not any(map(_NUMBERED.fullmatch, beside))


def shown(names: Sequence[str]) -> str:
    """Write the first few names: "'ant', 'bee', 'cow' and 4 more"."""
    rest = len(names) - _SHOWN
    return ", ".join(map(repr, names[:_SHOWN])) + (f" and {rest:,} more" if rest > 0 else "")


def near(name: str, names: Sequence[str]) -> str:
    """Return the one of `names` that a person would take for this one, differing in case, or ""."""
    return next((each for each in names if alike(each) == alike(name)), "")


def _readable(names: Sequence[str]) -> tuple[str, ...]:
    return readable(tuple(map(one_spelling, names)))


def _once(names: Sequence[str]) -> dict[str, int]:
    times = collections.Counter(names)
    return {name: k for k, name in enumerate(names) if times[name] == 1}
