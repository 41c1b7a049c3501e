# SPDX-License-Identifier: Apache-2.0
"""Both towers, written by `convert --texts`, give the same in transformers."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

if not importlib.util.find_spec("transformers"):
    pytest.skip(
        "needs transformers: pip install --no-deps -r locks/parity.txt",
        allow_module_level=True,
    )

import transformers as hf

import vit_jax
from tests.pairs_of_towers import folder
from tests.parity.torch_models import torch
from vit_jax.cli.weights.convert import main

TOLERANCE = 1e-5


@pytest.mark.parametrize("name", ["clip_quickgelu", "siglip", "siglip2"])
def test_transformers_embeds_as_the_pair_here(name: str, tmp_path: Path) -> None:
    published, out = folder(name, tmp_path / "published"), tmp_path / "out"
    assert main(["convert", f"--from=hub:{published}", f"--to=hf:{out}", "--texts"]) == 0
    theirs, info = hf.AutoModel.from_pretrained(out, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    ours = vit_jax.load(f"hub:{out}")
    assert ours.trained.image_size == (32, 32)
    pixels = np.random.default_rng(0).normal(size=(3, 32, 32, 3)).astype(np.float32)
    texts = ["ab c", "a much longer text of many letters", ""]
    tokens = ours.pair.tokenizer.encode(texts)
    inputs = {
        "pixel_values": torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy()),
        "input_ids": torch.from_numpy(tokens.astype(np.int64)),
    }
    with torch.no_grad():
        found = theirs.eval()(**inputs)
    images = ours.encode_image(pixels, normalised=True)
    np.testing.assert_allclose(found.image_embeds, images, atol=TOLERANCE)
    np.testing.assert_allclose(found.text_embeds, ours.encode_text(texts), atol=TOLERANCE)
    logits = ours.similarity(pixels, texts, normalised=True)
    np.testing.assert_allclose(found.logits_per_image, logits, atol=1e-4)
    processor = hf.AutoImageProcessor.from_pretrained(out)
    assert list(processor.image_mean) == pytest.approx(list(ours.trained.mean))
    if name == "clip_quickgelu":
        rows = hf.AutoTokenizer.from_pretrained(out)(texts, padding="max_length", max_length=12)
        assert rows["input_ids"][0] == tokens[0].tolist()
