# SPDX-License-Identifier: Apache-2.0
import cv2
import numpy as np
import pytest

from tests.unit.data.conftest import encode
from tests.unit.data.stream.test_transform import run
from vit_jax.data.config import Crop, Resize
from vit_jax.data.stream import transform as module


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "crop", [c for c in Crop if c not in (Crop.NONE, Crop.NATIVE, Crop.NATIVE_RANDOM)]
)
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_every_crop_gives_the_size_asked_for(photo, crop, channels, form):
    data = encode(photo, form)
    for resize in Resize:
        out = run(data, size=(48, 80), channels=channels, crop=crop, resize=resize, flip=True)
        assert out.shape == (48, 80, channels)
        assert out.dtype == np.uint8
        assert out.std() > 10


@pytest.mark.parametrize("resize", [Resize.AREA, Resize.BICUBIC, Resize.BILINEAR_ANTIALIAS])
def test_a_large_jpeg_decoded_at_a_fraction_gives_nearly_the_same_crop(photo, resize, monkeypatch):
    data = encode(cv2.resize(photo, (2400, 1600), interpolation=cv2.INTER_CUBIC), "JPEG")
    sizes = []
    decode = module.decode

    def watched(*args, **fields):
        sizes.append(decode(*args, **fields).shape)
        return decode(*args, **fields)

    monkeypatch.setattr(module, "decode", watched)
    fields = {"crop": Crop.RANDOM_RESIZED, "resize": resize}
    small = [run(data, seed, **fields) for seed in range(8)]
    assert min(s[0] for s in sizes) <= 800
    monkeypatch.setattr(module, "jpeg_size", lambda data: None)
    full = [run(data, seed, **fields) for seed in range(8)]
    assert sizes[-1] == (1600, 2400, 3)
    assert np.abs(np.array(small, int) - np.array(full, int)).mean() < 3
