# SPDX-License-Identifier: Apache-2.0
import sys

import pytest

from vit_jax.errors import UserError
from vit_jax.text import tokenizers, training
from vit_jax.text.training import TokenizerKind

COLORS = ["red", "green", "blue", "Big", "small"]
THINGS = ["cat", "dog", "bicycle", "house", "tree", "café", "Straße", "mountain", "river"]
CAPTIONS = [f"A {color} {thing} on the grass" for color in COLORS for thing in THINGS]


def test_equal_captions_give_equal_bytes_in_any_order_and_number(subtests: pytest.Subtests) -> None:
    for kind in TokenizerKind:
        with subtests.test(kind.value):
            one = training.train(CAPTIONS, 320, kind)
            again = training.train(
                [*CAPTIONS[::-1], " ", f"  {CAPTIONS[0]} ", *CAPTIONS], 320, kind
            )
            assert tokenizers.dumped(one) == tokenizers.dumped(again)
            other = training.train(CAPTIONS[1:], 320, kind)
            assert other.digest != one.digest


def test_rows_end_with_1_and_are_filled_with_0(subtests: pytest.Subtests) -> None:
    for kind in TokenizerKind:
        with subtests.test(kind.value):
            found = training.train(CAPTIONS, 330, kind, context=12)
            ids = found.encode(["a red cat", "A  RED\tCat ", "", "river " * 40])
            assert ids.shape == (4, 12)
            assert ids[0].tolist() == ids[1].tolist()  # case and spaces do not matter
            assert ids[2].tolist() == [1] + [0] * 11
            assert (ids[3] == 1).tolist() == [False] * 11 + [True]
            assert 256 < found.vocab_size <= 330
            found.check_fits(found.vocab_size, 12)


def test_no_character_is_unknown_and_no_text_is_a_mark(subtests: pytest.Subtests) -> None:
    for kind in TokenizerKind:
        with subtests.test(kind.value):
            found = training.train(CAPTIONS, 320, kind)
            texts = ["日", "語", "😀", "<pad>", "<end>", "</s>", "<unk>", "\0"]
            rows = [found.tokens(text) for text in texts]
            assert len({tuple(row) for row in rows}) == len(rows)
            for row in rows:
                assert len(row) > 1
                assert [i in (0, 1) for i in row] == [False] * (len(row) - 1) + [True]


def test_fit_counts_what_is_cut_and_what_falls_to_bytes(subtests: pytest.Subtests) -> None:
    for kind in TokenizerKind:
        with subtests.test(kind.value):
            found = training.train(CAPTIONS, 400, kind)
            known = training.fit(found, CAPTIONS)
            assert (known.num_captions, known.coverage) == (len(CAPTIONS), 1.0)
            lengths = [len(found.tokens(each)) for each in CAPTIONS]
            assert known.mean == sum(lengths) / len(lengths)
            assert list(known.cut) == [16, 32, 64, 77]
            foreign = training.fit(found, ["日本語"], [4, 100])
            assert foreign.coverage < 0.3  # nine bytes, and the end
            assert foreign.cut == {4: 1, 100: 0}


def test_it_fits_better_than_bytes() -> None:
    found = training.train(CAPTIONS, 400)
    assert training.fit(found, CAPTIONS).mean < sum(map(len, CAPTIONS)) / len(CAPTIONS) / 2


def test_what_makes_no_tokenizer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no caption to make a tokenizer of"):
        training.train(["", "  "], 400)
    with pytest.raises(UserError, match=r"--size=299 must be 300 or more: 256 are single bytes"):
        training.train(CAPTIONS, 299)
    many = ["".join(map(chr, range(0x4E00 + i, 0x4E00 + i + 20))) for i in range(0, 400, 20)]
    with pytest.raises(
        UserError, match=r"--size=300 is less than these captions' .*; --size=\d+ or"
    ):
        training.train(many, 300, TokenizerKind.UNIGRAM)
    for name, kind in (("tokenizers", TokenizerKind.BPE), ("sentencepiece", TokenizerKind.UNIGRAM)):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(UserError, match=f"'{name}' is not installed; .*install"):
            training.train(CAPTIONS, 400, kind)
