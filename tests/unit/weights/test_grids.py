# SPDX-License-Identifier: Apache-2.0
"""A table of another grid of as many patches is resized by what says its grid, or refused."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.unit.weights.runs import make_state
from vit_jax import models, weights
from vit_jax.errors import UserError
from vit_jax.models import MixerConfig, ModelConfig, SwinConfig, ViTConfig
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.weights import export, grids
from vit_jax.weights.apply import in_memory
from vit_jax.weights.names import google, hf
from vit_jax.weights.readers import ckpt
from vit_jax.weights.resize import ResizeRule, bicubic, bicubic_antialiased, resize_grid

SMALL: dict[str, Any] = {"dim": 16, "depth": 1, "num_heads": 2, "mlp_dim": 32, "num_classes": 3}
TALL = ViTConfig(patch=(4,), image_size=(32, 16), **SMALL)  # 8 x 4 patches
WIDE = dataclasses.replace(TALL, image_size=(16, 32))
MIXER = MixerConfig(
    patch=(4,), dim=16, depth=1, token_mlp_dim=8, channel_mlp_dim=32, image_size=(32, 16)
)
SWIN = SwinConfig(
    patch=(4,), dim=8, depths=(1, 1), num_heads=(2, 2), window=(2, 4), image_size=(64, 64)
)


@functools.cache
def state_of(cfg: ModelConfig) -> dict[str, np.ndarray]:
    """Return a state_dict of random numbers under timm's names, which nobody changes."""
    state = make_state(cfg, 0)
    return weights.to_timm({"params": state.params, **(state.model_state or {})}, cfg)


def beside(folder: Path, cfg: ModelConfig, **config: Any) -> str:
    """Write a file as others do, without metadata of ours, and a config.json beside it."""
    folder.mkdir()
    save_file(state_of(cfg), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return f"timm:{folder}/model.safetensors"


def table(ref: str, cfg: ModelConfig, **options: Any) -> np.ndarray:
    return weights.load(ref, cfg, **options)["params"]["pos_embed"]


def resized(rule: Any = bicubic_antialiased) -> np.ndarray:
    old = state_of(TALL)["pos_embed"][0, 1:].reshape(8, 4, 16)
    return resize_grid(old, (4, 8), rule).reshape(32, 16)


def test_what_says_a_files_grid(tmp_path: Path) -> None:
    export.save(tmp_path / "own.safetensors", state_of(TALL), TALL)
    about = {"mean": [0.5] * 3, "std": [0.5] * 3, "input_size": [3, 32, 16]}
    refs = {
        "metadata": f"timm:{tmp_path}/own.safetensors",
        "input_size": beside(
            tmp_path / "a", TALL, architecture="vit_base_patch16_224", pretrained_cfg=about
        ),
        "img_size": beside(
            tmp_path / "b",
            TALL,
            architecture="vit_base_patch16_224",
            pretrained_cfg={**about, "input_size": [3, 224, 224]},
            model_args={"img_size": [32, 16]},
        ),
    }
    refs["hub"] = f"hub:{tmp_path}/a"
    for name, ref in refs.items():
        found = table(ref, WIDE)
        np.testing.assert_allclose(found[0, 1:], resized(), atol=1e-6, err_msg=name)
        same = table(ref, TALL, resize=ResizeRule.NONE)
        np.testing.assert_array_equal(same, state_of(TALL)["pos_embed"], err_msg=name)
        with pytest.raises(UserError, match=r"of 8 x 4 patches, and this model has 4 x 8"):
            table(ref, WIDE, resize=ResizeRule.NONE)
        assert weights.load(ref, WIDE, resize=ResizeRule.NONE, skip=["pos_embed"]), name


def test_a_config_of_transformers_says_it(tmp_path: Path) -> None:
    config = {"model_type": "vit", "image_size": [32, 16], "patch_size": 4, "num_channels": 3}
    config |= {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    cfg = dataclasses.replace(TALL, num_classes=0)
    state = make_state(cfg, 0)
    named = hf.state({"params": state.params}, cfg, hf.LAYOUTS["vit"], "")
    save_file(named, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 32}))
    old = np.asarray(state.params["pos_embed"])[0, 1:].reshape(8, 4, 16)
    found = table(f"hub:{tmp_path}", dataclasses.replace(WIDE, num_classes=0))
    expected = resize_grid(old, (4, 8), bicubic).reshape(32, 16)
    np.testing.assert_allclose(found[0, 1:], expected, atol=1e-6)


def test_where_nothing_says_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    square = dataclasses.replace(TALL, image_size=(16, 16))
    save_file(state_of(square), tmp_path / "x.safetensors")
    ref, flat = f"timm:{tmp_path}/x.safetensors", dataclasses.replace(TALL, image_size=(8, 32))
    with pytest.raises(UserError, match=r"model's 2 x 8, but may be of another grid.*input_size"):
        table(ref, flat)
    np.testing.assert_array_equal(
        table(ref, flat, resize=ResizeRule.NONE), state_of(square)["pos_embed"]
    )
    # 32 patches are of no square: the model's grid is taken, and that is said.
    save_file(state_of(TALL), tmp_path / "y.safetensors")
    assert table(f"timm:{tmp_path}/y.safetensors", TALL).shape == (1, 33, 16)
    assert "taken to be of this model's 8 x 4" in caplog.text


def test_googles_are_square() -> None:
    shapes = {"embedding/kernel": (4, 4, 3, 16), "cls": (1, 1, 16)}
    shapes["Transformer/posembed_input/pos_embedding"] = (1, 17, 16)
    flat = dataclasses.replace(TALL, image_size=(8, 32))
    found = google.saved(flat, shapes)
    assert found is not None
    assert models.pair(found.image_size, "image_size") == (16, 16)


def test_layers_that_no_rule_resizes(tmp_path: Path) -> None:
    export.save(tmp_path / "m.safetensors", state_of(MIXER), MIXER)
    ref = f"timm:{tmp_path}/m.safetensors"
    assert weights.load(ref, MIXER)
    with pytest.raises(UserError, match=r"mlp_tokens.* is of 8 x 4 patches"):
        weights.load(ref, dataclasses.replace(MIXER, image_size=(16, 32)))
    tall = dataclasses.replace(TALL, pos_embed=PosEmbed.RELATIVE)
    wide = dataclasses.replace(WIDE, pos_embed=PosEmbed.RELATIVE)
    entries = ckpt.entries(models.abstract(wide))
    values = {e.layers[0][0].key: np.zeros(e.shape, np.float32) for e in entries}
    found = grids.refused(entries, in_memory(values), wide, tall, ResizeRule.AUTO)
    assert [name.rpartition("/")[2] for name in found] == ["rel_embed"]
    assert not grids.refused(entries, in_memory(values), wide, wide, ResizeRule.AUTO)


def test_windows(tmp_path: Path) -> None:
    export.save(tmp_path / "s.safetensors", state_of(SWIN), SWIN)
    ref, turned = f"timm:{tmp_path}/s.safetensors", dataclasses.replace(SWIN, window=(4, 2))
    name = "layers.0.blocks.0.attn.relative_position_bias_table"
    old = state_of(SWIN)[name].reshape(3, 7, 2)
    found = weights.load(ref, turned, resize=ResizeRule.OFFICIAL)
    found = found["params"]["stage0"]["block0"]["attn"]["rel_pos_bias"]
    expected = resize_grid(old, (7, 3), bicubic).reshape(21, 2)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    with pytest.raises(UserError, match=r"of 2 x 4 .* and this model has 4 x 2"):
        weights.load(ref, turned, resize=ResizeRule.NONE)


def test_metadata_of_a_stranger_are_not_believed(tmp_path: Path) -> None:
    for text in ("", "[", "[1]", '{"img_size": [9e9, -1]}', '{"img_size": [3, 5]}'):
        file = tmp_path / "x.safetensors"
        save_file(state_of(TALL), file, metadata={"vit_jax.grid": text})
        assert table(f"timm:{file}", TALL).shape == (1, 33, 16), text
    for sizes in ([16, 8], [64, 32]):  # of another file, whose table has fewer patches, or more
        text = json.dumps({"img_size": sizes})
        save_file(state_of(TALL), file, metadata={"vit_jax.grid": text})
        found = table(f"timm:{file}", TALL, resize=ResizeRule.NONE)
        np.testing.assert_array_equal(found, state_of(TALL)["pos_embed"], err_msg=text)
