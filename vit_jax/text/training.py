# SPDX-License-Identifier: Apache-2.0
"""A small tokenizer of one's own captions, and how well it fits them.

Byte-pair encoding over bytes (Sennrich et al. 2016, as GPT-2 has it) by `tokenizers`, or a unigram
model (Kudo 2018) by `sentencepiece`. Equal captions give equal bytes.
"""

import contextlib
import enum
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax import errors
from vit_jax.errors import UserError
from vit_jax.text import cleaning, vocabularies
from vit_jax.text.cleaning import Clean
from vit_jax.text.tokenizers import Tokenizer
from vit_jax.text.vocabularies import VocabularyForm

PAD, END = 0, 1  # both kinds' ids
LEAST_SIZE = 300  # 256 bytes, the special tokens, and some of the captions' own
CONTEXTS = (16, 32, 64, 77)  # that published models have


class TokenizerKind(enum.StrEnum):
    """How the tokens are found."""

    BPE = "bpe"
    UNIGRAM = "unigram"


class Fit(NamedTuple):
    """How a tokenizer fits captions.

    Attributes:
        num_captions: how many there are.
        coverage: the share of tokens that are characters or more, and not a part of one.
        mean: tokens a caption has on average, that of its end included.
        cut: of a context, how many captions are longer.
    """

    num_captions: int
    coverage: float
    mean: float
    cut: dict[int, int]


def distinct(captions: Iterable[str]) -> list[str]:
    """Return captions once each and in order, so that neither their order nor number matters."""
    spaced = (cleaning.clean(each, Clean.SPACES) for each in captions)
    return sorted(set(filter(None, spaced)))


def train(
    captions: Iterable[str], size: int, kind: TokenizerKind = TokenizerKind.BPE, context: int = 64
) -> Tokenizer:
    """Make a tokenizer of `size` ids at most; it folds case, and has no unknown characters.

    Raises UserError: no captions, too few of them for that many ids, a package is not installed.
    """
    texts = distinct(captions)
    if not texts:
        raise UserError("there is no caption to make a tokenizer of")
    if size < LEAST_SIZE:
        raise UserError(f"--size={size} must be {LEAST_SIZE} or more: 256 are single bytes")
    name = f"of {len(texts):,} captions"
    make = _unigram if kind is TokenizerKind.UNIGRAM else _bpe
    form, model = make(texts, size)
    return Tokenizer(
        form=form,
        model=model,
        clean=Clean.SPACES,
        context=context,
        pad=PAD,
        end=END,
        vocab_size=vocabularies.opened(form, model, name).size,
        name=name,
    )


def fit(tokenizer: Tokenizer, captions: Iterable[str], contexts: Sequence[int] = CONTEXTS) -> Fit:
    """Measure a tokenizer on captions, each as often as it is there."""
    words = vocabularies.opened(tokenizer.form, tokenizer.model, tokenizer.name)
    partial = np.array([words.is_partial(i) for i in range(tokenizer.vocab_size)])
    lengths, num_partial = [], 0
    for caption in captions:
        row = tokenizer.tokens(caption)
        lengths.append(len(row))
        num_partial += int(partial[row].sum())
    total = sum(lengths)
    cut = {context: sum(n > context for n in lengths) for context in contexts}
    return Fit(len(lengths), 1 - num_partial / max(total, 1), total / max(len(lengths), 1), cut)


def _bpe(texts: Sequence[str], size: int) -> tuple[VocabularyForm, bytes]:
    try:
        import tokenizers  # pyright: ignore[reportMissingImports]
        from tokenizers import models, normalizers, pre_tokenizers, trainers
    except ModuleNotFoundError:
        raise UserError(errors.missing("tokenizers")) from None
    words: Any = tokenizers.Tokenizer(models.BPE())
    words.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<pad>", "<end>"],  # their order is PAD, END
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words.train_from_iterator(texts, trainer)
    tree = json.loads(words.to_str())
    # A caption that spells one of them means no such token.
    tree["added_tokens"] = []
    return VocabularyForm.TOKENIZERS, vocabularies.plain_json(
        json.dumps(tree).encode(), "the new tokenizer"
    )


def _unigram(texts: Sequence[str], size: int) -> tuple[VocabularyForm, bytes]:
    try:
        import sentencepiece  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        raise UserError(errors.missing("sentencepiece")) from None
    trainer: Any = sentencepiece.SentencePieceTrainer
    model = io.BytesIO()
    with _told(size):
        trainer.Train(
            sentence_iterator=iter(texts),
            model_writer=model,
            model_type="unigram",
            vocab_size=size,
            normalization_rule_name="nfkc_cf",  # folds case
            byte_fallback=True,
            character_coverage=1.0,
            max_sentence_length=1 << 20,
            num_threads=1,  # so that sums have one order
            pad_id=PAD,
            eos_id=END,
            unk_id=2,
            bos_id=-1,
            hard_vocab_limit=False,  # few captions give fewer
            minloglevel=2,
        )
    return VocabularyForm.SENTENCEPIECE, model.getvalue()


@contextlib.contextmanager
def _told(size: int) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, OSError) as error:
        text = " ".join(str(error).split())
        least = re.search(r"smaller than required_chars.*?(\d+) vs (\d+)", text)
        if least:
            raise UserError(
                f"--size={size} is less than these captions' characters need; "
                f"--size={int(least[2]) + 1} or more"
            ) from None
        raise UserError(f"sentencepiece makes none of these captions: {text[:200]}") from None
