# SPDX-License-Identifier: Apache-2.0
"""The 1,000 classes of ImageNet (ILSVRC 2012) in the order of every published model.

imagenet_classes.tsv has the WordNet 3.0 synset and its lemmas, a class a line.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

NUM_CLASSES = 1000


@functools.cache
def names_by_synset() -> Mapping[str, str]:
    """Return {"n01440764": "tench, Tinca tinca", ...}, in the order of the class ids."""
    lines = Path(__file__).with_name("imagenet_classes.tsv").read_text().splitlines()
    return dict(line.split("\t", 1) for line in lines)


def readable(class_names: Sequence[str]) -> tuple[str, ...]:
    """Replace synsets, which TFDS and folders of ImageNet have for names, by words."""
    names = names_by_synset()
    return tuple(names.get(name, name) for name in class_names)
