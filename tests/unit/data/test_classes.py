# SPDX-License-Identifier: Apache-2.0
"""Classes are found by name, whatever their order, spelling or ImageNet's two names for them."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from vit_jax.data import classes
from vit_jax.data.names import one_spelling

SYNSETS = tuple(classes.names_by_synset())
WORDS = tuple(classes.names_by_synset().values())
NAMES = st.lists(
    st.text(min_size=1).filter(one_spelling), min_size=1, max_size=8, unique_by=one_spelling
)


@settings(max_examples=15, deadline=None)
@given(NAMES, st.randoms(use_true_random=False))
def test_each_finds_its_own_in_any_order(names: list[str], rng: random.Random) -> None:
    shuffled = rng.sample(names, len(names))
    found = classes.matched(shuffled, names)
    assert [names[k] for k in found if k is not None] == shuffled
    assert classes.same(shuffled, names) == (shuffled == names)
    # What the other list lacks is found nowhere, and what it has besides disturbs nothing.
    without = classes.matched(names, shuffled[1:])
    assert [name for name, k in zip(names, without, strict=True) if k is None] == shuffled[:1]


def test_spelling_and_imagenet() -> None:
    assert classes.matched(("cafe\u0301 ", "Tee"), ("tee", "café")) == (1, None)
    assert classes.near("Tee", ("tee", "café")) == "tee"
    assert classes.matched(("n01440764", "0", "10"), WORDS) == (0, 0, 10)
    assert classes.matched(WORDS, SYNSETS) == tuple(range(1000))
    assert classes.matched(("0", "1"), ("cat", "dog")) == (None, None)
    # Two of ImageNet's classes have the words "crane"; their synsets tell them apart.
    cranes = ("n03126707", "n02012849")
    assert classes.matched(cranes, cranes[::-1]) == (1, 0)
    assert classes.matched(("a", "b"), ("b", "a", "a")) == (None, 0)


def test_names_that_only_count() -> None:
    assert classes.only_count(("0", "1", "2"), ("cat", "dog"))
    assert classes.only_count(("class 0", "class 1"), ("cat", "dog"))
    assert not classes.only_count(("1", "0"), ("cat", "dog"))
    assert not classes.only_count(("0", "1"), ("5", "6"))
    assert classes.shown(list("abcde")) == "'a', 'b', 'c' and 2 more"
