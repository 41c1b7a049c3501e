# SPDX-License-Identifier: Apache-2.0
"""Tokenizers: texts as rows of ids of one length, cut and padded as the weights were trained.

What a tokenizer does is chosen where it is opened, by the files beside the weights or by its own
file, never by who calls it. Sources: openai/CLIP clip.py `tokenize`; big_vision pp/ops_text.py
`tokenize` (eos="sticky"); transformers processing_siglip.py.
"""

import base64
import binascii
import dataclasses
import functools
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int32

from vit_jax.errors import UserError, shown
from vit_jax.storage import files, foreign
from vit_jax.text import cleaning, vocabularies
from vit_jax.text.cleaning import Clean
from vit_jax.text.vocabularies import Vocabulary, VocabularyForm

_FORMAT = "vit_jax tokenizer"  # of `save`, with its version
_VERSION = 1
_MAX_CONTEXT = 1 << 14


class Rows(NamedTuple):
    """Texts as ids, and which of them had more than a row holds."""

    ids: Int32[np.ndarray, "n L"]
    is_cut: Bool[np.ndarray, " n"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """Turns texts into rows of ids. It can be pickled, and threads can share it.

    Attributes:
        form: whose format `model` has.
        model: the vocabulary, a whole file.
        clean: what is done to a text first.
        context: L, the length of a row.
        pad: the id that fills a row on its right.
        end: the id that ends each text; of one that is cut it takes the last place.
        start: the id that begins each text, None for none.
        vocab_size: how many rows a table of embeddings needs.
        name: where it came from, in messages.
    """

    form: VocabularyForm
    model: bytes = dataclasses.field(repr=False)
    clean: Clean
    context: int
    pad: int
    end: int
    start: int | None = None
    vocab_size: int
    name: str = dataclasses.field(compare=False)

    def __post_init__(self) -> None:
        least = 2 + (self.start is not None)
        if not least <= self.context <= _MAX_CONTEXT:
            what = "the token of its end" if least == 2 else "the tokens of its start and end"
            raise UserError(
                f"the tokenizer {self.name} gets a context of {self.context}, which must be from "
                f"{least} to {_MAX_CONTEXT:,}: {what} and one more at least"
            )
        for what, i in (("pad", self.pad), ("end", self.end), ("start", self.start or 0)):
            if not 0 <= i < self.vocab_size:
                raise UserError(
                    f"{self.name}: the {what} token is {i}, beyond its {self.vocab_size:,} ids"
                )

    def encode(self, texts: Sequence[str]) -> Int32[np.ndarray, "n L"]:
        """Return the ids of texts, cut and padded to the context."""
        return self.rows(texts).ids

    def count_cut(self, texts: Sequence[str]) -> int:
        """Return how many texts are longer than the context."""
        return int(self.rows(texts).is_cut.sum())

    def rows(self, texts: Sequence[str]) -> Rows:
        """Return the ids of texts, and which of them are cut, in one pass.

        Raises UserError: a package is not installed, or the vocabulary is damaged.
        """
        if isinstance(texts, str):
            raise TypeError("a tokenizer takes a sequence of texts; write [text]")
        ids = np.full((len(texts), self.context), self.pad, np.int32)
        is_cut = np.zeros(len(texts), bool)
        for i, text in enumerate(texts):
            row = self.tokens(text)
            is_cut[i] = len(row) > self.context
            if is_cut[i]:
                row = [*row[: self.context - 1], self.end]
            ids[i, : len(row)] = row
        return Rows(ids, is_cut)

    def tokens(self, text: str) -> list[int]:
        """Return all ids of a text, with those of its start and end, however many."""
        ids = self._vocabulary.ids(cleaning.clean(text, self.clean))
        return [*([] if self.start is None else [self.start]), *ids, self.end]

    @functools.cached_property
    def digest(self) -> str:
        """16 hex digits of all that the ids depend on."""
        settings = json.dumps(_settings(self), sort_keys=True).encode()
        return hashlib.sha256(settings + b"\0" + self.model).hexdigest()[:16]

    @functools.cached_property
    def _vocabulary(self) -> Vocabulary:
        return vocabularies.opened(self.form, self.model, self.name)

    def __getstate__(self) -> dict[str, Any]:  # without what is cached, which libraries made
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def check_installed(self) -> None:
        """Raise UserError: a package that it needs is not installed, or it is damaged."""
        self.tokens("")

    def check_fits(self, vocab_size: int, context: int = 0) -> None:
        """Raise UserError: a table of that many embeddings, or positions, is of another tokenizer.

        A table may be up to a sixteenth larger, as CLIPA's is.
        """
        size = self.vocab_size
        if not size <= vocab_size <= size + size // 16:
            raise UserError(
                f"the tokenizer {self.name} has {size:,} ids, and the weights' vocabulary has "
                f"{vocab_size:,}; name the tokenizer that came with the weights"
            )
        if context and context != self.context:
            raise UserError(
                f"the tokenizer {self.name} makes rows of {self.context} ids, and the weights have "
                f"{context} positions; name the tokenizer that came with the weights"
            )

    def with_context(self, context: int) -> "Tokenizer":
        """Return the tokenizer with rows of another length.

        Raises UserError: too short for a token beside those of start and end.
        """
        return dataclasses.replace(self, context=context)

    def check_same(self, digest: str) -> None:
        """Raise UserError: it is not the one of that digest, which a run began with."""
        if digest != self.digest:
            raise UserError(
                f"the tokenizer {self.name} is {self.digest}, and the run began with {digest}: "
                "another one gives other ids; name the file that the run began with"
            )


def _settings(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return all but the vocabulary that the ids depend on."""
    return {k: v for k, v in tokenizer.__getstate__().items() if k not in ("model", "name")}


def clip(merges: Sequence[str] = (), *, context: int = 77, name: str = "CLIP") -> Tokenizer:
    """Make CLIP's tokenizer as OpenAI and open_clip publish it, by default of the package's merges.

    Texts are repaired by ftfy, HTML's entities undone, and lower-cased; rows are padded with 0.
    """
    special = ("<start_of_text>", "<end_of_text>")
    merges = merges or vocabularies.clip_merges()
    ids = vocabularies.clip_vocabulary(merges, special)
    model = vocabularies.clip_json(ids, merges, special, nfc=False)
    return Tokenizer(
        form=VocabularyForm.TOKENIZERS,
        model=model,
        clean=Clean.REPAIR_LOWER,
        context=context,
        pad=0,
        end=ids[special[1]],
        start=ids[special[0]],
        vocab_size=len(ids),
        name=name,
    )


def save(tokenizer: Tokenizer, path: Path) -> None:
    """Write a tokenizer as one file, JSON, that `load` reads; equal bytes for equal ones.

    Raises UserError: the file cannot be written.
    """
    with files.refused(f"cannot write {path}"):
        files.write(path, dumped(tokenizer))


def dumped(tokenizer: Tokenizer) -> bytes:
    """Return the file of a tokenizer."""
    tree = {
        "format": f"{_FORMAT} {_VERSION}",
        "digest": tokenizer.digest,
        **_settings(tokenizer),
        "model": base64.b64encode(zlib.compress(tokenizer.model, 9)).decode(),
    }
    return json.dumps(tree, indent=1).encode() + b"\n"


def load(path: str | Path, digest: str = "") -> Tokenizer:
    """Read a tokenizer that `save` wrote, CLIP's bpe_simple_vocab_16e6.txt.gz, or a .model.

    Args:
        path: of the file.
        digest: of the tokenizer that is expected, "" for any.

    Raises UserError: no such file, it is damaged or something else, or of another digest.
    """
    path = Path(path)
    with files.refused(f"cannot read the tokenizer {shown(str(path))}"):
        data = foreign.read(path, vocabularies.MOST)
    found = loaded(data, shown(str(path)))
    if digest:
        found.check_same(digest)
    return found


def loaded(data: bytes, name: str) -> Tokenizer:
    """Read a tokenizer from the bytes of its file; errors as of `load`."""
    if data[:2] == b"\x1f\x8b":
        return clip(vocabularies.clip_merges(data, name), name=name)
    if data[:1] != b"{":
        return of_sentencepiece(data, name=name)
    tree = foreign.tree(data, name)
    if tree.get("format") != f"{_FORMAT} {_VERSION}":
        what = tree.get("format") if "format" in tree else "a tokenizer.json, or something else"
        raise UserError(
            f"{name} is {str(what)[:80]}, no file of `vit_jax train-tokenizer`; published ones are "
            "read with the folder that they are in, hub:./FOLDER"
        )
    found = _read(tree, name)
    if found is None or found.digest != tree.get("digest"):
        raise UserError(f"{name} is damaged: it does not match its own digest; copy it again")
    return found


def _read(tree: Mapping[str, Any], name: str) -> Tokenizer | None:
    numbers = {key: tree.get(key) for key in ("context", "pad", "end", "start", "vocab_size")}
    if any(type(n) is not int for key, n in numbers.items() if (key, n) != ("start", None)):
        return None
    try:
        packed = base64.b64decode(tree["model"], validate=True)
        model = zlib.decompressobj().decompress(packed, vocabularies.MOST)
        form, clean = VocabularyForm(tree["form"]), Clean(tree["clean"])
        return Tokenizer(form=form, clean=clean, model=model, name=name, **numbers)  # pyright: ignore[reportArgumentType]
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, binascii.Error, zlib.error):
        return None


def of_sentencepiece(
    model: bytes, *, clean: Clean = Clean.LOWER_ASCII, context: int = 64, name: str
) -> Tokenizer:
    """Make SigLIP's tokenizer of its spiece.model, or SigLIP 2's of Gemma's tokenizer.model.

    The file tells which: Gemma's ends a text with <eos>, and rows are filled with <pad>, 0; to
    SigLIP </s>, 1, is both. Letters A to Z are made small and punctuation is kept, as in training
    (big_vision `lower|tok(eos="sticky")`).

    Raises UserError: it is no such file.
    """
    words = vocabularies.opened(VocabularyForm.SENTENCEPIECE, model, name)
    gemma, siglip = words.id_of("<eos>"), words.id_of("</s>")
    end = siglip if gemma is None else gemma
    if end is None:
        raise UserError(f"{name} has no token that ends a text, and is not SigLIP's or SigLIP 2's")
    pad = None if gemma is None else words.id_of("<pad>")
    return Tokenizer(
        form=VocabularyForm.SENTENCEPIECE,
        model=model,
        clean=clean,
        context=context,
        pad=end if pad is None else pad,
        end=end,
        vocab_size=words.size,
        name=name,
    )
