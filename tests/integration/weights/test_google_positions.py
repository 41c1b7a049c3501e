# SPDX-License-Identifier: Apache-2.0
"""Position tables with and without a row for the class token: the same outputs either way."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.unit.weights import google_writer as writer
from tests.unit.weights.names.test_google import GAP, VIT, logits, made, refused, save
from vit_jax import weights

IMAGE = np.random.default_rng(1).normal(size=(2, 8, 12, 3)).astype(np.float32)
WITHOUT_ROW = dataclasses.replace(VIT, pos_embed_prefix=False)


def test_a_class_row_goes_into_the_token(tmp_path: Path) -> None:
    """vision_transformer's file in a model that adds positions to patches only: same outputs."""
    old = made(VIT)
    ref = save(tmp_path, writer.vit(old["params"], VIT.num_heads))
    new = weights.load(ref, WITHOUT_ROW)
    assert new["params"]["pos_embed"].shape == (1, 6, 12)
    expected = old["params"]["cls_token"] + old["params"]["pos_embed"][:, :1]
    np.testing.assert_array_equal(new["params"]["cls_token"], expected)
    np.testing.assert_allclose(
        logits(WITHOUT_ROW, new, IMAGE), logits(VIT, old, IMAGE), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("registers", [0, 2])
def test_a_table_without_a_class_row_gets_zeros(registers: int, tmp_path: Path) -> None:
    """big_vision's file in a model whose table covers the tokens before the patches."""
    old_cfg = dataclasses.replace(WITHOUT_ROW, num_registers=registers)
    old = made(old_cfg)
    arrays = writer.vit(old["params"], VIT.num_heads, table="pos_embedding")
    cfg = dataclasses.replace(VIT, num_registers=registers)
    skip = ("reg_token",) if registers else ()
    new = weights.load(save(tmp_path, arrays), cfg, skip=skip)
    assert new["params"]["pos_embed"].shape == (1, 7 + registers, 12)
    assert not new["params"]["pos_embed"][:, : 1 + registers].any()
    if registers:
        new["params"]["reg_token"] = old["params"]["reg_token"]
    np.testing.assert_allclose(
        logits(cfg, new, IMAGE), logits(old_cfg, old, IMAGE), atol=1e-5, rtol=0
    )


def test_a_class_row_before_registers_stays_the_tokens(tmp_path: Path) -> None:
    old = made(VIT)
    cfg = dataclasses.replace(VIT, num_registers=2)
    arrays = writer.vit(old["params"], VIT.num_heads)
    table = weights.load(save(tmp_path, arrays), cfg, skip=["reg_token"])["params"]["pos_embed"]
    ours = old["params"]["pos_embed"]
    np.testing.assert_array_equal(table[:, [0, *range(3, 9)]], ours)
    assert not table[:, 1:3].any()


def test_a_class_row_without_a_class_token(tmp_path: Path) -> None:
    """A mean-pooled model takes the patches' rows; the file's token must be skipped by name."""
    old = made(VIT)
    arrays = writer.vit(old["params"], VIT.num_heads)
    assert "has more than the model: cls [1, 1, 12]" in refused(tmp_path, arrays, GAP)
    new = weights.load(save(tmp_path, arrays), GAP, skip=["^cls$"])
    np.testing.assert_array_equal(new["params"]["pos_embed"], old["params"]["pos_embed"][:, 1:])


def test_a_class_row_of_a_table_that_is_resized(tmp_path: Path) -> None:
    square = dataclasses.replace(VIT, image_size=(16,))
    old = made(square)
    ref = save(tmp_path, writer.vit(old["params"], VIT.num_heads))
    with_row = weights.load(ref, VIT)["params"]
    without = weights.load(ref, WITHOUT_ROW)["params"]
    assert without["pos_embed"].shape == (1, 6, 12)
    np.testing.assert_array_equal(with_row["pos_embed"][:, :1], old["params"]["pos_embed"][:, :1])
    np.testing.assert_array_equal(without["pos_embed"], with_row["pos_embed"][:, 1:])
    expected = old["params"]["cls_token"] + old["params"]["pos_embed"][:, :1]
    np.testing.assert_array_equal(without["cls_token"], expected)


def test_sizes_that_only_a_bomb_has(tmp_path: Path) -> None:
    arrays = writer.vit(made(VIT)["params"], VIT.num_heads)
    key = "Transformer/posembed_input/pos_embedding"
    for cfg in (VIT, WITHOUT_ROW):
        arrays[key] = np.zeros((1, 2**16 + 1, 12), np.float32)
        assert f"{key}: in the file [1, 65537, 12]" in refused(tmp_path, arrays, cfg)
    message = refused(tmp_path, arrays, WITHOUT_ROW, skip=["pos_embed"])  # the row is needed still
    assert f"{key}: in the file [1, 65537, 12]" in message
