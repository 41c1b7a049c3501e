# SPDX-License-Identifier: Apache-2.0
"""Matching and losses of masks against transformers' numbers, and both forms of targets."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from vit_jax.objectives.dense import losses as dense_losses
from vit_jax.objectives.dense.losses import MaskLossConfig, segment_targets

GOLDEN = Path(__file__).parents[3] / "golden" / "next3" / "mask_losses.npz"
CFG = MaskLossConfig()


def _golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as file:
        return {name: file[name] for name in file.files}


def test_costs_matching_and_losses_are_those_of_transformers() -> None:
    golden = _golden()
    with jax.enable_x64(True):
        g = {name: jnp.asarray(value) for name, value in golden.items()}
        masks, classes, points = g["in_mask_logits"], g["in_class_logits"], g["in_points_xy"]
        bits = jnp.asarray(np.packbits(golden["in_truth"] > 0, axis=-1))
        # Two targets more, of no object.
        bits = jnp.pad(bits, ((0, 2), (0, 0), (0, 0)), constant_values=77)
        labels = jnp.pad(g["in_labels"], (0, 2), constant_values=-1)
        targets = segment_targets(bits[None], labels[None], 32)
        one = jax.tree.map(lambda x: x[0], targets)

        def near(found: Any, name: str) -> None:
            np.testing.assert_allclose(found, golden[name], rtol=1e-6, atol=1e-9)

        near(dense_losses.sample(masks, points), "out_point_logits")
        near(dense_losses.sample_targets(one, points)[:3], "out_point_labels")
        for part, weight in (("mask", 5), ("dice", 5), ("class", 2)):
            alone = {f"{name}_weight": 0.0 for name in ("mask", "dice", "class")}
            cfg = dataclasses.replace(CFG, **{**alone, f"{part}_weight": float(weight)})
            cost = dense_losses.matching_costs(classes, masks, one, points[0], cfg)
            near(cost[:, :3] / weight, f"out_cost_{part}")
        cost = dense_losses.matching_costs(classes, masks, one, points[0], CFG)
        near(cost[:, :3], "out_cost")
        query = dense_losses.match(cost[None], targets.classes >= 0)
        of_column = dict(zip(golden["out_cols"], golden["out_rows"], strict=True))
        assert query[0].tolist() == [of_column[0], of_column[1], of_column[2], -1, -1]

        shares = dense_losses.row_shares(targets.classes, CFG, 6)
        mask, dice = dense_losses.pair_losses(masks, one, query[0], points.repeat(5, axis=0))
        said = dense_losses.class_losses(classes, one.classes, query[0], CFG.no_object)
        mask, dice = mask * shares["mask_share"][0], dice * shares["mask_share"][0]
        said *= shares["class_share"][0]
        for term, name in ((mask, "mask"), (dice, "dice"), (said, "class")):
            near(term, f"out_loss_{name}")
        near(2 * said + 5 * mask + 5 * dice, "out_loss_total")


def test_matching_is_the_best_also_with_gaps_and_too_many_targets() -> None:
    rng = np.random.default_rng(1)
    for queries, count in ((7, 5), (4, 9)):
        cost = rng.normal(size=(3, queries, count)).astype(np.float32)
        valid = rng.random((3, count)) < 0.6
        valid[2] = False
        found = np.asarray(jax.jit(dense_losses.match)(jnp.asarray(cost), jnp.asarray(valid)))
        for row, true, query in zip(cost, valid, found, strict=True):
            kept = np.flatnonzero(true)[:queries]
            rows, columns = linear_sum_assignment(row[:, kept])
            wanted = np.full(count, -1)
            wanted[kept[columns]] = rows
            assert query.tolist() == wanted.tolist()
    broken = jnp.full((1, 3, 2), jnp.nan)
    assert dense_losses.match(broken, jnp.ones((1, 2), bool)).min() >= 0


def test_points_are_where_the_mask_is_uncertain() -> None:
    # Logits grow with the distance from the line x = 0.5.
    x = (np.arange(32) + 0.5) / 32
    logits = jnp.asarray(np.broadcast_to(40 * (x - 0.5), (1, 2, 32, 32)), jnp.float32)
    cfg = MaskLossConfig(points=100, uncertain=0.75)
    points = np.asarray(dense_losses.uncertain_points(logits, jax.random.key(0), cfg))
    assert points.shape == (1, 2, 100, 2)
    distance = np.abs(points[..., 0] - 0.5)
    # 75 of 300 candidates: the nearest quarter of them.
    assert distance[:, :, :75].max() < 0.2
    assert 0.2 < distance[:, :, 75:].mean() < 0.3


def test_silog() -> None:
    rng = np.random.default_rng(2)
    depth, truth = rng.uniform(0.5, 3, (2, 2, 4, 5)).astype(np.float32)
    truth[:, 0] = 0
    known = truth > 0
    g = np.log(depth[known] + 1e-3) - np.log(truth[known] + 1e-3)
    wanted = np.sqrt(g.var(ddof=1) + 0.15 * g.mean() ** 2)
    found = dense_losses.silog(jnp.asarray(depth), jnp.asarray(truth))
    assert float(found) == pytest.approx(wanted, rel=1e-5)
    early = dense_losses.silog(jnp.asarray(depth), jnp.asarray(truth), variance_weight=0.0)
    assert float(early) == pytest.approx(np.sqrt(0.15) * abs(g.mean()), rel=1e-5)
    # No NaN where nothing is known, and where what is not known is.
    empty = jax.grad(lambda x: dense_losses.silog(x, jnp.zeros((2, 4, 5))))(jnp.asarray(depth))
    assert not np.any(empty)
    depth[:, 0] = np.nan
    gradient = jax.grad(lambda x: dense_losses.silog(x, jnp.asarray(truth)))(jnp.asarray(depth))
    assert np.isfinite(gradient).all()
