# SPDX-License-Identifier: Apache-2.0
"""Token ids beside open_clip's and transformers' own, on 41 awkward texts and on drawn ones."""

import importlib.util
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vit_jax.text import tokenizers, vocabularies
from vit_jax.text.published import describe_folder

transformers = pytest.importorskip("transformers")
GOLDEN = Path(__file__).parents[1] / "golden" / "text"
PARTS = [
    *"abcXYZ '!?.,_-<>&;#0123456789\t\n éÅİß“”…—½²☃😀日本語あア한글ไทยمرحבاשלום",
    *"\u0301\u0378\ufeff\x00\x1c\x85\xa0",
    *("'s", "'LL", "&amp;", "<start_of_text>", "<end_of_text>", "<|endoftext|>", "word", "ÃŸ"),
]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    rows = json.loads((GOLDEN / "clip_bpe.json").read_text())["rows"]
    draw = random.Random(0)
    drawn = ["".join(draw.choices(PARTS, k=draw.randrange(1, 20))) for _ in range(1000)]
    return [*(row["text"] for row in rows), *drawn]


@pytest.fixture(scope="module")
def open_clip() -> Any:
    """Return open_clip's module of tokenizers; its package asks for all of torchvision."""
    found = importlib.util.find_spec("open_clip")
    if found is None or not found.submodule_search_locations:
        pytest.skip("open_clip is not installed")
    path = Path(found.submodule_search_locations[0]) / "tokenizer.py"
    spec = importlib.util.spec_from_file_location("open_clip_tokenizer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compare(
    found: tokenizers.Tokenizer, wanted: Callable[[str], list[int]], texts: list[str]
) -> None:
    ids = found.encode(texts)
    wrong = [text for text, row in zip(texts, ids, strict=True) if row.tolist() != wanted(text)]
    assert not wrong, f"{len(wrong)} of {len(texts)}: {wrong[:3]!a}"


def write(folder: Path, name: str, tree: dict[str, Any]) -> None:
    (folder / name).write_text(json.dumps(tree))


def test_open_clips_own(open_clip: Any, texts: list[str]) -> None:
    for context in (77, 32, 8):
        theirs = open_clip.SimpleTokenizer(context_length=context)
        compare(tokenizers.clip(context=context), lambda text: theirs(text)[0].tolist(), texts)  # noqa: B023


def test_clip_of_transformers(tmp_path: Path, texts: list[str]) -> None:
    merges = vocabularies.clip_merges()
    ids = vocabularies.clip_vocabulary(merges, ["<|startoftext|>", "<|endoftext|>"])
    theirs = transformers.CLIPTokenizer(vocab=ids, merges=[tuple(m.split(" ")) for m in merges])

    def wanted(text: str) -> list[int]:
        return theirs(text, padding="max_length", max_length=77, truncation=True).input_ids

    write(tmp_path, "config.json", {"model_type": "clip", "text_config": {}})
    compare(describe_folder(tmp_path), wanted, texts)  # the package's own merges
    theirs.save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer.json").is_file()
    compare(describe_folder(tmp_path), wanted, texts)


def test_siglip_of_transformers(tmp_path: Path, texts: list[str]) -> None:
    shutil.copy(GOLDEN / "emoji_sp2000.model", tmp_path / "spiece.model")
    theirs = transformers.SiglipTokenizer(str(tmp_path / "spiece.model"))
    write(tmp_path, "config.json", {"model_type": "siglip", "text_config": {}})
    # Differs from transformers: of spaces before a text, or after punctuation that goes, it makes a
    # token, and big_vision, which trained, does not.
    plain = [text for text in texts if text[:1].isalnum()]
    assert len(plain) > 500
    compare(
        describe_folder(tmp_path),
        lambda text: theirs(text, padding="max_length", max_length=64, truncation=True).input_ids,
        plain,
    )


def test_siglip_2_of_transformers(tmp_path: Path, texts: list[str]) -> None:
    from tokenizers import Tokenizer, models, normalizers, trainers

    words: Any = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    words.normalizer = normalizers.Replace(" ", "\u2581")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{i:02X}>" for i in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False)
    words.train_from_iterator([text.lower() for text in texts[:200]], trainer)
    model = json.loads(words.to_str())["model"]
    theirs = transformers.Siglip2Tokenizer(
        vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]]
    )
    theirs.save_pretrained(tmp_path)
    write(tmp_path, "config.json", {"model_type": "siglip2", "text_config": {}})

    def wanted(text: str) -> list[int]:
        ids = theirs(text, add_special_tokens=False).input_ids[:63]
        return [*ids, 1, *[0] * (63 - len(ids))]

    compare(describe_folder(tmp_path), wanted, texts)


def test_siglip_of_open_clip(open_clip: Any, tmp_path: Path, texts: list[str]) -> None:
    shutil.copy(GOLDEN / "emoji_sp2000.model", tmp_path / "spiece.model")
    theirs = transformers.T5Tokenizer.from_pretrained(tmp_path, extra_ids=0)
    theirs.pad_token = "</s>"
    folder = tmp_path / "published"
    theirs.save_pretrained(folder)
    text = {
        "context_length": 16,
        "hf_tokenizer_name": "timm/ViT-B-16-SigLIP",
        "tokenizer_kwargs": {"clean": "canonicalize"},
    }
    write(folder, "open_clip_config.json", {"model_cfg": {"text_cfg": text}})
    wrapped = open_clip.HFTokenizer(str(folder), 16, clean="canonicalize")
    compare(describe_folder(folder), lambda text: wrapped([text])[0].tolist(), texts)
