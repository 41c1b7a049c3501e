# SPDX-License-Identifier: Apache-2.0
"""AutoAugment: tables against torchvision's, levels against the paper's ranges.

tests/golden/autoaugment.json holds torchvision's tables, where None is an operation with no level.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from vit_jax.data.augment import autoaugment, parse

GOLDEN = Path(__file__).parents[3] / "golden" / "autoaugment.json"
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
