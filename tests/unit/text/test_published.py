# SPDX-License-Identifier: Apache-2.0
"""The files beside the weights choose the tokenizer; tests/parity has the published libraries."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vit_jax.errors import UserError
from vit_jax.text import published, tokenizers, vocabularies
from vit_jax.text.cleaning import Clean
from vit_jax.text.published import OPEN_CLIP, TRANSFORMERS, describe, describe_folder

GOLDEN = Path(__file__).parents[2] / "golden" / "text"
SPIECE = GOLDEN / "emoji_sp2000.model"
# A word-level vocabulary stands for those of published models, whose files are large.
WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "a", "red", "cat", "A"]


def write(folder: Path, **trees: Any) -> Path:
    """Write files of JSON: config__json={...}, or a path to copy."""
    folder.mkdir(exist_ok=True)
    for name, tree in trees.items():
        path = folder / name.replace("__", ".")
        if isinstance(tree, Path):
            shutil.copy(tree, path)
        else:
            path.write_text(tree if isinstance(tree, str) else json.dumps(tree))
    return folder


def words(*tokens: str, **more: Any) -> dict[str, Any]:
    """Return a tokenizer.json that knows whole words."""
    ids = {token: i for i, token in enumerate(tokens)}
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": i,
                "content": token,
                "special": True,
                **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
            }
            for token, i in ids.items()
            if token[0] in "<["
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": ids, "unk_token": tokens[3]},
        "padding": {"strategy": {"Fixed": 7}, "direction": "Left", "pad_id": 5},
        **more,
    }


def open_clip(**text: Any) -> dict[str, Any]:
    return {"model_cfg": {"embed_dim": 8, "text_cfg": text}, "preprocess_cfg": {}}


def test_clip_of_open_clip_and_of_transformers_by_goldens(tmp_path: Path) -> None:
    rows = json.loads((GOLDEN / "clip_bpe.json").read_text())["rows"]
    theirs = describe_folder(write(tmp_path / "oc", open_clip_config__json=open_clip()))
    assert theirs.digest == tokenizers.clip().digest
    # transformers' files hold the same merges; it neither repairs texts nor pads with 0.
    merges = vocabularies.clip_merges()
    special = ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = vocabularies.clip_vocabulary(merges, special)
    clip = {"model_type": "clip", "text_config": {}}
    alone = describe_folder(write(tmp_path / "alone", config__json=clip))
    beside = write(
        tmp_path / "beside",
        config__json=clip,
        vocab__json=vocabulary,
        merges__txt="#version: 0.2\n" + "\n".join(merges),
    )
    assert describe_folder(beside).digest == alone.digest != theirs.digest
    for row in rows:
        wanted = row["transformers"]
        wanted = wanted if len(wanted) <= 77 else [*wanted[:76], 49407]
        assert alone.encode([row["text"]])[0].tolist() == wanted + [49407] * (77 - len(wanted))
    # A pad token of the files' own counts, as Stable Diffusion 2 has it.
    write(beside, special_tokens_map__json={"pad_token": {"content": "!"}})
    assert describe_folder(beside).pad == 0


def test_contexts_are_the_weights(tmp_path: Path) -> None:
    for context in (77, 32, 72):  # CLIP, PE-Core, PE-Core G
        folder = write(tmp_path / "x", open_clip_config__json=open_clip(context_length=context))
        assert describe_folder(folder).context == context
    siglip = {"model_type": "siglip", "text_config": {"max_position_embeddings": 16}}
    assert (
        describe_folder(write(tmp_path / "y", config__json=siglip, spiece__model=SPIECE)).context
        == 16
    )


def test_siglip_by_transformers_strips_punctuation(tmp_path: Path) -> None:
    siglip = {"model_type": "siglip", "text_config": {"vocab_size": 2000}}
    about = {"tokenizer_class": "SiglipTokenizer", "do_lower_case": True, "padding_side": "left"}
    folder = write(
        tmp_path / "x", config__json=siglip, tokenizer_config__json=about, spiece__model=SPIECE
    )
    found = describe_folder(folder)
    assert (found.context, found.pad, found.end, found.start) == (64, 1, 1, None)
    assert found.clean is Clean.LOWER_NO_PUNCTUATION
    rows = found.encode(["A red, CAT!", "a red cat"])
    assert rows[0].tolist() == rows[1].tolist()
    assert rows[0, -1] == 1 != rows[0, 0]  # padded on the right, with the end
    # It is transformers' own class that reads it, and that reads no other file.
    write(folder, tokenizer__json=words("<pad>", "</s>", "<x>", "<unk>"))
    assert describe_folder(folder) == found
    write(folder, tokenizer_config__json={**about, "do_lower_case": False})
    assert describe_folder(folder).clean is Clean.NO_PUNCTUATION


def test_siglip_2_is_lower_cased_and_padded_with_0_on_the_right(tmp_path: Path) -> None:
    # Of fixed size, its config says siglip; its tokenizer's class pads on the left by default.
    gemma = words("<pad>", "<eos>", "<bos>", "<unk>", "a", "red", "cat", "A", "RED")
    for about in ({"tokenizer_class": "GemmaTokenizerFast", "add_bos_token": True}, {}):
        folder = write(
            tmp_path / "x",
            config__json={"model_type": "siglip", "text_config": {}},
            tokenizer__json=gemma,
            tokenizer_config__json=about,
        )
        found = describe_folder(folder)
        assert found.encode(["A RED cat"])[0].tolist() == [4, 5, 6, 1, *[0] * 60]
        long = found.encode(["cat " * 99])[0].tolist()
        assert long == [6] * 63 + [1]


def test_open_clip_cleans_and_marks_as_its_config_says(tmp_path: Path) -> None:
    siglip = words("<pad>", "</s>", "<x>", "<unk>", "a", "red", "cat")
    folder = write(
        tmp_path / "x",
        open_clip_config__json=open_clip(
            context_length=8,
            hf_tokenizer_name="timm/ViT-B-16-SigLIP",
            tokenizer_kwargs={"clean": "canonicalize"},
        ),
        tokenizer__json=siglip,
        tokenizer_config__json={"tokenizer_class": "T5TokenizerFast"},
    )
    found = describe_folder(folder)
    assert found.encode(["A_red, cat!"])[0].tolist() == [4, 5, 6, 1, 1, 1, 1, 1]
    # CLIPA: BERT's words, of whose marks the last becomes 0.
    bert = open_clip(
        context_length=6, hf_tokenizer_name="bert", tokenizer_kwargs={"strip_sep_token": True}
    )
    about = {"tokenizer_class": "BertTokenizer"}
    write(
        folder,
        open_clip_config__json=bert,
        tokenizer__json=words(*WORDS),
        tokenizer_config__json=about,
    )
    found = describe_folder(folder)
    assert found.encode(["a red  A", "cat " * 9]).tolist() == [
        [1, 4, 5, 7, 0, 0],
        [1, 6, 6, 6, 6, 0],
    ]
    found = describe_folder(
        write(folder, open_clip_config__json=open_clip(context_length=6, hf_tokenizer_name="b"))
    )
    assert found.encode(["a"]).tolist() == [[1, 4, 2, 0, 0, 0]]


def test_the_config_of_the_weights_that_are_read_decides(tmp_path: Path) -> None:
    both = write(
        tmp_path / "x",
        config__json={"model_type": "clip", "text_config": {}},
        open_clip_config__json=open_clip(),
    )
    assert describe_folder(both).pad == 0
    assert describe_folder(both, config=OPEN_CLIP).pad == 0
    assert describe_folder(both, config=TRANSFORMERS).pad == 49407


def finder(folder: Path) -> published.Find:
    return lambda name, _most: folder / name if (folder / name).is_file() else None


def test_another_repository_is_asked_by_its_name_alone(tmp_path: Path) -> None:
    def named(name: str) -> published.Find:
        return finder(
            write(tmp_path / "x", open_clip_config__json=open_clip(hf_tokenizer_name=name))
        )

    other = write(tmp_path / "other", spiece__model=SPIECE)
    asked: list[str] = []

    def elsewhere(name: str) -> published.Find:
        asked.append(name)
        return finder(other)

    assert describe(named("timm/SigLIP"), "x", elsewhere=elsewhere).pad == 1
    assert asked == ["timm/SigLIP"]
    for name in ("../other", "/etc/passwd", "a/b/c", "~/x", "bert-base-uncased", "a/.."):
        with pytest.raises(UserError, match=r"x has no tokenizer.json; its tokenizer is the Hub's"):
            describe(named(name), "x", elsewhere=elsewhere)
    assert asked == ["timm/SigLIP"]
    with pytest.raises(UserError, match="its tokenizer is the Hub's timm/SigLIP: put that"):
        describe(named("timm/SigLIP"), "x")


def test_what_is_not_read_is_one_line(tmp_path: Path, subtests: pytest.Subtests) -> None:
    clip = {"model_type": "clip", "text_config": {}}
    siglip = {"model_type": "siglip"}
    about: Callable[[str], dict[str, str]] = lambda name: {"tokenizer_class": name}  # noqa: E731
    rows: dict[str, dict[str, Any]] = {
        "has no tokenizer: put tokenizer.json, spiece.model": {"config__json": siglip},
        "x has no spiece.model|has no tokenizer: put": {
            "config__json": siglip,
            "tokenizer_config__json": about("SiglipTokenizer"),
        },
        "unknown model_type in .*config.json 'bert'; valid: clip, siglip": {
            "config__json": {"model_type": "bert"}
        },
        "unknown tokenizer_class in .* 'NllbTokenizer'; ": {
            "config__json": siglip,
            "tokenizer_config__json": about("NllbTokenizerFast"),
        },
        "has no model_cfg.text_cfg": {"open_clip_config__json": {"model_cfg": {}}},
        "a tokenizer with language is not read": {
            "open_clip_config__json": open_clip(tokenizer_kwargs={"language": "fr"})
        },
        "a tokenizer with tokenizer_mode is not read": {
            "open_clip_config__json": open_clip(tokenizer_mode="clips")
        },
        "unknown tokenizer_kwargs.clean in .* 'scrub'; ": {
            "open_clip_config__json": open_clip(tokenizer_kwargs={"clean": "scrub"})
        },
        "in a way not known": {"open_clip_config__json": open_clip(tokenizer_kwargs=[1])},
        "context_length must be a whole number, and is 7.5": {
            "open_clip_config__json": open_clip(context_length=7.5)
        },
        "gets a context of 2, which must be from 3": {
            "open_clip_config__json": open_clip(context_length=2)
        },
        "vocab.json and merges.txt are not CLIP's": {
            "config__json": clip,
            "vocab__json": {"a": 0},
            "merges__txt": "a b",
        },
        "x has no merges.txt; put it": {"config__json": clip, "vocab__json": {"a": 0}},
        "has none of the ends of a text that are known": {
            "tokenizer__json": words("[PAD]", "x", "y", "z")
        },
        "has no token '<none>', which .*x has as its eos_token": {
            "tokenizer__json": words(*WORDS),
            "tokenizer_config__json": {**about("BertTokenizer"), "sep_token": "<none>"},
        },
        "is no tokenizer.json with a vocabulary": {"tokenizer__json": {"model": 1}},
        "tokenizer_config.json holds no object of JSON": {"tokenizer_config__json": "[]"},
        "spiece.model is no model of sentencepiece": {"spiece__model": "no model"},
    }
    for i, (why, trees) in enumerate(rows.items()):
        why = why.replace("eos_token", "sep_token")
        with subtests.test(why):
            folder = write(tmp_path / f"{i}x", **trees)
            with pytest.raises(UserError, match=why) as caught:
                describe_folder(folder)
            assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="gone is no folder"):
        describe_folder(tmp_path / "gone")


def test_a_link_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    (tmp_path / "spiece.model").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match=r"is a link to .*gone, which is not there"):
        describe_folder(tmp_path)
