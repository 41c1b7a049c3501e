# SPDX-License-Identifier: Apache-2.0
"""AutoAugment: tables against torchvision's, levels against the paper's ranges.

tests/golden/autoaugment.json holds torchvision's tables, where None is an operation with no level.
"""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from vit_jax.data.augment import autoaugment, parse

GOLDEN = Path(__file__).parent.parent / "golden" / "autoaugment.json"
NAMES = ("imagenet", "cifar10")


@pytest.mark.parametrize("name", NAMES)
def test_the_tables_are_the_published_ones(name):
    published = json.loads(GOLDEN.read_text())[name]
    ours = [
        [[step.name, step.prob, step.level] for step in steps]
        for steps in parse(f"autoaugment({name})").sub_policies
    ]
    assert len(ours) == 25
    assert ours == published


@pytest.mark.parametrize(
    "name, low, high",
    [
        ("Rotate", 0, -30),
        ("ShearX", 0, -0.3),
        ("ShearY", 0, -0.3),
        ("TranslateX", 0, -150 / 331),
        ("TranslateY", 0, -150 / 331),
        ("Solarize", 0, 256),
        ("Posterize", 4, 8),
        ("Color", 0.1, 1.9),
        ("Contrast", 0.1, 1.9),
        ("Brightness", 0.1, 1.9),
        ("Sharpness", 0.1, 1.9),
    ],
)
def test_ten_levels_span_the_papers_range(name, low, high):
    values = [autoaugment.argument(name, level, -1) for level in range(10)]
    whole = 0.5 if name in ("Solarize", "Posterize") else 1e-12
    np.testing.assert_allclose(values, np.linspace(low, high, 10), atol=whole)


@pytest.mark.parametrize("name", NAMES)
def test_sub_policies_are_drawn_evenly_and_their_operations_by_probability(name, monkeypatch):
    seen = []

    def operate(name, picture, value, fill, resample):
        assert (fill, resample.name) == ((9,), "NEAREST")
        seen.append((name, value))
        return picture

    monkeypatch.setattr(autoaugment, "operate", operate)
    policy, rng = parse(f"autoaugment({name})", (9,)), np.random.default_rng(0)
    for _ in range(5000):
        policy(np.zeros((1, 1, 3), np.uint8), rng)
    expected = Counter()
    for steps in policy.sub_policies:
        for step in steps:
            expected[step.name] += 5000 / 25 * step.prob
    counts = Counter(operation for operation, _ in seen)
    assert set(counts) == {key for key, value in expected.items() if value}
    for operation, count in counts.items():
        assert count == pytest.approx(expected[operation], abs=5 * expected[operation] ** 0.5)
    turned = [np.sign(value) for operation, value in seen if operation == "Rotate"]
    assert abs(np.mean(turned)) < 0.15
