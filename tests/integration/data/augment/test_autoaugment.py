# SPDX-License-Identifier: Apache-2.0
"""AutoAugment: tables against torchvision's, levels against the paper's ranges.

tests/golden/autoaugment.json holds torchvision's tables, where None is an operation with no level.
"""

from collections import Counter

import numpy as np
import pytest

from tests.unit.data.augment.test_autoaugment import NAMES
from vit_jax.data.augment import autoaugment, parse


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
