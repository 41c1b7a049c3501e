# SPDX-License-Identifier: Apache-2.0
"""The tokenizer that lies beside published weights, with the rules that they were trained with.

Sources: open_clip factory.py `get_tokenizer`; transformers tokenization_clip.py,
tokenization_siglip.py, tokenization_siglip2.py; the conversion scripts beside them.
"""

import dataclasses
import enum
import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vit_jax.errors import UserError, shown, unknown
from vit_jax.storage import files, foreign
from vit_jax.text import tokenizers, vocabularies
from vit_jax.text.cleaning import Clean
from vit_jax.text.tokenizers import Tokenizer
from vit_jax.text.vocabularies import VocabularyForm

OPEN_CLIP, TRANSFORMERS = "open_clip_config.json", "config.json"
_TOKENIZER, _SPECIAL = "tokenizer_config.json", "special_tokens_map.json"
_JSON, _VOCAB, _MERGES = "tokenizer.json", "vocab.json", "merges.txt"
_SPIECE, _GEMMA = "spiece.model", "tokenizer.model"
_MAX_JSON = 1 << 24  # bytes of what describes

# Returns where a repository's file is on this machine, or None; takes the most bytes of it.
Find = Callable[[str, int], Path | None]


class _Family(enum.Enum):
    """Whose tokens they are."""

    CLIP = "clip"
    SIGLIP = "siglip"
    SIGLIP2 = "siglip2"
    BERT = "bert"


class _Marks(NamedTuple):
    """The keys of a family's tokens in the files, and how those are spelled where no file says.

    Gemma's come before T5's: of its vocabulary is also HTML's </s>.
    """

    start: str
    end: str
    pad: str
    usual: Mapping[str, str]


_END_OF_TEXT = {
    "bos_token": "<|startoftext|>",
    **dict.fromkeys(("eos_token", "pad_token"), "<|endoftext|>"),
}
_MARKS = {
    _Family.CLIP: _Marks("bos_token", "eos_token", "pad_token", _END_OF_TEXT),
    _Family.SIGLIP2: _Marks(
        "", "eos_token", "pad_token", {"eos_token": "<eos>", "pad_token": "<pad>"}
    ),
    _Family.SIGLIP: _Marks(
        "", "eos_token", "pad_token", {"eos_token": "</s>", "pad_token": "</s>"}
    ),
    _Family.BERT: _Marks(
        "cls_token",
        "sep_token",
        "pad_token",
        {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"},
    ),
}
# By the class that tokenizer_config.json names, without Fast.
_CLASSES = {
    "CLIPTokenizer": _Family.CLIP,
    "SiglipTokenizer": _Family.SIGLIP,
    "T5Tokenizer": _Family.SIGLIP,
    "Siglip2Tokenizer": _Family.SIGLIP2,
    "GemmaTokenizer": _Family.SIGLIP2,
    "BertTokenizer": _Family.BERT,
}
_UNTOLD = ("", "PreTrainedTokenizer", "TokenizersBackend")  # classes that say nothing
_CONTEXT = {_Family.CLIP: 77, _Family.SIGLIP: 64, _Family.SIGLIP2: 64, _Family.BERT: 77}
_MODELS = ("clip", "siglip", "siglip2")
# open_clip's names of ways to clean, with its own tokenizer and with others'.
_OWN_CLEAN = {
    "lower": Clean.REPAIR_LOWER,
    "whitespace": Clean.REPAIR_SPACES,
    "canonicalize": Clean.REPAIR_CANONICAL,
}


def describe_folder(folder: str | Path, *, config: str = "") -> Tokenizer:
    """Open the tokenizer of a folder like a repository of the Hub; errors as of `describe`."""

    def find(name: str, _most: int) -> Path | None:
        path = Path(folder) / name
        foreign.check_link(path)
        return path if path.exists() else None

    if not Path(folder).is_dir():
        raise UserError(f"{shown(str(folder))} is no folder")
    return describe(find, str(folder), config=config)


def describe(
    find: Find, where: str, *, config: str = "", elsewhere: Callable[[str], Find] | None = None
) -> Tokenizer:
    """Open the tokenizer that a repository's weights were trained with.

    Args:
        find: the repository's files.
        where: its name in messages.
        config: the file that describes the weights that are read, OPEN_CLIP or TRANSFORMERS, where
            the repository has both; "" is open_clip's, if there is one.
        elsewhere: opens another repository, USER/NAME, which open_clip's config can name.

    Raises UserError: there is none, it is of a kind that is not read, or damaged.
    """
    find = functools.cache(find)  # which may ask the Hub
    tree = _tree(find, config or OPEN_CLIP, where)
    if config != TRANSFORMERS and tree:
        whole = tree.get("model_cfg", tree)
        text = whole.get("text_cfg") if isinstance(whole, dict) else None
        if not isinstance(text, dict):
            raise UserError(
                f"{where}/{OPEN_CLIP} has no model_cfg.text_cfg, and tells no tokenizer"
            )
        return _of_open_clip(find, where, text, elsewhere)
    tree = _tree(find, TRANSFORMERS, where)
    model, text = tree.get("model_type", ""), tree.get("text_config") or {}
    if model and model not in _MODELS:
        raise unknown(f"model_type in {where}/{TRANSFORMERS}", str(model), _MODELS)
    return _of_transformers(find, where, str(model), text if isinstance(text, dict) else {})


def _of_open_clip(
    find: Find, where: str, text: Mapping[str, Any], elsewhere: Callable[[str], Find] | None
) -> Tokenizer:
    context = _number(text, "context_length", 77, where)
    options = text.get("tokenizer_kwargs") or {}
    other = text.get("hf_tokenizer_name") or ""
    if not isinstance(options, dict) or not isinstance(other, str):
        raise UserError(f"{where}/{OPEN_CLIP}: text_cfg tells its tokenizer in a way not known")
    more = [str(key) for key in options if key not in ("clean", "strip_sep_token")]
    if more or text.get("tokenizer_mode"):
        raise UserError(
            f"{where}/{OPEN_CLIP}: a tokenizer with {', '.join(more) or 'tokenizer_mode'} is not "
            "read; those with clean and strip_sep_token are"
        )
    how = str(options.get("clean", "whitespace" if other else "lower"))
    if how not in _OWN_CLEAN:
        raise unknown(f"tokenizer_kwargs.clean in {where}/{OPEN_CLIP}", how, _OWN_CLEAN)
    if not other:
        own = tokenizers.clip(context=context, name=where)
        return dataclasses.replace(own, clean=_OWN_CLEAN[how])
    if not any(find(name, vocabularies.MOST) for name in (_JSON, _SPIECE, _GEMMA)):
        if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", other) or elsewhere is None:
            raise UserError(
                f"{where} has no {_JSON}; its tokenizer is the Hub's {shown(other[:200])}: "
                f"put that {_JSON} and {_TOKENIZER} beside the weights"
            )
        find, where = functools.cache(elsewhere(other)), other
    found = _of_files(find, where, context, clean=_OWN_CLEAN[how])
    if options.get("strip_sep_token"):  # its place is an empty one
        found = dataclasses.replace(found, end=found.pad)
    return found


def _of_transformers(find: Find, where: str, model: str, text: Mapping[str, Any]) -> Tokenizer:
    context = _number(text, "max_position_embeddings", 0, where)
    if model == "clip" and not any(find(n, vocabularies.MOST) for n in (_JSON, _VOCAB)):
        merges = vocabularies.clip_merges()
        usual = [_END_OF_TEXT["bos_token"], _END_OF_TEXT["eos_token"]]
        ids = vocabularies.clip_vocabulary(merges, usual)
        return _clip(find, where, context, vocabularies.clip_json(ids, merges, usual, nfc=True))
    return _of_files(find, where, context)


def _of_files(find: Find, where: str, context: int, clean: Clean | None = None) -> Tokenizer:
    """Open a tokenizer by its own files.

    `clean` is open_clip's way, None for transformers'; `context` 0 is the family's.
    """
    about = _tree(find, _TOKENIZER, where)
    family = _family(find, where, about)
    context = context or _CONTEXT[family]
    if family is _Family.CLIP and not find(_JSON, vocabularies.MOST):
        model = _of_vocab_and_merges(find, where)
        found = _clip(find, where, context, model)
        return dataclasses.replace(found, clean=clean or found.clean)
    names = (_JSON, _GEMMA, _SPIECE)
    if family is _Family.SIGLIP and clean is None:
        names = (_SPIECE, _JSON)  # transformers' SiglipTokenizer reads it alone
    name = next((each for each in names if find(each, vocabularies.MOST)), "")
    if not name:
        raise _nothing(where)
    data = _read(find, name, where)
    if name in (_SPIECE, _GEMMA):
        place = f"{where}/{name}"
        found = tokenizers.of_sentencepiece(data, clean=Clean.LOWER, context=context, name=place)
    else:
        lower = family is _Family.SIGLIP2
        model = vocabularies.plain_json(data, f"{where}/{name}", lower=lower)
        found = _marked(find, where, family, context, model)
    if clean is None and family is _Family.SIGLIP:
        lower = about.get("do_lower_case", True) is not False
        clean = Clean.LOWER_NO_PUNCTUATION if lower else Clean.NO_PUNCTUATION
    return dataclasses.replace(found, clean=clean or found.clean)


def _family(find: Find, where: str, about: Mapping[str, Any]) -> _Family:
    """Tell whose tokens they are: by the class that a file names, else by the files."""
    kind = str(about.get("tokenizer_class") or "").removesuffix("Fast")
    if kind in _CLASSES:
        return _CLASSES[kind]
    if kind not in _UNTOLD:
        raise unknown(f"tokenizer_class in {where}/{_TOKENIZER}", kind, _CLASSES)
    if find(_SPIECE, vocabularies.MOST):
        return _Family.SIGLIP
    if find(_JSON, vocabularies.MOST):
        model = vocabularies.plain_json(_read(find, _JSON, where), f"{where}/{_JSON}")
        words = vocabularies.opened(VocabularyForm.TOKENIZERS, model, f"{where}/{_JSON}")
        ends = {mark.usual[mark.end]: family for family, mark in _MARKS.items()}
        families = [family for end, family in ends.items() if words.id_of(end) is not None]
        if families:
            return families[0]
        raise UserError(
            f"{where}/{_JSON} has none of the ends of a text that are known: {', '.join(ends)}"
        )
    if find(_GEMMA, vocabularies.MOST):
        return _Family.SIGLIP2
    if find(_VOCAB, vocabularies.MOST):
        return _Family.CLIP
    raise _nothing(where)


def _nothing(where: str) -> UserError:
    return UserError(
        f"{where} has no tokenizer: put {_JSON}, {_SPIECE}, {_GEMMA}, or {_VOCAB} and {_MERGES} of "
        "the published weights beside them"
    )


def _of_vocab_and_merges(find: Find, where: str) -> bytes:
    vocabulary = foreign.tree(_read(find, _VOCAB, where), f"{where}/{_VOCAB}")
    text = _read(find, _MERGES, where).decode(errors="replace")
    merges = [line for line in text.splitlines() if line and not line.startswith("#version")]
    special = [_spelled(find, where, _Family.CLIP, key) for key in ("bos_token", "eos_token")]
    lacking = [each for each in special if each not in vocabulary]
    fit = all(type(i) is int and i >= 0 for i in vocabulary.values())
    if lacking or not fit or any(line.count(" ") != 1 for line in merges):
        raise UserError(f"{where}: {_VOCAB} and {_MERGES} are not CLIP's, or damaged")
    return vocabularies.clip_json(vocabulary, merges, special, nfc=True)


def _clip(find: Find, where: str, context: int, model: bytes) -> Tokenizer:
    return _marked(find, where, _Family.CLIP, context or _CONTEXT[_Family.CLIP], model)


def _marked(find: Find, where: str, family: _Family, context: int, model: bytes) -> Tokenizer:
    """Make a tokenizer of a tokenizer.json whose texts are framed as its family's are."""
    marks, name = _MARKS[family], f"{where}/{_JSON}"
    words = vocabularies.opened(VocabularyForm.TOKENIZERS, model, name)

    def of(key: str) -> int:
        token = _spelled(find, where, family, key)
        found = words.id_of(token)
        if found is None:
            raise UserError(f"{name} has no token {token!r}, which {where} has as its {key}")
        return found

    return Tokenizer(
        form=VocabularyForm.TOKENIZERS,
        model=model,
        clean=Clean.NONE,
        context=context,
        pad=of(marks.pad),
        end=of(marks.end),
        start=of(marks.start) if marks.start else None,
        vocab_size=words.size,
        name=where,
    )


def _spelled(find: Find, where: str, family: _Family, key: str) -> str:
    """Return how a special token is spelled, by the files or as it usually is."""
    for file in (_SPECIAL, _TOKENIZER):
        token = _tree(find, file, where).get(key)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str) and token:
            return token
    return _MARKS[family].usual[key]


def _number(tree: Mapping[str, Any], key: str, usual: int, where: str) -> int:
    found = tree.get(key, usual)
    if type(found) is not int:
        raise UserError(f"{where}: {key} must be a whole number, and is {str(found)[:80]}")
    return found


def _tree(find: Find, name: str, where: str) -> dict[str, Any]:
    """Return an object of JSON, {} where there is no such file."""
    path = find(name, _MAX_JSON)
    if path is None:
        return {}
    with files.refused(f"cannot read {where}/{name}"):
        return foreign.tree(foreign.read(path, _MAX_JSON), f"{where}/{name}")


def _read(find: Find, name: str, where: str) -> bytes:
    path = find(name, vocabularies.MOST)
    if path is None:
        raise UserError(f"{where} has no {name}; put it beside the weights")
    with files.refused(f"cannot read {where}/{name}"):
        return foreign.read(path, vocabularies.MOST)
