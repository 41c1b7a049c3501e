# SPDX-License-Identifier: Apache-2.0
"""Drawn classes: functions of their numbers, told apart, cut into splits like any dataset."""

import zlib

import cv2
import numpy as np
import pytest

from tests.refusals import refused_by
from vit_jax import data
from vit_jax.data.sources import fractals
from vit_jax.errors import UserError


def pixels(source: data.Source, index: int) -> np.ndarray:
    image = cv2.imdecode(np.frombuffer(source.read(index)["image"], np.uint8), cv2.IMREAD_GRAYSCALE)
    assert image is not None
    return image


def test_an_example_is_a_function_of_its_numbers() -> None:
    source = data.open_source("fractals/5", split="train")
    assert len(source) == 500
    again = data.open_source("fractals/5", split="train[7:9]")
    np.testing.assert_array_equal(pixels(source, 7), pixels(again, 0))
    assert not np.array_equal(pixels(source, 7), pixels(source, 12))  # of the same class
    assert pixels(source, 7).shape == (fractals.SIDE, fractals.SIDE)
    # A run that goes on with another version of this file would see other images.
    assert zlib.crc32(pixels(source, 7).tobytes()) == 2165372037
    assert (
        zlib.crc32(pixels(data.open_source("fractals/5", split="val"), 3).tobytes()) == 1205412402
    )


def test_each_class_fills_its_square_and_is_unlike_the_others() -> None:
    source = data.open_source("fractals/5", split="train")
    assert source.labels is not None
    assert source.labels[:6].tolist() == [0, 1, 2, 3, 4, 0]
    assert source.read(6)["label"] == 1
    shares = np.stack([pixels(source, i) > 0 for i in range(50)])
    assert (shares.mean((1, 2)) > 0.08).all()
    means = np.stack([shares[k::5].mean(0) for k in range(5)])
    nearest = [int(np.abs(means - image).mean((1, 2)).argmin()) for image in shares]
    assert np.mean(np.array(nearest) == source.labels[:50]) > 0.7


def test_points_stay_finite_where_a_parameter_has_grown() -> None:
    rng = np.random.default_rng(0)
    maps = np.array([[1.14, 0.0, 0.0, 1.14, 1.0, 1.0], [0.1, 0.0, 0.0, 0.1, 0.0, 0.0]])
    assert fractals.draw(maps, rng).max() == 255


def test_names_and_splits() -> None:
    assert len(data.open_source("fractals", split="val")) == 1000
    assert len(data.open_source("fractals/5", split="train[:10%]+val")) == 100
    for name in ("fractals/1", "fractals/x", "fractals/20000", "fractals/"):
        with pytest.raises(UserError, match=r"fractals/K, K of 2 to 10,000 classes"):
            data.open_source(name)
    with refused_by("data.sources.partition.absolute_slices"):
        data.open_source("fractals", split="test")
    one, other = (data.open_source("fractals/5", split=split) for split in ("train", "val"))
    assert one.digest() != other.digest()
