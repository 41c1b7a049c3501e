# SPDX-License-Identifier: Apache-2.0
"""timm's RandAugment: arguments against its own, draws by their distribution.

tests/golden/ra_args.json holds timm's arguments at magnitude 9 without a sign, by its names.
"""

import numpy as np
import pytest

from vit_jax.data.augment import parse, timm_randaug


@pytest.fixture
def drawn(monkeypatch):
    """What a policy would do: (name, argument) of every operation, and the fill."""
    seen = []

    def operate(name, picture, value, fill, resample):
        seen.append((name, value, fill, resample.name))
        return picture

    monkeypatch.setattr(timm_randaug, "operate", operate)

    def run(text, times=3000):
        seen.clear()
        policy, rng = parse(text, (1, 2, 3)), np.random.default_rng(0)
        for _ in range(times):
            policy(np.zeros((1, 1, 3), np.uint8), rng)
        return seen

    return run


def test_operations_are_drawn_evenly_and_applied_with_their_probability(drawn):
    seen = drawn("rand-m9-n3-p0.2")
    assert len(seen) == pytest.approx(3000 * 3 * 0.2, rel=0.08)
    names, counts = np.unique([name for name, *_ in seen], return_counts=True)
    assert set(names) == set(timm_randaug.OPERATIONS)
    np.testing.assert_allclose(counts, len(seen) / 15, rtol=0.35)
    assert {fill for *_, fill, _ in seen} == {(1, 2, 3)}
    assert {resample for *_, resample in seen} == {"BICUBIC"}


def magnitudes(seen):
    signed = np.array([value / 3 for name, value, *_ in seen if name == "Rotate"])
    assert abs(np.sign(signed).mean()) < 0.1
    return abs(signed)


def test_the_magnitude_is_fixed_normal_or_uniform_and_clipped(drawn):
    assert magnitudes(drawn("rand-m9-p1")) == pytest.approx(9.0)
    normal = magnitudes(drawn("rand-m5-mstd0.5-p1", 6000))
    assert normal.mean() == pytest.approx(5, abs=0.1)
    assert normal.std() == pytest.approx(0.5, rel=0.1)
    clipped = magnitudes(drawn("rand-m9-mstd2-p1"))
    assert clipped.max() == pytest.approx(10.0)
    assert (clipped > 9.99).mean() == pytest.approx(0.31, abs=0.06)  # P(N(9, 2) > 10)
    assert magnitudes(drawn("rand-m0-mstd1-p1")).min() == 0.0
    uniform = magnitudes(drawn("rand-m8-mstd101-p1", 6000))
    np.testing.assert_allclose(np.quantile(uniform, [0, 0.25, 0.5, 1]), [0, 2, 4, 8], atol=0.4)
    assert magnitudes(drawn("rand-m15-mmax20-p1")) == pytest.approx(15.0)
    assert magnitudes(drawn("rand-m15-p1")) == pytest.approx(10.0)  # as timm clips it
