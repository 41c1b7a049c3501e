# SPDX-License-Identifier: Apache-2.0
import gzip
import json
from pathlib import Path

import pytest

from vit_jax.errors import UserError
from vit_jax.text import vocabularies
from vit_jax.text.vocabularies import VocabularyForm

GOLDEN = Path(__file__).parents[2] / "golden" / "text"


def test_clips_vocabulary_has_49408_ids_in_the_published_order() -> None:
    merges = vocabularies.clip_merges()
    ids = vocabularies.clip_vocabulary(merges, ["<start>", "<end>"])
    assert (len(merges), len(ids)) == (48894, 49408)
    # Of openai/CLIP's vocab.json.
    known = {
        "!": 0,
        "a": 64,
        "!</w>": 256,
        "a</w>": 320,
        "in": 512,
        "the</w>": 518,
        "photo</w>": 1125,
    }
    assert {token: ids[token] for token in known} == known
    assert (ids["<start>"], ids["<end>"]) == (49406, 49407)


def test_the_published_file_is_read_and_a_damaged_one_refused(subtests: pytest.Subtests) -> None:
    merges = vocabularies.clip_merges()
    text = "\n".join(["#version: 0.2", *merges, *["x y"] * 1000]).encode()
    assert vocabularies.clip_merges(gzip.compress(text), "bpe.gz") == merges
    for data in (
        gzip.compress(text)[:9000],
        gzip.compress(text[:9000]),
        gzip.compress(b"\xff"),
        text,
    ):
        with subtests.test(), pytest.raises(UserError, match=r"^bpe.gz is no bpe_simple_vocab"):
            vocabularies.clip_merges(data, "bpe.gz")


def with_extra(model: bytes, count: int) -> bytes:
    """Add T5's extra tokens at the end, user-defined pieces of the protocol buffer."""
    for i in range(count):
        piece = f"\u2581<extra_id_{i}>".encode()
        body = b"\x0a" + bytes([len(piece)]) + piece + b"\x15" + bytes(4) + b"\x18\x04"
        model += b"\x0a" + bytes([len(body)]) + body
    return model


def test_t5s_extra_tokens_have_no_rows() -> None:
    model = (GOLDEN / "emoji_sp2000.model").read_bytes()
    plain = vocabularies.opened(VocabularyForm.SENTENCEPIECE, model, "plain")
    extra = vocabularies.opened(VocabularyForm.SENTENCEPIECE, with_extra(model, 3), "extra")
    assert extra.size == plain.size == 2000
    ids = extra.ids("a cat <extra_id_1>")
    assert max(ids) < 2000
    assert plain.id_of("<unk>") in ids
    assert extra.ids("a cat") == plain.ids("a cat")


def test_a_stranger_tokenizer_json_is_made_plain_or_refused(subtests: pytest.Subtests) -> None:
    added = [{"id": i, "content": f"<{i}>", "special": True} for i in (1, 2, 9)]
    model = {"type": "BPE", "vocab": {"a": 0, "<1>": 1, "<2>": 2}, "merges": [], "dropout": 0.5}
    tree = {
        "added_tokens": added,
        "model": model,
        "padding": {},
        "truncation": {},
        "normalizer": None,
    }
    plain = json.loads(vocabularies.plain_json(json.dumps(tree).encode(), "tokenizer.json"))
    assert [token["id"] for token in plain["added_tokens"]] == [1, 2]
    assert (plain["padding"], plain["truncation"], plain["post_processor"]) == (None, None, None)
    assert "dropout" not in plain["model"]
    lower = json.loads(vocabularies.plain_json(json.dumps(tree).encode(), "f", lower=True))
    assert lower["normalizer"]["normalizers"] == [{"type": "Lowercase"}]
    pieces = [["<unk>", 0], ["\u2581a", -1], ["\u2581<extra_id_1>", 0], ["\u2581<extra_id_0>", 0]]
    t5 = {"model": {"type": "Unigram", "unk_id": 0, "vocab": pieces}}
    plain = json.loads(vocabularies.plain_json(json.dumps(t5).encode(), "tokenizer.json"))
    assert plain["model"]["vocab"] == pieces[:2]
    for bad in (
        {},
        {"model": {"vocab": []}},
        {"model": {"vocab": [[]]}},
        {"model": []},
        {"model": {"vocab": {}}},
        {"model": {"vocab": {"a": -1}}},
        {"model": {"vocab": {"a": 1 << 30}}},
        {"model": {"vocab": {"a": "b"}}},
        {"model": {"vocab": {"a": 0}}, "added_tokens": [7]},
        {"model": {"vocab": {"a": 0}}, "added_tokens": 7},
    ):
        with subtests.test(str(bad)), pytest.raises(UserError, match=r"^f is no tokenizer.json"):
            vocabularies.plain_json(json.dumps(bad).encode(), "f")
    with pytest.raises(UserError, match="f holds no object of JSON"):
        vocabularies.plain_json(b"\x00", "f")


def test_a_vocabulary_that_the_library_refuses_is_one_line() -> None:
    model = b'{"model": {"type": "None", "vocab": {"a": 0}}, "added_tokens": []}'
    with pytest.raises(UserError, match=r"^f is no vocabulary that the package 'tokenizers' reads"):
        vocabularies.opened(VocabularyForm.TOKENIZERS, model, "f")


def test_parts_of_characters_are_told_from_characters() -> None:
    sp = vocabularies.opened(
        VocabularyForm.SENTENCEPIECE, (GOLDEN / "emoji_sp2000.model").read_bytes(), "sentencepiece"
    )
    assert [sp.is_partial(i) for i in sp.ids("cat")] == [False] * len(sp.ids("cat"))
    assert any(sp.is_partial(i) for i in sp.ids("日"))
    merges = vocabularies.clip_merges()
    ids = vocabularies.clip_vocabulary(merges, ["<s>", "<e>"])
    clip = vocabularies.opened(
        VocabularyForm.TOKENIZERS,
        vocabularies.clip_json(ids, merges, ["<s>", "<e>"], nfc=False),
        "clip",
    )
    assert [clip.is_partial(i) for i in clip.ids("caf\u00e9 cat")] == [False, False]
    assert all(clip.is_partial(i) for i in clip.ids("\u0378"))
