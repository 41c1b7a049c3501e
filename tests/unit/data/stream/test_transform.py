# SPDX-License-Identifier: Apache-2.0
import cv2
import numpy as np
import pytest

from tests.unit.data.conftest import encode
from vit_jax.data.augment import parse
from vit_jax.data.augment.pillow import jitter
from vit_jax.data.config import Crop, Resize, TransformConfig
from vit_jax.data.stream import transform as module
from vit_jax.data.stream.transform import Transform, View, draws, one_view
from vit_jax.errors import UserError

RNG = np.random.default_rng


def run(data, seed=0, size=(64, 64), channels=3, exact=False, **fields):
    ready = Transform(
        cfg=TransformConfig(**fields), image_size=size, channels=channels, exact=exact
    )
    return ready(data, RNG(seed))


def test_no_crop_passes_pixels_through_and_refuses_another_size(photo):
    data = encode(photo[:64, :64], "PNG")
    np.testing.assert_array_equal(run(data, crop=Crop.NONE), photo[:64, :64])
    with pytest.raises(UserError, match="64x64, the model takes 32x32"):
        run(data, size=(32, 32), crop=Crop.NONE)


def test_flip_mirrors_half_of_the_images(photo):
    data = encode(photo[:64, :64], "PNG")
    outs = [run(data, seed, crop=Crop.NONE, flip=True) for seed in range(60)]
    flipped = [bool((out == photo[:64, 63::-1]).all()) for out in outs]
    assert all(f or (out == photo[:64, :64]).all() for f, out in zip(flipped, outs, strict=True))
    assert 18 <= sum(flipped) <= 42


def test_every_random_part_changes_the_image_and_none_is_ignored(photo):
    data = encode(photo[:64, :64], "PNG")
    plain = run(data, crop=Crop.NONE)
    for fields in (
        {"degrees": 20.0},
        {"translate": (0.3, 0.0)},
        {"scale": (1.5, 1.6)},
        {"shear": 20.0},
        {"auto_augment": "randaug(4,10)"},
        {"color_jitter": 1.0},
    ):
        assert (run(data, crop=Crop.NONE, **fields) != plain).mean() > 0.1, fields


def windows(image, size):
    """Return every cut of a size, by its place."""
    rows, columns = (image.shape[i] - size[i] + 1 for i in range(2))
    return {
        image[y : y + size[0], x : x + size[1]].tobytes(): (y, x)
        for y in range(rows)
        for x in range(columns)
    }


@pytest.mark.parametrize(
    "fields, size, resized, last",
    [
        # CIFAR's crop: the image as it is, 4 mirrored pixels around it.
        ({"crop": Crop.RANDOM, "crop_ratio": 1.0, "pad": 4}, (64, 96), (64, 96), (8, 8)),
        # DeiT III's: the short side to the size, then the same.
        ({"crop": Crop.RANDOM, "crop_ratio": 1.0, "pad": 4}, (32, 32), (32, 48), (8, 24)),
        ({"crop": Crop.RANDOM, "crop_ratio": 0.8}, (32, 32), (40, 60), (8, 28)),
        ({"crop": Crop.RANDOM, "crop_ratio": 0.8}, (16, 48), (40, 60), (24, 12)),
        # BiT-HyperRule's.
        ({"crop": Crop.SQUASH_RANDOM, "crop_ratio": 0.8}, (32, 32), (40, 40), (8, 8)),
        ({"crop": Crop.SQUASH_RANDOM, "crop_ratio": 0.8}, (16, 48), (20, 60), (4, 12)),
    ],
)
def test_random_crops_cut_anywhere_from_the_resized_image(photo, fields, size, resized, last):
    image = photo[100:164, 200:296]
    data = encode(image, "PNG")
    whole = cv2.resize(image, resized[::-1], interpolation=cv2.INTER_LINEAR)
    pad = fields.get("pad", 0)
    known = windows(np.pad(whole, ((pad, pad), (pad, pad), (0, 0)), mode="reflect"), size)
    places = np.array([known[run(data, i, size=size, **fields).tobytes()] for i in range(150)])
    np.testing.assert_array_equal(places.min(0), (0, 0))
    np.testing.assert_array_equal(places.max(0), last)


def test_jitter_follows_the_policy_and_knows_no_colour_in_a_grey_image(photo):
    data = encode(photo[:64, :64], "PNG")
    rng = RNG(3)
    wanted = jitter(parse("randaug(2,10)")(photo[:64, :64], rng), 0.3, rng)
    fields = {"crop": Crop.NONE, "color_jitter": 0.3}
    np.testing.assert_array_equal(run(data, 3, auto_augment="randaug(2,10)", **fields), wanted)
    grey, other = run(data, 3, channels=1, crop=Crop.NONE), run(data, 3, channels=1, **fields)
    assert np.abs(other.astype(int) - grey).mean() > 2
    for level in np.unique(grey):  # brightness and contrast: one output for each level
        assert len(np.unique(other[grey == level])) == 1


def test_resizes_that_skip_pixels_and_exact_ones_decode_at_full_size(photo, monkeypatch):
    data = encode(cv2.resize(photo, (2400, 1600), interpolation=cv2.INTER_CUBIC), "JPEG")
    calls = []
    decode = module.decode

    def watched(*args, **fields):
        calls.append(fields)
        return decode(*args, **fields)

    monkeypatch.setattr(module, "decode", watched)
    run(data, crop=Crop.RANDOM_RESIZED, resize=Resize.BILINEAR)
    run(data, crop=Crop.RANDOM_RESIZED, resize=Resize.BICUBIC_NO_ANTIALIAS)
    run(data, crop=Crop.RANDOM_RESIZED, resize=Resize.AREA, exact=True)
    assert len(calls) == 3
    assert not any("min_size" in fields for fields in calls)
    run(data, crop=Crop.RANDOM_RESIZED, resize=Resize.AREA)
    assert "min_size" in calls[-1]


def test_the_shape_of_a_view_counts_its_draws() -> None:
    once = View(transform=TransformConfig(), size=(8, 6), channels=3)
    assert once.shape == (8, 6, 3)
    several = View(transform=TransformConfig(), size=(8, 6), channels=1, count=4)
    assert several.shape == (4, 8, 6, 1)


def test_one_view_is_the_image() -> None:
    transform = TransformConfig(flip=True)
    (name, view), *others = one_view(transform, (4, 4), 3).items()
    assert (name, view.transform, view.count, others) == ("image", transform, 1, [])


def test_every_image_of_every_view_is_one_draw() -> None:
    large = View(transform=TransformConfig(), size=(8, 8), channels=3, count=2)
    small = View(transform=TransformConfig(), size=(4, 4), channels=3)
    found = draws({"large": large, "small": small}, exact=True)
    assert [(each.array, each.index, each.number) for each in found] == [
        ("large", 0, 0),
        ("large", 1, 1),
        ("small", None, 2),
    ]
    assert found[2].transform.image_size == (4, 4)
