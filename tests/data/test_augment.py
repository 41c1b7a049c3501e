# SPDX-License-Identifier: Apache-2.0
"""What every augmentation policy keeps, and how the forms are read."""

import pickle

import numpy as np
import pytest

from vit_jax.data.augment import Policy, parse
from vit_jax.errors import UserError

FORMS = [
    "randaug(2,10)",
    "rand-m9-mstd0.5-inc1",
    "rand-m10-n3-mstd101-p1",
    "3-augment",
    "autoaugment(imagenet)",
    "autoaugment(cifar10)",
]


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


@pytest.mark.parametrize("form, count", zip(FORMS, [16, 15, 15, 3, 25, 25], strict=True))
def test_every_part_is_applied_when_called(form, count, photo):
    image = np.ascontiguousarray(photo[100:164, 200:264])
    parts = parse(form, (124, 116, 104)).parts()
    assert len(parts) == count
    unchanged = []
    for name, part in parts.items():
        out = part(image, np.random.default_rng(3))
        assert (out.shape, out.dtype) == (image.shape, np.uint8)
        if np.array_equal(out, image):
            unchanged.append(name)
    # Solarize at threshold 256 does nothing, autocontrast nothing to an image of all levels.
    assert set(unchanged) <= {"Solarize", "AutoContrast", "Posterize"}, unchanged


@pytest.mark.parametrize(
    "text",
    [
        *("randaug", "randaug(2)", "randaug(2,99)", "randaug(0,9)", "rand(2,10)", "x"),
        *("rand-m9-q1", "rand-m", "rand-m9-m8", "rand-m31", "rand-inc2", "rand-n0", "rand-p0"),
        *("rand-p1.5", "rand-mmax0", "rand-m9.5", "rand-", "rand--m9", "rands-m9"),
        *("3-augment-m1", "autoaugment", "autoaugment(svhn)", "autoaugment(imagenet) "),
    ],
)
def test_an_unknown_policy_is_one_line_with_every_form(text):
    with pytest.raises(UserError) as caught:
        parse(text)
    message = str(caught.value)
    assert repr(text) in message
    assert len(message.splitlines()) == 1
    known = ("randaug(", "rand-m9-mstd0.5-inc1", "3-augment", "autoaugment(imagenet)", "(cifar10)")
    assert all(form in message for form in known)


def test_no_text_is_no_policy():
    assert parse("") is None
