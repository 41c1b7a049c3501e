# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.unit.data.augment.test_mix import BOTH
from vit_jax.data import MixConfig, Partner
from vit_jax.data.augment.mix import mix, normalize, targets


def test_normalize_maps_levels_per_channel_and_casts_last():
    image = jnp.asarray([[[[0, 51, 255]]]], jnp.uint8)
    np.testing.assert_allclose(normalize(image, (0.5,), (0.5,))[0, 0, 0], [-1, -0.6, 1], atol=1e-6)
    mean, std = (0.1, 0.2, 0.3), (1.0, 2.0, 0.5)
    np.testing.assert_allclose(normalize(image, mean, std)[0, 0, 0], [-0.1, 0, 1.4], atol=1e-6)
    half = normalize(image, mean, std, jnp.bfloat16)
    assert half.dtype == jnp.bfloat16
    np.testing.assert_array_equal(half, normalize(image, mean, std).astype(jnp.bfloat16))


def test_targets_of_ids_and_of_multi_hot_rows():
    np.testing.assert_allclose(targets(jnp.array([2, 0]), 3), [[0, 0, 1], [1, 0, 0]])
    np.testing.assert_allclose(
        targets(jnp.array([1]), 4, 0.1), [[0.025, 0.925, 0.025, 0.025]], atol=1e-6
    )
    hot = jnp.asarray([[1, 0, 1, 0]], jnp.uint8)
    out = targets(hot, 4, 0.1)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, [[0.925, 0.025, 0.925, 0.025]], atol=1e-6)


def _colours(count, height=12, width=20):
    """Return images of one colour each, with as many channels as images, and their one-hot rows."""
    rows = jnp.eye(count)
    return jnp.broadcast_to(rows[:, None, None], (count, height, width, count)), rows


def _shares(cfg, size, count=2048, key=0):
    """Return per-example masks [count, H, W] of what is left of each image, and target shares."""
    # Two colours: an even example's partner, the one before or the reverse, is an odd one.
    rows = jax.nn.one_hot(jnp.arange(count) % 2, 2)
    images = jnp.broadcast_to(rows[:, None, None], (count, *size, 2))
    mixed, target = jax.jit(mix, static_argnums=3)(jax.random.key(key), images, rows, cfg)
    own = np.arange(count) % 2
    return np.asarray(mixed)[np.arange(count), :, :, own], np.asarray(target)[np.arange(count), own]


def _assert_same_law(a, b):
    """Two-sample Kolmogorov-Smirnov test at 1 in 1000."""
    a, b = np.float64(a).round(5), b.round(5)
    at = np.concatenate([a, b])
    cdf = [np.searchsorted(np.sort(x), at, side="right") / len(x) for x in (a, b)]
    assert np.abs(cdf[0] - cdf[1]).max() < 1.95 * np.sqrt(1 / len(a) + 1 / len(b))


@pytest.mark.parametrize(
    "cfg",
    [
        MixConfig(cutmix_alpha=1.0),
        MixConfig(**BOTH, prob=0.6, switch_prob=0.3, partner=Partner.REVERSED),
        MixConfig(**BOTH, prob=0.6, switch_prob=0.3, per_example=True),
    ],
    ids=["cutmix", "batch", "per_example"],
)
def test_targets_are_the_shares_of_the_pixels(cfg):
    images, rows = _colours(8)
    keys = jax.random.split(jax.random.key(1), 500)
    mixed, target = jax.jit(jax.vmap(lambda key: mix(key, images, rows, cfg)))(keys)
    mixed, target = np.float64(mixed), np.float64(target)
    np.testing.assert_allclose(mixed.mean(axis=(2, 3)), target, atol=1e-6)
    other = np.eye(8)[::-1] if cfg.partner is Partner.REVERSED else np.roll(np.eye(8), 1, axis=0)
    share = np.diagonal(target, axis1=1, axis2=2)
    wanted = share[..., None] * np.eye(8) + (1 - share[..., None]) * other
    np.testing.assert_allclose(target, wanted, atol=1e-6)

    blended = (mixed % 1 > 0).any(axis=(2, 3, 4)) * 1
    boxed = (blended == 0) & (share < 1)
    if cfg.per_example:
        assert np.ptp(share, axis=1).min() > 0
        assert np.ptp(blended, axis=1).mean() > 0.9
    else:
        assert np.ptp(share, axis=1).max() == np.ptp(blended, axis=1).max() == 0
    # One box in 36 is empty: of a side of 12 that is below 2.
    of_boxes = 1.0 if not cfg.mixup_alpha else 0.6 * 0.3
    assert abs(boxed.mean() - of_boxes * 35 / 36) < 0.05
    assert abs(blended.mean() - (0.6 * 0.7 if cfg.mixup_alpha else 0)) < 0.05

    kept = mixed[:, np.arange(8), :, :, np.arange(8)].swapaxes(0, 1)[boxed]
    pasted = 1 - kept
    assert set(np.unique(pasted)) == {0, 1}
    box = pasted.max(axis=2)[:, :, None] * pasted.max(axis=1)[:, None, :]
    np.testing.assert_array_equal(pasted, box)


def test_mixup_draws_what_it_always_drew():
    # The numbers of the digits run rest on these bits.
    images, rows = _colours(4)
    cfg = MixConfig(mixup_alpha=0.5)
    for key in jax.random.split(jax.random.key(0), 5):
        weight = jax.random.beta(key, 0.5, 0.5, dtype=jnp.float32)
        weight = jnp.maximum(weight, 1 - weight)
        _, target = mix(key, images, rows, cfg)
        np.testing.assert_array_equal(target, weight * rows + (1 - weight) * jnp.roll(rows, 1, 0))


@pytest.mark.parametrize("partner", list(Partner))
def test_law_of_the_share_of_mixup(partner):
    cfg = MixConfig(mixup_alpha=0.5, per_example=True, partner=partner)
    _, share = _shares(cfg, (1, 1))
    drawn = np.random.default_rng(0).beta(0.5, 0.5, 20_000)
    previous = partner is Partner.PREVIOUS
    _assert_same_law(share, np.maximum(drawn, 1 - drawn) if previous else drawn)


def _boxes_by_definition(alpha, height, width, count):
    """Return masks of what timm's rand_bbox leaves of images."""
    rng = np.random.default_rng(0)
    masks = np.ones((count, height, width))
    for mask in masks:
        ratio = np.sqrt(1 - rng.beta(alpha, alpha))
        tall, broad = int(height * ratio), int(width * ratio)
        y, x = rng.integers(height), rng.integers(width)
        top, bottom = np.clip([y - tall // 2, y + tall // 2], 0, height)
        left, right = np.clip([x - broad // 2, x + broad // 2], 0, width)
        mask[top:bottom, left:right] = 0
    return masks


def test_law_of_the_boxes_of_cutmix():
    size = (8, 16)  # centres drawn from one key would agree, modulo 8
    kept, share = _shares(MixConfig(cutmix_alpha=1.0, per_example=True), size)
    wanted = _boxes_by_definition(1.0, *size, 8192)
    # The share of an image is not the larger of the two here.
    _assert_same_law(share, wanted.mean(axis=(1, 2)))
    # How often a pixel is replaced, over the image: a standard error is 0.01.
    np.testing.assert_allclose(kept.mean(axis=0), wanted.mean(axis=0), atol=0.045)
