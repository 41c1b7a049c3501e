# SPDX-License-Identifier: Apache-2.0
"""The classes of ImageNet stand in the order of the published models."""

from vit_jax.data import classes


def test_all_classes_are_there_in_order() -> None:
    names = list(classes.names_by_synset().items())
    assert len(names) == classes.NUM_CLASSES
    assert names[0] == ("n01440764", "tench, Tinca tinca")
    assert names[207][1].startswith("golden retriever")
    assert names[-1][1].startswith("toilet tissue")
    assert [synset for synset, _ in names] == sorted(synset for synset, _ in names)


def test_only_synsets_are_replaced_by_words() -> None:
    assert classes.readable(["n01440764", "cat"]) == ("tench, Tinca tinca", "cat")
