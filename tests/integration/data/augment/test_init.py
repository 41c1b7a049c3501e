# SPDX-License-Identifier: Apache-2.0
"""What every augmentation policy keeps, and how the forms are read."""

import pickle

import numpy as np
import pytest

from tests.unit.data.augment.test_init import FORMS
from vit_jax.data.augment import Policy, parse


@pytest.mark.parametrize("shape", [(8, 8, 3), (8, 8, 1), (13, 7, 3), (1, 1, 3), (33, 21, 1)])
@pytest.mark.parametrize("form", FORMS)
def test_shape_type_input_and_the_generator_are_kept(form, shape):
    policy = parse(form, (120,))
    assert isinstance(policy, Policy)
    image = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    before, changed = image.copy(), 0
    again = pickle.loads(pickle.dumps(policy))
    for seed in range(30):
        out = policy(image, np.random.default_rng(seed))
        assert (out.shape, out.dtype) == (shape, np.uint8)
        np.testing.assert_array_equal(image, before)
        np.testing.assert_array_equal(out, again(image, np.random.default_rng(seed)))
        changed += not np.array_equal(out, image)
    assert changed > 5 or shape == (1, 1, 3)
