# SPDX-License-Identifier: Apache-2.0
"""transformers' preprocessor_config.json, as published ones are, and back."""

import math
from typing import Any

import pytest

from tests.refusals import Told, refused_as
from vit_jax.data import Crop, CropRule, Resize, TransformConfig
from vit_jax.errors import UserError
from vit_jax.weights.published import hf_images
from vit_jax.weights.published.table import Preprocessing

HALF, IMAGENET = [0.5] * 3, [0.485, 0.456, 0.406]


def read(**values: Any) -> Preprocessing:
    return hf_images.read({"image_mean": HALF, "image_std": HALF, **values}, "x/pre.json")


def transform(crop: Crop, ratio: float, resize: Resize = Resize.BICUBIC) -> TransformConfig:
    rule = CropRule.TORCH
    return TransformConfig(crop=crop, crop_ratio=ratio, crop_rule=rule, resize=resize)


WHOLE = transform(Crop.RESIZE, TransformConfig().crop_ratio, Resize.BILINEAR_ANTIALIAS)
# As the Hub has them: google/vit-base-patch16-224, openai/clip-vit-base-patch32,
# facebook/deit-base-distilled-patch16-224, facebook/dinov2-small, google/siglip-base-patch16-224.
PUBLISHED = [
    ({"do_normalize": True, "do_resize": True, "size": 224}, WHOLE, 224),
    (
        {
            "feature_extractor_type": "CLIPFeatureExtractor",
            "do_center_crop": True,
            "crop_size": 224,
            "resample": 3,
            "size": 224,
        },
        transform(Crop.CENTER, 1.0),
        224,
    ),
    (
        {
            "feature_extractor_type": "DeiTFeatureExtractor",
            "crop_size": 224,
            "resample": 3,
            "size": 256,
        },
        transform(Crop.SQUASH_CENTER, 0.875),
        224,
    ),
    (
        {
            "image_processor_type": "BitImageProcessor",
            "do_center_crop": True,
            "crop_size": {"height": 224, "width": 224},
            "do_rescale": True,
            "rescale_factor": 0.00392156862745098,
            "resample": 3,
            "size": {"shortest_edge": 256},
        },
        transform(Crop.CENTER, 0.875),
        224,
    ),
    (
        {
            "image_processor_type": "SiglipImageProcessor",
            "resample": 3,
            "size": {"height": 384, "width": 384},
        },
        transform(Crop.RESIZE, TransformConfig().crop_ratio),
        384,
    ),
]


@pytest.mark.parametrize("values, expected, side", PUBLISHED)
def test_published_files_are_read(values: Any, expected: TransformConfig, side: int) -> None:
    found = read(image_mean=IMAGENET, **values)
    assert found == Preprocessing(
        tuple(IMAGENET), (0.5, 0.5, 0.5), expected, (side, side), "x/pre.json"
    )
    if expected.crop is not Crop.RESIZE:
        size = values["size"]
        wanted = size["shortest_edge"] if isinstance(size, dict) else size
        assert math.floor(side / found.transform.crop_ratio) == wanted


def test_convnexts_are_cut_below_384_pixels_alone() -> None:
    # facebook/convnext-tiny-224, and convnext-base-384 as a newer transformers writes it.
    old = {"feature_extractor_type": "ConvNextFeatureExtractor", "crop_pct": 0.875, "size": 224}
    small = read(**old, resample=3)
    assert (small.transform, small.size) == (transform(Crop.CENTER, 0.875), (224, 224))
    assert math.floor(224 / read(**{**old, "crop_pct": 0.95}).transform.crop_ratio) == 235
    new = {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 384}}
    large = read(**new)
    assert (large.transform.crop, large.size) == (Crop.RESIZE, (384, 384))
    assert large.transform.resize is Resize.BICUBIC
    with pytest.raises(UserError, match=r"crop_pct=0 must be a number from 0\.01 to 1"):
        read(**{**old, "crop_pct": 0})


def test_means_are_of_white_as_one() -> None:
    scaled = read(size=8, rescale_factor=1 / 127.5)
    assert scaled.mean == pytest.approx((0.25,) * 3)
    assert scaled.std == pytest.approx((0.25,) * 3)
    pixels = read(size=8, do_rescale=False, image_mean=[127.5], image_std=[255.0])
    assert (pixels.mean, pixels.std) == ((0.5,), (1.0,))
    plain = read(size=8, do_normalize=False, image_mean=None)
    assert (plain.mean, plain.std) == ((0.0,), (1.0,))


def test_every_size_before_the_cut_is_met(subtests: pytest.Subtests) -> None:
    for side in range(150, 400, 7):
        with subtests.test(side=side):
            found = read(size={"height": side, "width": side}, do_center_crop=True, crop_size=149)
            assert math.floor(149 / found.transform.crop_ratio) == side


UNITS = ("weights.published.table.check_normalisation", "")
BAD = [
    ({}, "x/pre.json: size=None must hold height and width, or shortest_edge"),
    ({"size": {"height": 8}}, "must hold height and width"),
    ({"size": {"shortest_edge": 8}}, "leaves images of any shape; it needs do_center_crop"),
    ({"size": 10**9}, "from 1 to 65,536"),
    ({"size": 8, "do_resize": False}, "leaves images of any size"),
    ({"size": 8, "resample": 1}, r"resample=1 must be 2 \(bilinear\) or 3 \(bicubic\)"),
    ({"size": 8, "do_center_crop": "yes"}, "do_center_crop='yes' must be true or false"),
    ({"size": 8, "do_center_crop": True, "crop_size": 9}, "the same part of both sides"),
    ({"size": 8, "image_mean": None}, "image_mean=None must be numbers, one a channel"),
    ({"size": 8, "image_mean": [float("nan")] * 3}, "must be numbers"),
    ({"size": 8, "image_std": [0.5, 0.5, 0]}, "image_std=.* must be greater than 0"),
    ({"size": 8, "rescale_factor": 0}, "rescale_factor=0 must not be 0"),
    ({"size": 8, "rescale_factor": -1}, "must be a number from 0"),
    ({"size": 8, "image_mean": [123.675, 116.28, 103.53]}, UNITS),
    ({"size": 8, "image_std": [58.395, 57.12, 57.375]}, UNITS),
    ({"size": 8, "do_rescale": False}, UNITS),
    ({"size": 8, "do_flip_channel_order": True}, "gives blue before red"),
    ({"size": 8, "rescale_offset": True}, "moves pixels after scaling"),
    ({"size": 8, "do_pad": True}, "pads images"),
]


@pytest.mark.parametrize("values, message", BAD)
def test_what_cannot_be_is_named(values: dict[str, Any], message: Told) -> None:
    with refused_as(message) as error:
        read(**values)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "given",
    [
        WHOLE,
        transform(Crop.CENTER, 0.875),
        transform(Crop.SQUASH_CENTER, 0.95),
        transform(Crop.CENTER, 1.0, Resize.BILINEAR_ANTIALIAS),
    ],
)
def test_what_is_written_is_read_again(given: TransformConfig) -> None:
    tree = hf_images.written((0.5,), (0.25,), given, (28, 28), 3)
    found = hf_images.read(tree, "x")
    assert (found.mean, found.std, found.size) == ((0.5,) * 3, (0.25,) * 3, (28, 28))
    assert found.transform.crop is given.crop
    assert found.transform.resize is given.resize
    if given.crop is not Crop.RESIZE:
        before = [math.floor(28 / each.crop_ratio) for each in (found.transform, given)]
        assert before[0] == before[1]


def test_a_short_side_is_of_squares() -> None:
    with pytest.raises(UserError, match="as a square alone, not as 28x14"):
        hf_images.written((0.5,), (0.5,), transform(Crop.CENTER, 0.9), (28, 14), 1)
