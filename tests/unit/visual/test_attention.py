# SPDX-License-Identifier: Apache-2.0
"""Measures of attention and of first layers against their definitions."""

import numpy as np
import pytest

from tests.unit.models.tiny import TINY, shrink
from vit_jax import models
from vit_jax.models.layers.window import fit_window
from vit_jax.visual import attention, weight_sheets
from vit_jax.visual.attention import head_maps


def attending(rng: np.random.Generator, *shape: int) -> np.ndarray:
    weights = rng.random(shape).astype(np.float32) ** 3
    return weights / weights.sum(axis=-1, keepdims=True)


def test_distance_is_in_the_unit_of_the_step_and_counts_the_image_only():
    ahead = np.roll(np.eye(6, dtype=np.float32), 1, axis=1)  # each token to the next
    even = np.full((6, 6), 1 / 6, np.float32)
    weights, tokens = np.stack([np.eye(6, dtype=np.float32), ahead, even])[None], np.arange(6)[None]
    found = attention.attention_distance(weights, tokens, (2, 3), (3.0, 4.0))
    wrap, back = np.hypot(3, 8), np.hypot(3, 8)
    pairs = [
        np.hypot(3 * (a // 3 - b // 3), 4 * (a % 3 - b % 3)) for a in range(6) for b in range(6)
    ]
    np.testing.assert_allclose(found, [0, (4 * 4 + wrap + back) / 6, np.mean(pairs)], rtol=1e-6)
    talking = attention.attention_distance(-2 * weights, tokens, (2, 3), (3.0, 4.0))
    np.testing.assert_allclose(talking, found, rtol=1e-6)
    outside = np.asarray([[0, -1, 2, -1, -1, -1]])
    reach = attention.attention_distance(weights[:, 2:], outside, (2, 3), (3.0, 4.0))
    np.testing.assert_allclose(reach, [4.0])  # half to itself, half two columns away
    assert attention.attention_distance(0 * weights, tokens, (2, 3), (1.0, 1.0)).tolist() == [0] * 3


@pytest.mark.parametrize("grid", [(5, 7), (6, 6), (2, 9)])
@pytest.mark.parametrize("shifted", [False, True])
def test_windows_hold_every_token_once_and_edges_part_them(grid, shifted):
    window, shift = fit_window(grid, (3, 3), shifted=shifted)
    tokens = attention.window_tokens(grid, window, shift)
    assert sorted(tokens[tokens >= 0]) == list(range(grid[0] * grid[1]))
    home = np.empty(grid[0] * grid[1], int)
    for number, places in enumerate(tokens):
        home[places[places >= 0]] = number
    home = home.reshape(grid)
    for axis in range(2):
        edges = attention.window_edges(grid[axis], window[axis], shift[axis])
        parted = np.any(np.diff(home, axis=axis) != 0, axis=1 - axis)
        assert edges == (np.flatnonzero(parted) + 1).tolist()
    assert attention.window_edges(9, 3, 1) == [1, 4, 7]


def test_a_vit_shows_what_its_head_reads_by_head():
    cfg = models.variant("vit_mu16", patch=(4, 8), image_size=(8, 24), depth=2, num_registers=1)
    weights = attending(np.random.default_rng(0), 2, 1, 2, 8, 8)
    layers = head_maps(cfg, {}, {"blocks/attn/weights": weights}, (8, 24))
    assert [(each.layer, each.name, each.query) for each in layers] == [
        (0, "block", "class token"),
        (1, "block", "class token"),
    ]
    np.testing.assert_array_equal(layers[1].maps, weights[1, 0, :, 0, 2:].reshape(2, 2, 3))
    among = weights[1, 0, :, 2:, 2:]
    places = [(4 * (i // 3), 8 * (i % 3)) for i in range(6)]
    far = np.asarray([[np.hypot(a - c, b - d) for c, d in places] for a, b in places])
    expected = ((among * far).sum(-1) / among.sum(-1)).mean(-1)
    np.testing.assert_allclose(layers[1].distance, expected, rtol=1e-5)

    cfg.distilled, cfg.num_registers = True, 0
    layers = head_maps(cfg, {}, {"blocks/attn/weights": weights}, (8, 24))
    both = weights[0, 0, :, :2, 2:].mean(axis=1).reshape(2, 2, 3)
    np.testing.assert_allclose(layers[0].maps, both, rtol=1e-6)

    cfg.distilled, cfg.num_registers, cfg.pool = False, 1, models.families.vit.Pool.MAP
    pooling = attending(np.random.default_rng(1), 1, 2, 1, 6)
    seen = {"blocks/attn/weights": weights, "map_pool/weights": pooling}
    layers = head_maps(cfg, {}, seen, (8, 24))
    assert [each.query for each in layers] == ["mean over all patches"] * 2 + ["learned query"]
    np.testing.assert_allclose(
        layers[0].maps, weights[0, 0, :, 2:, 2:].mean(axis=1).reshape(2, 2, 3), rtol=1e-6
    )
    np.testing.assert_array_equal(layers[2].maps, pooling[0, :, 0].reshape(2, 2, 3))
    assert layers[2].distance is None


def test_a_cait_shows_patches_and_then_the_class_token():
    cfg = shrink(models.variant("cait_xxs24", patch=(4, 4)), image_size=(8, 12))
    rng = np.random.default_rng(0)
    seen = {
        "blocks/attn/weights": rng.normal(size=(2, 1, 2, 6, 6)).astype(np.float32),
        "token_blocks/attn/weights": attending(rng, 1, 1, 2, 1, 7),
    }
    layers = head_maps(cfg, {}, seen, (8, 12))
    assert [each.kind for each in layers] == ["block", "block", "class attention"]
    assert [each.layer for each in layers] == [0, 1, 2]
    np.testing.assert_allclose(
        layers[1].maps.reshape(2, 6), seen["blocks/attn/weights"][1, 0].mean(axis=1), rtol=1e-5
    )
    last = seen["token_blocks/attn/weights"][0, 0, :, 0, 1:].reshape(2, 2, 3)
    np.testing.assert_array_equal(layers[2].maps, last)
    assert layers[2].distance is None


def test_a_convit_shows_position_and_content_and_its_gates():
    cfg = models.variant("convit_ti", patch=(4, 4), image_size=(12, 12), depth=3)
    rng = np.random.default_rng(0)
    names = ("weights", "content")
    seen = {f"local_blocks/attn/{name}": attending(rng, 2, 1, 4, 9, 9) for name in names}
    seen["local_blocks/attn/position"] = attending(rng, 2, 4, 9, 9)
    seen["blocks/attn/weights"] = attending(rng, 1, 1, 4, 10, 10)
    gating = rng.normal(size=(2, 4))
    params = {"local_blocks": {"attn": {"gating_param": gating}}}
    layers = head_maps(cfg, params, seen, (12, 12))
    assert [each.layer for each in layers] == [0, 0, 0, 1, 1, 1, 2]
    whole, position, content = layers[3:6]
    assert (position.query, content.query) == (
        "centre patch, by position",
        "centre patch, by content",
    )
    for each, name in ((whole, "weights"), (content, "content")):
        centre = seen[f"local_blocks/attn/{name}"][1, 0, :, 4].reshape(4, 3, 3)
        np.testing.assert_array_equal(each.maps, centre)
    centre = seen["local_blocks/attn/position"][1, :, 4].reshape(4, 3, 3)
    np.testing.assert_array_equal(position.maps, centre)
    np.testing.assert_allclose(whole.gates, 1 / (1 + np.exp(-gating[1])), rtol=1e-6)
    last = seen["blocks/attn/weights"][0, 0, :, 0, 1:].reshape(4, 3, 3)
    np.testing.assert_array_equal(layers[6].maps, last)


def test_a_swin_shows_what_tokens_receive_in_every_stage():
    cfg = TINY["swin"]  # a 5 x 5 grid, then 3 x 3, in windows of 3 x 3
    rng = np.random.default_rng(0)
    seen = {
        "stage0/block0/attn/weights": attending(rng, 1, 4, 2, 9, 9),
        "stage0/block1/attn/weights": attending(rng, 1, 4, 2, 9, 9),
        "stage1/block0/attn/weights": attending(rng, 1, 1, 2, 9, 9),
    }
    layers = head_maps(cfg, {}, seen, (20, 20))
    assert [each.name for each in layers] == [
        "stage 0 block 0",
        "stage 0 block 1",
        "stage 1 block 0",
    ]
    assert [each.edges for each in layers] == [([3], [3]), ([1, 4], [1, 4]), ([], [])]
    assert [each.maps.shape for each in layers] == [(2, 5, 5), (2, 5, 5), (2, 3, 3)]
    last = seen["stage1/block0/attn/weights"][0, 0]
    np.testing.assert_allclose(layers[2].maps.reshape(2, 9), last.sum(axis=1), rtol=1e-5)
    places = [(8 * (i // 3), 8 * (i % 3)) for i in range(9)]  # a token of stage 1 is 8 pixels
    far = np.asarray([[np.hypot(a - c, b - d) for c, d in places] for a, b in places])
    np.testing.assert_allclose(layers[2].distance, (last * far).sum(-1).mean(-1), rtol=1e-5)


def test_networks_without_attention_have_no_heads():
    assert head_maps(TINY["mixer"], {}, {}, (8, 8)) == []


def test_principal_filters_are_the_eigenvectors_of_their_covariance():
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(2, 3, 1, 5)) * np.arange(1, 7).reshape(2, 3, 1, 1)
    found = weight_sheets.principal_filters(kernel, 4)
    values, vectors = np.linalg.eigh(np.cov(kernel.reshape(6, 5)))
    np.testing.assert_allclose(found.shares, values[::-1][:4] / values.sum(), rtol=1e-6)
    assert found.filters.shape == (4, 2, 3, 1)
    for one, vector in zip(found.filters, vectors.T[::-1], strict=False):
        assert one.ravel()[np.abs(one).argmax()] > 0
        np.testing.assert_allclose(abs(one.ravel() @ vector), 1, rtol=1e-6)
    assert len(weight_sheets.principal_filters(kernel, 28).filters) == 5
    assert np.isfinite(weight_sheets.principal_filters(0 * kernel, 2).shares).all()


def test_position_similarity_is_a_cosine():
    table = np.random.default_rng(0).normal(size=(6, 4))
    found = weight_sheets.position_similarity(table, (2, 3))
    a, b = table[1 * 3 + 2], table[0 * 3 + 1]
    expected = a @ b / np.sqrt((a @ a) * (b @ b))
    np.testing.assert_allclose(found[1, 2, 0, 1], expected)
    assert np.isfinite(weight_sheets.position_similarity(0 * table, (2, 3))).all()
