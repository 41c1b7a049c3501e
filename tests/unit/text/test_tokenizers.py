# SPDX-License-Identifier: Apache-2.0
"""The ids are the published ones: goldens of open_clip 3.3.0 and sentencepiece 0.2.3."""

import dataclasses
import json
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.text import tokenizers, vocabularies
from vit_jax.text.cleaning import Clean
from vit_jax.text.tokenizers import Tokenizer

GOLDEN = Path(__file__).parents[2] / "golden" / "text"


@pytest.fixture(scope="module")
def clip() -> Tokenizer:
    return tokenizers.clip()


@pytest.fixture(scope="module")
def siglip() -> Tokenizer:
    return tokenizers.load(GOLDEN / "emoji_sp2000.model")


def golden(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / name).read_text())


def test_clips_ids_are_open_clips(clip: Tokenizer, subtests: pytest.Subtests) -> None:
    wanted = golden("clip_bpe.json")
    rows = wanted["rows"]
    assert len(rows) == 41
    short = clip.with_context(16)
    for row in rows:
        with subtests.test(row["text"][:20]):
            ids = clip.encode([row["text"]])
            assert (ids.dtype, ids.shape) == (np.int32, (1, 77))
            assert ids[0].tolist() == row["padded77"]
            assert short.encode([row["text"]])[0].tolist() == row["padded16"]
            assert clip.tokens(row["text"]) == [wanted["start"], *row["ids"], wanted["end"]]
    lengths = [len(row["ids"]) + 2 for row in rows]
    texts = [row["text"] for row in rows]
    assert clip.rows(texts).is_cut.tolist() == [length > 77 for length in lengths]
    assert clip.count_cut(texts) == sum(length > 77 for length in lengths) > 0
    assert (clip.vocab_size, clip.pad) == (wanted["vocab_size"], wanted["pad"])


def test_a_sentencepiece_is_lower_cased_and_ends_and_pads_with_its_end(siglip: Tokenizer) -> None:
    for row in golden("emoji_sp2000.json")["rows"]:  # which folds case itself
        ids = row["ids"]
        wanted = [*ids, 1] if len(ids) < 64 else [*ids[:63], 1]
        assert siglip.encode([row["text"]])[0].tolist() == wanted + [1] * (64 - len(wanted))
    whole = siglip.with_context(len(siglip.tokens("a red cat")))
    assert whole.rows(["a red cat", "a red cat cat"]).is_cut.tolist() == [False, True]
    # The long text is cut, and ends with the end all the same (eos="sticky").
    assert siglip.rows(["word " * 99, "word"]).is_cut.tolist() == [True, False]


def test_lower_case_is_the_tokenizers_own_duty(tmp_path: Path) -> None:
    import sentencepiece

    # As Gemma's: it keeps case, and has an id that pads and one that begins.
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(["a red cat", "A Red Cat", "the blue dog"] * 20),
        model_prefix=str(tmp_path / "gemma"),
        vocab_size=300,
        byte_fallback=True,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        eos_piece="<eos>",
        bos_piece="<bos>",
        minloglevel=2,
    )
    gemma = tokenizers.load(tmp_path / "gemma.model")
    words: Any = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "gemma.model"))
    ids = words.EncodeAsIds("a red cat")
    assert ids != words.EncodeAsIds("A Red Cat")
    assert gemma.encode(["A Red Cat"])[0].tolist() == [*ids, 1] + [0] * (63 - len(ids))


def test_it_goes_to_other_processes_and_threads_as_it_is(siglip: Tokenizer) -> None:
    texts = [row["text"] for row in golden("emoji_sp2000.json")["rows"]]
    wanted = siglip.encode(texts)
    again = pickle.loads(pickle.dumps(siglip))
    assert again.digest == siglip.digest
    assert len(pickle.dumps(siglip)) < len(siglip.model) + 1000  # nothing that a library made
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(again.encode, [texts] * 32):
            np.testing.assert_array_equal(found, wanted)


def test_no_text_and_one_text_that_is_no_list(siglip: Tokenizer) -> None:
    assert siglip.encode([]).shape == (0, 64)
    with pytest.raises(TypeError, match=r"write \[text\]"):
        siglip.encode("a cat")


def test_the_digest_is_of_all_that_ids_depend_on(clip: Tokenizer, siglip: Tokenizer) -> None:
    # Of this very text: a run's digest stays valid on other machines and with later versions.
    assert clip.digest == "6f85c1f66cd96b6f"
    others = [
        clip,
        siglip,
        siglip.with_context(32),
        dataclasses.replace(siglip, pad=0),
        dataclasses.replace(siglip, clean=Clean.NONE),
        dataclasses.replace(siglip, model=siglip.model + b"\0"),
    ]
    assert len({each.digest for each in others}) == len(others)
    assert dataclasses.replace(siglip, name="elsewhere").digest == siglip.digest


def test_a_file_holds_all_of_it(clip: Tokenizer, siglip: Tokenizer, tmp_path: Path) -> None:
    for each in (clip, siglip.with_context(9)):
        tokenizers.save(each, tmp_path / "words.json")
        found = tokenizers.load(tmp_path / "words.json", each.digest)
        assert found.digest == each.digest
        np.testing.assert_array_equal(found.encode(["A cat!"]), each.encode(["A cat!"]))
        assert tokenizers.dumped(found) == (tmp_path / "words.json").read_bytes()


def test_a_run_goes_on_with_its_own_alone(siglip: Tokenizer, tmp_path: Path) -> None:
    tokenizers.save(siglip, tmp_path / "words.json")
    with pytest.raises(UserError, match=rf"is {siglip.digest}, and the run began with 0123"):
        tokenizers.load(tmp_path / "words.json", "0123456789abcdef")


def test_a_file_that_is_damaged_or_no_tokenizer_is_refused(
    siglip: Tokenizer, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    whole = tokenizers.dumped(siglip)
    tree = json.loads(whole)
    damaged = {
        "cut": whole[:2000],
        "another context": whole.replace(b'"context": 64', b'"context": 65'),
        "no number": whole.replace(b'"pad": 1', b'"pad": "1"'),
        "another model": json.dumps({**tree, "model": tree["model"][:-8] + "AAAAAAA="}).encode(),
        "no model": json.dumps({**tree, "model": None}).encode(),
        "no base64": json.dumps({**tree, "model": "%"}).encode(),
        "another way": json.dumps({**tree, "clean": "../x"}).encode(),
        "no form": json.dumps({k: v for k, v in tree.items() if k != "form"}).encode(),
    }
    for what, data in damaged.items():
        with subtests.test(what):
            assert data != whole
            with pytest.raises(UserError, match=r"words.json (is damaged|holds no object of JSON)"):
                tokenizers.loaded(data, "words.json")
    for data, why in {
        b'{"model": {}}': "is a tokenizer.json, or something else, no file of `vit_jax train-tok",
        b'{"format": "vit_jax tokenizer 9"}': "is vit_jax tokenizer 9, no file of",
        b"words": "is no model of sentencepiece, or a damaged one",
        siglip.model[:5000]: "is no model of sentencepiece|has no token that ends",
        b"\x1f\x8b" + b"a" * 99: "is no bpe_simple_vocab_16e6.txt.gz, or a damaged one",
    }.items():
        with subtests.test(why), pytest.raises(UserError, match=why):
            tokenizers.loaded(data, "words.json")
    with pytest.raises(UserError, match=r"cannot read the tokenizer .*gone.json: No such file"):
        tokenizers.load(tmp_path / "gone.json")


def test_a_file_larger_than_any_is_not_read(
    monkeypatch: pytest.MonkeyPatch, siglip: Tokenizer, tmp_path: Path
) -> None:
    tokenizers.save(siglip, tmp_path / "words.json")
    # What it unpacks to is limited, too.
    monkeypatch.setattr(vocabularies, "MOST", len(siglip.model) - 1)
    with pytest.raises(UserError, match="is damaged"):
        tokenizers.loaded((tmp_path / "words.json").read_bytes(), "words.json")
    monkeypatch.setattr(vocabularies, "MOST", 100)
    with pytest.raises(UserError, match="larger than 100 bytes"):
        tokenizers.load(tmp_path / "words.json")


def test_what_does_not_fit_is_told(clip: Tokenizer, siglip: Tokenizer) -> None:
    clip.check_fits(49408)
    clip.check_fits(49408, 77)
    siglip.check_fits(2100)  # a padded table
    for rows in (1999, 2200, 32000):
        with pytest.raises(
            UserError, match=rf"has 2,000 ids, and the .* vocabulary has {rows:,}; name"
        ):
            siglip.check_fits(rows)
    with pytest.raises(UserError, match="makes rows of 77 ids, and the weights have 32 positions"):
        clip.check_fits(49408, 32)
    with pytest.raises(UserError, match="context of 2, which must be from 3 to 16,384: the tokens"):
        clip.with_context(2)
    with pytest.raises(UserError, match="context of 1, which must be from 2 to 16,384: the token"):
        siglip.with_context(1)
    with pytest.raises(UserError, match="the pad token is 2000, beyond its 2,000 ids"):
        dataclasses.replace(siglip, pad=2000)


def test_a_package_that_is_not_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, siglip: Tokenizer
) -> None:
    for name in ("tokenizers", "sentencepiece"):
        monkeypatch.setitem(sys.modules, name, None)
    fresh = pickle.loads(pickle.dumps(siglip))
    with pytest.raises(UserError, match=r"'sentencepiece' is not installed; .*install"):
        fresh.check_installed()
    with pytest.raises(UserError, match=r"'tokenizers' is not installed; .*install"):
        tokenizers.clip().check_installed()
