# SPDX-License-Identifier: Apache-2.0
"""Operations and tables beside timm's and torchvision's own."""

import json
import random
from typing import Any

import numpy as np
import pytest

from tests.parity import torch_models  # noqa: F401  (before torchvision: it skips, or mends it)
from vit_jax.data.augment import parse, timm_randaug
from vit_jax.data.augment.pillow import Resampling, from_pillow, operate, to_pillow
from vit_jax.data.augment.timm_randaug import argument

FILL = (124, 116, 104)


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    from sklearn.datasets import load_sample_image

    return np.ascontiguousarray(load_sample_image("china.jpg")[100:164, 200:280])


def timms(name: str, increasing: bool) -> str:
    if name.startswith("Translate"):
        return name + "Rel"
    changed = {"Posterize", "Solarize", "Color", "Contrast", "Brightness", "Sharpness"}
    return name + "Increasing" if increasing and name in changed else name


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("increasing", [False, True])
@pytest.mark.parametrize("name", timm_randaug.OPERATIONS)
def test_every_operation_gives_timms_pixels(
    name: str, increasing: bool, channels: int, photo: np.ndarray, monkeypatch: Any
) -> None:
    from timm.data import auto_augment

    picture = to_pillow(photo[..., :channels])
    fill = FILL[:channels]
    hparams = {"img_mean": fill if channels == 3 else fill[0]}
    hparams["interpolation"] = Resampling.BICUBIC
    for magnitude in (2.5, 5.0, 9.0, 9.7):
        for sign in (-1, 1):
            value = argument(name, magnitude, sign, increasing)
            if name == "Posterize" and value == 0:
                continue  # an error of timm's with a Pillow of today
            op = auto_augment.AugmentOp(timms(name, increasing), 1.0, magnitude, hparams)
            monkeypatch.setattr(random, "random", lambda sign=sign: 0.5 - sign / 4)
            expected = op(picture)
            ours = from_pillow(operate(name, picture, value, fill, Resampling.BICUBIC))
            np.testing.assert_array_equal(ours, from_pillow(expected), err_msg=f"{magnitude}")


def test_the_names_are_timms() -> None:
    from timm.data import auto_augment

    for increasing in (False, True):
        theirs = auto_augment.rand_augment_choices("", increasing=increasing)
        assert [timms(name, increasing) for name in timm_randaug.OPERATIONS] == theirs


def test_autoaugments_tables_are_timms_and_torchvisions() -> None:
    from timm.data.auto_augment import auto_augment_policy
    from torchvision.transforms.autoaugment import AutoAugment, AutoAugmentPolicy

    unread = {"AutoContrast", "Equalize", "Invert"}
    rows = {
        "imagenet": [
            [(op.name.removesuffix("Original"), op.prob, op.magnitude) for op in row]
            for row in auto_augment_policy("original")
        ],
        "cifar10": AutoAugment(AutoAugmentPolicy.CIFAR10).policies,
    }
    for name, theirs in rows.items():
        ours = [
            [(step.name, step.prob, step.level) for step in steps]
            for steps in parse(f"autoaugment({name})").sub_policies  # pyright: ignore
        ]
        read = [[(n, p, None if n in unread else k) for n, p, k in row] for row in theirs]
        assert json.dumps(ours) == json.dumps(read)
