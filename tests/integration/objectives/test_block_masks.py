# SPDX-License-Identifier: Apache-2.0
"""Block masks against a plain loop with the same draws, on one device and on eight."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.objectives.hiding import block_masks, gathered, mask_counts

KEY, GRID = jax.random.key(3), (14, 14)
ASPECT = (0.3, 1 / 0.3)

masks_of = jax.jit(block_masks, static_argnums=(1, 2, 4, 5))
draws = jax.jit(lambda key, number: jax.random.uniform(jax.random.fold_in(key, number), (4,)))


def plain_blocks(key, count, grid, min_patches, aspect):
    """Return the mask of blocks alone, and how many were accepted and refused."""
    rows, columns = grid
    mask = np.zeros(grid, bool)
    tried = accepted = 0

    def add_block(remain):
        nonlocal tried
        for _ in range(10):
            tried += 1
            area, log_aspect, top, left = np.float64(draws(key, tried))
            target = min_patches + area * (remain - min_patches)
            ratio = aspect[0] * (aspect[1] / aspect[0]) ** log_aspect
            height, width = round(np.sqrt(target * ratio)), round(np.sqrt(target / ratio))
            if height >= rows or width >= columns:
                continue
            top, left = int(top * (rows - height + 1)), int(left * (columns - width + 1))
            window = mask[top : top + height, left : left + width]
            new = window.size - window.sum()
            if 0 < new <= remain:
                window[:] = True
                return new
        return 0

    while (remain := count - mask.sum()) > 0:
        if not add_block(remain):
            break
        accepted += 1
    return mask.reshape(-1), accepted, tried - accepted


@pytest.mark.parametrize(
    "grid, images, min_patches, aspect",
    [
        ((14, 14), 12, 4, ASPECT),
        ((6, 9), 12, 4, ASPECT),
        ((9, 6), 12, 2, (0.5, 3.0)),
        ((3, 3), 200, 4, ASPECT),  # some blocks are accepted at the last of ten tries
    ],
)
def test_blocks_are_those_of_a_plain_loop_and_completed(grid, images, min_patches, aspect):
    size = grid[0] * grid[1]
    counts = np.linspace(0, 0.6 * size, images).astype(np.int32)
    masks = np.asarray(masks_of(KEY, images, grid, jnp.asarray(counts), min_patches, aspect))
    np.testing.assert_array_equal(masks.sum(axis=1), counts)
    all_refused = 0
    for image, (mask, count) in enumerate(zip(masks, counts, strict=True)):
        key = jax.random.fold_in(KEY, image)
        blocks, accepted, refused = plain_blocks(key, count, grid, min_patches, aspect)
        assert not np.any(blocks & ~mask)
        assert accepted > 0 or count == 0 or refused == 10
        all_refused += refused
        # The completion has the smallest of the noise where no block is.
        noise = np.where(blocks, 2.0, jax.random.uniform(jax.random.fold_in(key, 0), (size,)))
        rest = np.argsort(noise, kind="stable")[: count - blocks.sum()]
        np.testing.assert_array_equal(np.flatnonzero(mask & ~blocks), np.sort(rest))
    assert all_refused > 0  # else this says nothing about refusals


def test_every_count_is_exact():
    counts = np.arange(197, dtype=np.int32)
    masks = masks_of(KEY, 197, GRID, jnp.asarray(counts))
    assert masks.shape == (197, 196)
    np.testing.assert_array_equal(masks.sum(axis=1), counts)


def test_masked_patches_lie_side_by_side():
    masks = masks_of(KEY, 64, GRID, jnp.full(64, 60, jnp.int32))
    images = np.asarray(masks).reshape(64, 14, 14)
    beside = (images[:, :, 1:] & images[:, :, :-1]).sum() / images[:, :, 1:].sum()
    below = (images[:, 1:] & images[:, :-1]).sum() / images[:, 1:].sum()
    # Where 60 of 196 patches are drawn one by one, 30 % of neighbours are masked too.
    assert min(beside, below) > 0.6
    # Each place is as often masked as its mirror image, and the rows as often as the columns.
    often = images.mean(axis=0)
    halves = [often[:7], often[7:], often[:, :7], often[:, 7:]]
    np.testing.assert_allclose([half.mean() for half in halves], 60 / 196, atol=0.06)


def test_a_mask_depends_on_the_key_its_place_and_its_count_alone():
    counts = jnp.asarray([20, 50, 98, 0, 64, 33, 80, 12], jnp.int32)
    masks = masks_of(KEY, 8, GRID, counts)
    fewer = masks_of(KEY, 3, GRID, counts[:3])
    np.testing.assert_array_equal(fewer, masks[:3])
    others = masks_of(KEY, 8, GRID, counts.at[:4].set(90))
    np.testing.assert_array_equal(others[4:], masks[4:])
    same = np.asarray(masks_of(KEY, 8, GRID, jnp.full(8, 50, jnp.int32)))
    assert len({mask.tobytes() for mask in same}) == 8
    again = np.asarray(masks_of(jax.random.key(4), 8, GRID, counts))
    assert (again != masks)[np.asarray(counts) > 0].any(axis=1).all()


@pytest.mark.parametrize("devices", [1, 8])
def test_one_program_draws_what_single_calls_draw(devices):
    counts = mask_counts(KEY, 16, 196)
    masks = block_masks(KEY, 16, GRID, counts)
    index, weights = gathered(masks, 98)
    mesh = jax.make_mesh(
        (devices,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices]
    )
    spread = NamedSharding(mesh, P("data"))

    @jax.jit
    def draw(key, counts):
        masks = jax.lax.with_sharding_constraint(block_masks(key, 16, GRID, counts), spread)
        return masks, *gathered(masks, 98)

    found = draw(KEY, jax.device_put(counts, spread))
    assert len(found[0].sharding.device_set) == devices
    np.testing.assert_array_equal(found[0], masks)
    np.testing.assert_array_equal(found[1], index)
    np.testing.assert_allclose(found[2], weights, rtol=1e-6)
    np.testing.assert_array_equal(found[0].sum(axis=1), counts)
