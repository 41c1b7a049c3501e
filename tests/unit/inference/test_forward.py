# SPDX-License-Identifier: Apache-2.0
"""Logits become what the loss that trained them makes of them."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import data, models
from vit_jax.inference import forward
from vit_jax.inference.forward import make_apply, make_predict, probabilities
from vit_jax.inference.trained import Trained, Tta
from vit_jax.models.losses import Loss

LOGITS = np.array([[0.0, np.log(3.0)]], np.float32)


def test_softmax_is_of_one_class_and_sigmoid_of_each_alone() -> None:
    np.testing.assert_allclose(probabilities(LOGITS, Loss.SOFTMAX), [[0.25, 0.75]], rtol=1e-6)
    for loss in (Loss.SIGMOID, Loss.BCE):
        np.testing.assert_allclose(probabilities(LOGITS, loss), [[0.5, 0.75]], rtol=1e-6)


def test_copies_are_the_image_its_mirror_and_four_shifts() -> None:
    image = np.arange(2 * 32 * 16, dtype=np.uint8).reshape(2, 32, 16, 1)
    copies = np.asarray(forward._copies(image, (Tta.FLIP, Tta.SHIFT)))
    assert copies.shape == (10, *image.shape)
    np.testing.assert_array_equal(copies[0], image)
    np.testing.assert_array_equal(copies[5:], copies[:5, :, :, ::-1])
    # 32 rows move by 2, 16 columns by 1; where the image moves down, its first row is repeated.
    np.testing.assert_array_equal(copies[1][:, 2:, 1:], image[:, :-2, :-1])
    np.testing.assert_array_equal(copies[1][:, 0, 1:], image[:, 0, :-1])
    np.testing.assert_array_equal(copies[4][:, :-2, :-1], image[:, 2:, 1:])


@pytest.mark.parametrize("loss", [Loss.SOFTMAX, Loss.SIGMOID])
def test_the_mean_is_that_of_the_probabilities(loss: Loss, monkeypatch: pytest.MonkeyPatch) -> None:
    def apply(variables: object, image: jnp.ndarray) -> models.Output:
        pixels = image[:, 0, :2, 0].astype(jnp.float32)
        return models.Output(logits=pixels, features=pixels, tokens=None)

    monkeypatch.setattr(forward, "_apply", lambda *_: apply)
    image = np.zeros((1, 4, 4, 1), np.uint8)
    image[0, 0, :, 0] = 2, 0, 1, 3
    plain = Trained(
        ref="",
        source="",
        model=models.variant("vit_mu16"),
        mean=(0.5,),
        std=(0.5,),
        transform=data.TransformConfig(),
        class_names=(),
        loss=loss,
    )
    flipped = dataclasses.replace(plain, tta=(Tta.FLIP,))
    found = make_predict(flipped)({}, {"image": image})
    each = [probabilities(np.array([pair], np.float32), loss) for pair in ([2, 0], [3, 1])]
    np.testing.assert_allclose(probabilities(found, loss), sum(each) / 2, rtol=1e-5)
    np.testing.assert_array_equal(make_apply(flipped)({}, image).features, [[2, 0]])
