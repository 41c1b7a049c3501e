# SPDX-License-Identifier: Apache-2.0
"""Both towers in others' files: exact there and back, strict."""

import numpy as np
import pytest

from tests.pairs_of_towers import FILES, pair, read, tensors
from tests.unit.models.tiny import TINY
from vit_jax import trees
from vit_jax.errors import UserError
from vit_jax.models.two_towers import TwoTowers
from vit_jax.weights import two_towers as names
from vit_jax.weights.apply import fill, in_memory
from vit_jax.weights.two_towers import Codebase

FORMS = {
    "clip_quickgelu.safetensors": Codebase.TRANSFORMERS,
    "open_clip.safetensors": Codebase.OPEN_CLIP,
    "siglip.safetensors": Codebase.TRANSFORMERS,
    "siglip2.safetensors": Codebase.TRANSFORMERS,
    "siglip_open_clip.safetensors": Codebase.OPEN_CLIP,
    "siglip_big_vision.npz": Codebase.BIG_VISION,
}


@pytest.mark.parametrize("file", FILES)
def test_a_file_comes_back_as_it_is(file: str) -> None:
    there = tensors(file)
    assert names.form({key: value.shape for key, value in there.items()}) is FORMS[file]
    cfg, variables = read(file)
    written = names.state(variables, cfg, FORMS[file])
    written = {key.removeprefix("params/"): value for key, value in written.items()}
    assert written.keys() == there.keys()
    for key, value in there.items():
        assert np.array_equal(written[key].reshape(value.shape), value), key


@pytest.mark.parametrize("file", FILES)
def test_a_file_is_read_strictly(file: str) -> None:
    there, cfg = tensors(file), pair(FILES[file])
    text = next(k for k in there if "token_embedding" in k or "Embed_0" in k)
    norm = next(
        k for k in there if "final_layer_norm" in k or "ln_final" in k or "encoder_norm" in k
    )
    for changed, words in (
        ({k: v for k, v in there.items() if k != norm}, "lacks"),
        ({**there, f"{text}_more": there[text]}, "has more than the model"),
        ({**there, text: there[text][:-1]}, "has other shapes"),
    ):
        found = names.opened(in_memory(changed, "x.safetensors"), cfg)
        with pytest.raises(UserError, match=words):
            fill(found.entries, found.source, is_ignored=found.is_ignored, only_check=True)


def test_prefixes_and_stacks_of_big_vision() -> None:
    there = tensors("siglip_big_vision.npz")
    stacked = {}
    for key, value in there.items():
        if "encoderblock_0" in key:
            other = there[key.replace("encoderblock_0", "encoderblock_1")]
            stacked[key.replace("encoderblock_0", "encoderblock")] = np.stack([value, other])
        elif "encoderblock" not in key:
            stacked[key] = value
    _, variables = read("siglip_big_vision.npz")
    cfg = pair("siglip")
    for tree in (stacked, {f"params/{key}": value for key, value in stacked.items()}):
        found = names.opened(in_memory(tree), cfg)
        again = fill(found.entries, found.source, is_ignored=found.is_ignored)
        for name, leaf in trees.named_leaves(variables):
            assert np.array_equal(again[name], leaf), name


def test_a_head_of_timms_network_may_have_a_bias_of_zeros() -> None:
    there = tensors("open_clip.safetensors")
    there["visual.trunk.head.weight"] = there.pop("visual.proj").T
    cfg = pair("open_clip")
    for bias, fits in ((np.zeros(16), True), (np.ones(16), False)):
        given = {**there, "visual.trunk.head.bias": bias.astype(np.float32)}
        found = names.opened(in_memory(given), cfg)
        keys = [key for key in found.source.shapes if not found.is_ignored(key)]
        assert ("visual.trunk.head.bias" not in keys) is fits


def test_what_has_no_names_is_one_line() -> None:
    cfg = pair("open_clip")
    swin = TwoTowers(image=TINY["swin"], text=cfg.text, dim=cfg.dim)
    for form in (Codebase.TRANSFORMERS, Codebase.OPEN_CLIP):
        with pytest.raises(UserError, match=f"{form} has no pairs with Swin; its image towers are"):
            names.state({"params": {}}, swin, form)
    with pytest.raises(UserError, match=r"x.npz holds no text tower under the names of"):
        names.opened(in_memory({"a": np.zeros(1)}, "x.npz"), cfg)
