# SPDX-License-Identifier: Apache-2.0
"""What every augmentation policy keeps, and how the forms are read."""

import numpy as np
import pytest

from vit_jax.data.augment import parse
from vit_jax.errors import UserError

FORMS = [
    "randaug(2,10)",
    "rand-m9-mstd0.5-inc1",
    "rand-m10-n3-mstd101-p1",
    "3-augment",
    "dino-blur0.1-solarize0.2",
    "autoaugment(imagenet)",
    "autoaugment(cifar10)",
]


@pytest.mark.parametrize("form, count", list(zip(FORMS, [16, 15, 15, 3, 7, 25, 25], strict=True)))
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
        *("randaug", "randaug(2)", "rand(2,10)", "x", "rands-m9"),
        *(
            "3-augment-m1",
            "dino(blur)",
            "autoaugment",
            "autoaugment(svhn)",
            "autoaugment(imagenet) ",
        ),
    ],
)
def test_an_unknown_policy_is_one_line_with_every_form(text):
    with pytest.raises(UserError) as caught:
        parse(text)
    message = str(caught.value)
    assert repr(text) in message
    assert len(message.splitlines()) == 1
    known = ("randaug(", "rand-m9-mstd0.5-inc1", "3-augment", "dino-blur0.5-solarize0.2")
    assert all(form in message for form in (*known, "autoaugment(imagenet)", "(cifar10)"))


@pytest.mark.parametrize(
    "text, told",
    [
        ("randaug(2,99)", "MAGNITUDE=99 must be in 0..30"),
        ("randaug(0,9)", "OPS=0 must be in 1..16"),
        ("randaug(17,9)", "OPS=17 must be in 1..16"),
        ("rand-m9-q1", "no key 'q1'; keys: m, n, mstd, mmax, inc, p"),
        ("rand-m9-m8", "key 'm' is given twice"),
        ("rand-m", "m= must be a whole number in 0..30"),
        ("rand-m31", "m=31 must be a whole number in 0..30"),
        ("rand-m9.5", "m=9.5 must be a whole number in 0..30"),
        ("rand-n0", "n=0 must be a whole number in 1..16"),
        ("rand-n17", "n=17 must be a whole number in 1..16"),
        ("rand-mstd-1", "mstd= must be a number from 0"),
        ("rand-mmax0", "mmax=0 must be a whole number in 1..30"),
        ("rand-inc2", "inc=2 must be 0 or 1"),
        ("rand-p0", "p=0 must be above 0 and at most 1"),
        ("rand-p1.5", "p=1.5 must be above 0 and at most 1"),
        ("rand-", "no key ''"),
        ("rand--m9", "no key ''"),
    ],
)
def test_what_is_wrong_in_a_known_form_is_named(text, told):
    with pytest.raises(UserError) as caught:
        parse(text)
    assert str(caught.value).startswith(f"auto_augment={text!r}: {told}")


def test_no_text_is_no_policy():
    assert parse("") is None
