# SPDX-License-Identifier: Apache-2.0
"""Batches of images of any channels and dtype: each channel as it would come out alone."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import data
from vit_jax.data import Crop, DataConfig, PixelType, Resize, TransformConfig
from vit_jax.data.augment.mix import erase, mix, normalize
from vit_jax.data.config import MixConfig
from vit_jax.data.images import bands
from vit_jax.data.stream.transform import Transform

# Each way to a box, each library that resizes, and everything that moves pixels.
TRANSFORMS = {
    "box": TransformConfig(crop=Crop.RANDOM_RESIZED, resize=Resize.BICUBIC, flip=True),
    "inception": TransformConfig(crop=Crop.INCEPTION, resize=Resize.AREA, degrees=20.0, shear=9.0),
    "pad": TransformConfig(crop=Crop.RANDOM, crop_ratio=1.0, pad=2, flip=True),
    "centre": TransformConfig(crop=Crop.CENTER, resize=Resize.BILINEAR_ANTIALIAS),
    "cubic": TransformConfig(
        crop=Crop.RESIZE, resize=Resize.BICUBIC_NO_ANTIALIAS, scale=(0.5, 2.0)
    ),
}


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_each_channel_is_as_it_is_alone(dtype: str, subtests: pytest.Subtests) -> None:
    image = (np.random.default_rng(0).random((22, 27, 5)) * 250).astype(dtype)
    rules = data.Reading(bands=("all",), dtype=PixelType(dtype))
    for name, cfg in TRANSFORMS.items():
        with subtests.test(name):
            seen = {}
            for channels in (5, 1):
                transform = Transform(
                    cfg=cfg, image_size=(16, 12), channels=channels, exact=False, reading=rules
                )
                parts = [image] if channels == 5 else np.split(image, 5, axis=2)
                seen[channels] = np.concatenate(
                    [transform(bands.as_file(x), np.random.default_rng(1)) for x in parts], axis=2
                )
            assert seen[5].dtype == dtype
            assert seen[5].shape == (16, 12, 5)
            np.testing.assert_array_equal(seen[5], seen[1])


def test_a_batch_has_the_dtype_of_the_data(tmp_path: Path) -> None:
    place = tmp_path / "set" / "train" / "a"
    place.mkdir(parents=True)
    image = np.random.default_rng(0).integers(0, 65536, (16, 16, 4)).astype(np.uint16)
    for i in range(4):
        (place / f"{i}.npy").write_bytes(bands.as_file(image))
    source = data.open_source(f"folder:{tmp_path}/set", split="train", bands=("all",))
    cfg = DataConfig(
        batch_size=4,
        bands=("all",),
        dtype=PixelType.UINT16,
        num_threads=1,
        transform=TransformConfig(crop=Crop.NONE),
    )
    views = data.one_view(cfg.transform, (16, 16), 4, data.reading(cfg))
    with data.train_batches(source, cfg, views=views, seed=0) as stream:
        batch = next(stream)["image"]
    assert batch.dtype == np.uint16
    np.testing.assert_array_equal(batch[0], image)
    # One place says what is 1.
    deep = normalize(jnp.asarray(batch), (0.25,) * 4, (0.5,) * 4)
    np.testing.assert_allclose(deep[0], (image / 65535 - 0.25) / 0.5, rtol=1e-6, atol=1e-7)
    floats = normalize(jnp.asarray(batch, jnp.float32), (300.0,), (2.0,))
    np.testing.assert_allclose(floats[0], (image - 300.0) / 2, rtol=1e-6)
    native = dataclasses.replace(cfg.transform, crop=Crop.NATIVE, lengths=(16,))
    patched = data.one_view(native, (16, 16), 4, data.reading(cfg), patch=(8, 8))
    with data.eval_batches(source, patched, batch_size=2) as stream:
        rows = next(stream)["image"]
    assert rows.dtype == np.uint16
    assert rows.shape == (2, 16, 8 * 8 * 4)


def test_mixing_and_erasing_take_any_channels() -> None:
    shapes = jax.ShapeDtypeStruct((4, 8, 8, 7), jnp.float32), jax.ShapeDtypeStruct((4, 3), float)
    cfg = MixConfig(mixup_alpha=0.2, cutmix_alpha=1.0)
    rng = jax.eval_shape(lambda: jax.random.key(0))
    mixed, rows = jax.eval_shape(lambda r, x, y: mix(r, x, y, cfg), rng, *shapes)
    assert (mixed.shape, rows.shape) == ((4, 8, 8, 7), (4, 3))
    assert jax.eval_shape(lambda r, x: erase(r, x, 1.0), rng, shapes[0]).shape == (4, 8, 8, 7)
