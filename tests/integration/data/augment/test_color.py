# SPDX-License-Identifier: Apache-2.0
"""Colour jitter and 3-Augment: what is drawn, and what it does."""

import itertools

import numpy as np
import pytest

from tests.unit.data.augment.test_color import RNG
from vit_jax.data.augment import parse, pillow
from vit_jax.data.augment.pillow import jitter


@pytest.mark.parametrize("strength", [0.3, 1.5])
def test_every_factor_is_uniform_around_one_and_the_order_is_random(monkeypatch, strength):
    drawn = []

    def record(name):
        def enhancer(picture):
            class Enhance:
                def enhance(self, factor):
                    drawn[-1].append((name, factor))
                    return picture

            return Enhance()

        return enhancer

    monkeypatch.setattr(pillow, "_ENHANCERS", tuple(record(n) for n in "bcs"))
    rng = RNG(0)
    for _ in range(1200):
        drawn.append([])
        jitter(np.zeros((2, 2, 3), np.uint8), strength, rng)
    orders = ["".join(name for name, _ in row) for row in drawn]
    for order in itertools.permutations("bcs"):
        assert orders.count("".join(order)) == pytest.approx(200, abs=60)
    low = max(0.0, 1 - strength)
    for name in "bcs":
        factors = [dict(row)[name] for row in drawn]
        wanted = np.linspace(low, 1 + strength, 5)
        got = np.quantile(factors, [0, 0.25, 0.5, 0.75, 1])
        np.testing.assert_allclose(got, wanted, atol=0.1 * strength)
        assert low <= min(factors)


def test_three_augment_is_one_of_three_as_likely(photo):
    cut = np.ascontiguousarray(photo[100:132, 200:240])
    policy, counts, rng = parse("3-augment"), {"grey": 0, "solarized": 0, "blurred": 0}, RNG(0)
    luma = cut @ np.array([0.299, 0.587, 0.114])
    for _ in range(900):
        out = policy(cut, rng)
        if (out[..., :1] == out).all():
            counts["grey"] += 1
            np.testing.assert_allclose(out[..., 0], luma, atol=1)
        elif (out == np.where(cut < 128, cut, 255 - cut)).all():
            counts["solarized"] += 1
        else:
            counts["blurred"] += 1
            assert abs(out.mean() - cut.mean()) < 2
    assert min(counts.values()) > 250
