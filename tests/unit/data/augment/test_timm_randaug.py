# SPDX-License-Identifier: Apache-2.0
"""timm's RandAugment: arguments against its own, draws by their distribution.

tests/golden/ra_args.json holds timm's arguments at magnitude 9 without a sign, by its names.
"""

import json
from pathlib import Path

import pytest

from vit_jax.data.augment import parse, timm_randaug
from vit_jax.data.augment.timm_randaug import TimmRandAugment, argument

GOLDEN = Path(__file__).parents[3] / "golden" / "ra_args.json"
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
