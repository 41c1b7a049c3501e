# SPDX-License-Identifier: Apache-2.0
"""The 1,000 classes of ImageNet (ILSVRC 2012) in the order of every published model.

imagenet_classes.tsv has a class a line: the WordNet 3.0 synset; its lemmas; "a" and "r" for the 200
classes of ImageNet-A (arXiv:1907.07174) and ImageNet-R (arXiv:2006.16241) each; and the folder of
ObjectNet (objectnet.dev) whose objects its authors map to it, one of 113.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

NUM_CLASSES = 1000


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
