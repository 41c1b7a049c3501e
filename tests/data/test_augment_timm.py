# SPDX-License-Identifier: Apache-2.0
"""timm's RandAugment: arguments against its own, draws by their distribution.

tests/golden/ra_args.json holds timm's arguments at magnitude 9 without a sign, by its names.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from vit_jax.data.augment import parse, timm_randaug
from vit_jax.data.augment.timm_randaug import TimmRandAugment, argument

GOLDEN = Path(__file__).parent.parent / "golden" / "ra_args.json"
ENHANCING = {"Color", "Contrast", "Brightness", "Sharpness"}
MOVING = {"Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY"}


def test_arguments_at_magnitude_9_are_timms():
    published = json.loads(GOLDEN.read_text())
    names = [name.removesuffix("Increasing").removesuffix("Rel") for name in published]
    assert list(timm_randaug.OPERATIONS) == names
    for name, values in zip(names, published.values(), strict=True):
        value = values[0] if values else 0.0
        for sign in (-1, 1):
            signed = sign * value if name in MOVING else value
            expected = max(0.1, 1 + sign * value) if name in ENHANCING else signed
            assert argument(name, 9.0, sign, True) == pytest.approx(expected, rel=1e-12), name


@pytest.mark.parametrize(
    "name, magnitude, increasing, expected",
    [
        ("Posterize", 9.0, False, 3),
        ("Posterize", 0.0, True, 4),
        ("Posterize", 25.0, False, 10),
        ("Solarize", 9.0, False, 230),
        ("Solarize", 30.0, False, 256),
        ("Solarize", 30.0, True, 0),
        ("SolarizeAdd", 30.0, True, 128),
        ("Color", 9.0, False, 1.72),
        ("Sharpness", 0.0, False, 0.1),
        ("Rotate", 9.0, False, -27),
    ],
)
def test_arguments_elsewhere(name, magnitude, increasing, expected):
    assert argument(name, magnitude, -1, increasing) == pytest.approx(expected)


def test_enhancing_goes_both_ways_from_no_change_and_never_below_a_tenth():
    assert argument("Color", 4.0, 1, True) == pytest.approx(1.36)
    assert argument("Color", 4.0, -1, True) == pytest.approx(0.64)
    assert argument("Color", 20.0, -1, True) == 0.1


def test_keys_and_defaults_are_timms():
    deit = parse("rand-m9-mstd0.5-inc1", (124, 116, 104))
    assert deit == TimmRandAugment(9, 2, 0.5, 10, True, 0.5, (124, 116, 104))
    assert parse("rand") == TimmRandAugment(10, 2, 0.0, 10, False, 0.5, (128,))
    every = parse("rand-p1-inc0-n3-mmax20-mstd101-m15")
    assert every == TimmRandAugment(15, 3, 101.0, 20, False, 1.0, (128,))


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
