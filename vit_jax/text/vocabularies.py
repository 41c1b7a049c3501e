# SPDX-License-Identifier: Apache-2.0
"""Vocabularies in the two forms that well-kept libraries read, and CLIP's in one of them.

Sources: openai/CLIP simple_tokenizer.py; transformers tokenization_clip.py; the format of
`tokenizers`, tokenizer.json; sentencepiece_model.proto.
"""

import enum
import functools
import gzip
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vit_jax import errors
from vit_jax.errors import UserError
from vit_jax.storage import foreign

# Bytes of a vocabulary that are read; Gemma's tokenizer.json has 34 million.
MOST = 1 << 27
_MAX_ROWS = 1 << 24  # ids; the largest published vocabulary has 901,629
_CLIP_MERGES = 49152 - 256 - 2  # as CLIP's simple_tokenizer.py counts them
# What CLIP's merges are made of, ignoring case; `tokenizers` has Unicode's classes, as `regex` has.
_PIECES = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_EXTRA = re.compile(r"\u2581?<extra_id_\d+>")  # T5's, beyond the rows of SigLIP's tables


class VocabularyForm(enum.StrEnum):
    """Whose format a vocabulary has."""

    TOKENIZERS = "tokenizers"  # tokenizer.json
    SENTENCEPIECE = "sentencepiece"  # spiece.model, tokenizer.model


class Vocabulary(NamedTuple):
    """What turns a text into ids.

    Attributes:
        ids: of a text, without those that mark its start and end.
        size: how many ids there are.
        id_of: a token by its spelling, None where there is none.
        is_partial: whether an id stands for a byte of a character, or for what is not known.
    """

    ids: Callable[[str], list[int]]
    size: int
    id_of: Callable[[str], int | None]
    is_partial: Callable[[int], bool]


def opened(form: VocabularyForm, model: bytes, name: str) -> Vocabulary:
    """Open a vocabulary; `name` is its file's in messages.

    Raises UserError: the library is not installed, or the file is damaged.
    """
    return (
        _of_sentencepiece(model, name)
        if form is VocabularyForm.SENTENCEPIECE
        else _of_json(model, name)
    )


def _of_sentencepiece(model: bytes, name: str) -> Vocabulary:
    try:
        import sentencepiece  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        raise UserError(errors.missing("sentencepiece")) from None
    words: Any = sentencepiece.SentencePieceProcessor()
    try:
        words.LoadFromSerializedProto(model)
        size = words.GetPieceSize()
    except RuntimeError:
        size = 0
    if not size:
        raise UserError(f"{name} is no model of sentencepiece, or a damaged one; fetch it again")
    while size > 1 and _EXTRA.fullmatch(words.IdToPiece(size - 1)):
        size -= 1
    if size == words.GetPieceSize():
        ids = words.EncodeAsIds
    else:
        unknown = words.unk_id()
        ids = lambda text: [i if i < size else unknown for i in words.EncodeAsIds(text)]  # noqa: E731

    def id_of(token: str) -> int | None:
        found = words.PieceToId(token)
        return found if words.IdToPiece(found) == token else None

    return Vocabulary(ids, size, id_of, lambda i: words.IsByte(i) or words.IsUnknown(i))


def _of_json(model: bytes, name: str) -> Vocabulary:
    try:
        import tokenizers  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        raise UserError(errors.missing("tokenizers")) from None
    tree = foreign.tree(model, name)
    try:
        words: Any = tokenizers.Tokenizer.from_str(model.decode())
        size = _size(tree)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of Rust is no Exception
        why = " ".join(str(error).split())[:200]
        raise UserError(
            f"{name} is no vocabulary that the package 'tokenizers' reads, or a damaged one: {why}"
        ) from None

    @functools.cache
    def is_partial(i: int) -> bool:
        token = words.id_to_token(i) or ""
        if token == "<unk>" or re.fullmatch(r"<0x[0-9A-F]{2}>", token):
            return True
        # Of a vocabulary over bytes, each of which a character stands for.
        try:
            bytes(_bytes_of()[char] for char in token.removesuffix("</w>")).decode()
        except UnicodeDecodeError:
            return True
        except KeyError:  # another vocabulary
            return False
        return False

    ids = lambda text: words.encode(text, add_special_tokens=False).ids  # noqa: E731
    return Vocabulary(ids, size, words.token_to_id, is_partial)


def _size(tree: Mapping[str, Any]) -> int:
    """Return one more than the largest id of a tokenizer.json."""
    words = tree["model"]["vocab"]
    ids = [int(i) for i in words.values()] if isinstance(words, dict) else range(len(words))
    if not len(ids) or min(ids) < 0 or max(ids) >= _MAX_ROWS:
        raise ValueError(f"ids must be from 0 to {_MAX_ROWS:,}")
    return max(ids) + 1


def plain_json(data: bytes, name: str, *, lower: bool = False) -> bytes:
    """Return a tokenizer.json without what says how to cut, pad and frame rows.

    Added tokens beyond the vocabulary, such as T5's extra ones, go: no table has rows for them.

    Args:
        data: the file.
        name: of the file in messages.
        lower: whether texts are made lower-case first, as transformers' Siglip2Tokenizer does.

    Raises UserError: it is no tokenizer.json.
    """
    tree = foreign.tree(data, name)
    try:
        words = tree["model"]["vocab"]
        while isinstance(words, list) and _EXTRA.fullmatch(words[-1][0]):
            words.pop()
        size = _size(tree)
        added = [token for token in tree.get("added_tokens") or () if 0 <= token["id"] < size]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{name} is no tokenizer.json with a vocabulary: {error}") from None
    tree |= {"truncation": None, "padding": None, "post_processor": None, "added_tokens": added}
    if lower:
        steps = [{"type": "Lowercase"}, *filter(None, [tree.get("normalizer")])]
        tree["normalizer"] = {"type": "Sequence", "normalizers": steps}
    tree["model"].pop("dropout", None)
    return _dumped(tree)


def clip_json(
    vocabulary: Mapping[str, int], merges: Sequence[str], special: Sequence[str], *, nfc: bool
) -> bytes:
    """Return CLIP's tokenizer as a tokenizer.json.

    Args:
        vocabulary: the ids by token.
        merges: the pairs in their order.
        special: the spellings of the tokens of start and end, which a text can have too.
        nfc: whether texts are normalised to NFC and lower-cased, as transformers does, and come
            as they are; else they are clean already, as open_clip cleans them.
    """
    case = "" if nfc else "(?i)"  # open_clip's expression ignores case, transformers' does not
    pieces = "|".join([*(re.escape(each) for each in special), _PIECES]) if nfc else _PIECES
    normalizers = [
        {"type": "NFC"},
        {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
        {"type": "Lowercase"},
    ]
    split = {"pattern": {"Regex": case + pieces}, "behavior": "Removed", "invert": True}
    to_bytes = {"add_prefix_space": False, "trim_offsets": True, "use_regex": nfc}
    place = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return _dumped(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": vocabulary[each], "content": each, "special": True, **place}
                for each in special
            ],
            "normalizer": {"type": "Sequence", "normalizers": normalizers} if nfc else None,
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [{"type": "Split", **split}, {"type": "ByteLevel", **to_bytes}],
            },
            "post_processor": None,
            "decoder": None,
            "model": {
                "type": "BPE",
                "unk_token": special[-1] if nfc else None,
                "continuing_subword_prefix": "",
                "end_of_word_suffix": "</w>",
                "fuse_unk": False,
                "byte_fallback": False,
                "vocab": dict(vocabulary),
                "merges": [pair.split(" ") for pair in merges],
            },
        }
    )


def _dumped(tree: Mapping[str, Any]) -> bytes:
    return json.dumps(tree, separators=(",", ":"), sort_keys=True).encode()


def clip_merges(data: bytes | None = None, name: str = "") -> list[str]:
    """Return CLIP's 48,894 merges, of a bpe_simple_vocab_16e6.txt.gz or of the package's own copy.

    Raises UserError: the file is damaged, or something else.
    """
    if data is None:
        own = (Path(__file__).parent / "clip_merges.txt.gz").read_bytes()
        return gzip.decompress(own).decode().splitlines()
    try:
        # All lines, of which there are 262,145, are 3.2 million bytes.
        lines = zlib.decompressobj(wbits=31).decompress(data, 1 << 24).decode().split("\n")
    except (zlib.error, UnicodeDecodeError):
        lines = []
    merges = lines[1 : _CLIP_MERGES + 1]  # the first line is a version
    if len(merges) < _CLIP_MERGES or any(line.count(" ") != 1 for line in merges):
        raise UserError(f"{name} is no bpe_simple_vocab_16e6.txt.gz, or a damaged one")
    return merges


def clip_vocabulary(merges: Sequence[str], special: Sequence[str]) -> dict[str, int]:
    """Return CLIP's ids by token: bytes, bytes that end a word, merges, special tokens."""
    alphabet = list(_bytes_of())
    words = [*alphabet, *(f"{each}</w>" for each in alphabet)]
    words += [pair.replace(" ", "", 1) for pair in merges]
    return {word: i for i, word in enumerate([*words, *special])}


@functools.cache
def _bytes_of() -> dict[str, int]:
    """Return the byte that a character stands for: GPT-2's `bytes_to_unicode`, turned around."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    shown += range(ord("®"), ord("ÿ") + 1)
    hidden = [byte for byte in range(256) if byte not in set(shown)]
    return {chr(b): b for b in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}
