# SPDX-License-Identifier: Apache-2.0
"""Logits become what the loss that trained them makes of them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import data, models
from vit_jax.devices import hardware
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


def test_a_cpus_core_takes_eight_images_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "num_cores", lambda: 3)
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    assert forward._piece((256, 224, 224, 3)) == 24
    assert forward._piece((256, 448, 448, 3)) == 6
    assert forward._piece((256, 8, 8, 1)) == 24 * 224 * 224 * 3 / 64  # all of a small batch
    assert forward._piece((2, 5000, 5000, 3)) == 1
    monkeypatch.setattr(jax, "device_count", lambda: 2)  # each has its own share of a batch
    assert forward._piece((256, 224, 224, 3)) is None


def test_pieces_of_a_batch_and_what_is_left_give_what_the_batch_gives() -> None:
    seen = []

    def apply(image: jax.Array, grids: jax.Array) -> models.Output:
        seen.append(len(image))
        rows = image.mean((1, 2)) + grids
        return models.Output(logits=rows, features=None, tokens=image[:, 0], aux={"a": rows * 2})

    images = jax.random.normal(jax.random.key(1), (11, 4, 4, 2))
    grids = jnp.arange(22.0).reshape(11, 2)
    expected = apply(images, grids)
    for count, sizes in ((11, [4, 3]), (8, [4]), (4, [4]), (3, [3])):
        seen.clear()
        found = forward._in_pieces(apply, (images[:count], grids[:count]), 4)
        assert sorted(set(seen), reverse=True) == sizes
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other[:count], atol=1e-6)
