# SPDX-License-Identifier: Apache-2.0
import math

import cv2
import numpy as np
import pytest

from tests.unit.data.images.test_ops import AREA, ASPECT, RNG
from vit_jax.data.config import CropRule, Resize
from vit_jax.data.images import ops


@pytest.mark.parametrize("aspect", [1.0, 2.0])
def test_inception_heights_are_uniform_at_a_fixed_aspect(aspect):
    # Boxes of the image's own aspect: heights round(sqrt(500)) = 22 (23 fits the area) to 100.
    width = int(100 * aspect)
    heights = np.array(
        [ops.inception_box(RNG(i), 100, width, AREA, (aspect, aspect)).height for i in range(8000)]
    )
    assert set(heights) == set(range(23, 101))
    counts = np.bincount(heights)[24:]  # 22 is stepped up to 23, which so comes twice as often
    assert abs(counts.mean() / (8000 / 79) - 1) < 0.05
    assert counts.std() < 1.4 * np.sqrt(8000 / 79)
    assert np.bincount(heights)[23] > 1.5 * counts.mean()


def allowed_by_torchvision(height, width, area, aspect):
    """Return (areas, aspects), each as values and weights: 1-D integrals over what fits.

    Area A and log aspect are uniform where A * W/H <= aspect <= W/H / A, so either's density is the
    length that the other one is left with.
    """
    form = width / height
    shares = np.linspace(*area, 4001)
    low = np.maximum(np.log(aspect[0]), np.log(shares * form))
    high = np.minimum(np.log(aspect[1]), np.log(form / shares))
    logs = np.linspace(*np.log(aspect), 4001)
    most = np.minimum(area[1], np.minimum(form / np.exp(logs), np.exp(logs) / form))
    return (
        (shares, np.maximum(high - low, 0)),
        (np.exp(logs), np.maximum(most - area[0], 0)),
    )


def allowed_by_tensorflow(height, width, area, aspect):
    """Return (areas, aspects) as above: every height that fits, at each of many aspects.

    Each aspect weighs the same, and so does each height of one aspect.
    """
    ratio, rows = np.meshgrid(np.linspace(*aspect, 801), np.arange(1, height + 1), indexing="ij")
    share = rows * rows * ratio / (height * width)
    fits = (area[0] <= share) & (share <= area[1]) & (np.rint(rows * ratio) <= width)
    weight = fits / fits.sum(1, keepdims=True)
    return (share.ravel(), weight.ravel()), (ratio.ravel(), weight.ravel())


def share_below(reference, value):
    """Return how much of a weighted reference lies below each value."""
    order = np.argsort(reference[0])
    total = np.cumsum(reference[1][order])
    return np.interp(value, reference[0][order], total / total[-1])


LEVELS = np.linspace(0.05, 0.95, 19)
SAMPLERS = {
    ops.random_resized_box: (allowed_by_torchvision, (0.08, 1.0), (3 / 4, 4 / 3)),
    ops.inception_box: (allowed_by_tensorflow, AREA, ASPECT),
}


def draw(sample, height, width, area, aspect, count=6000):
    rng = RNG(0)
    return np.array([sample(rng, height, width, area, aspect) for _ in range(count)])


@pytest.mark.parametrize("size", [(375, 500), (500, 375), (400, 400)])
@pytest.mark.parametrize("sample", SAMPLERS)
def test_quantiles_of_area_and_aspect_are_those_of_the_definition(sample, size):
    allowed, area, aspect = SAMPLERS[sample]
    for ranges in ((area, aspect), ((0.2, 0.7), (0.5, 1.5))):
        top, left, rows, columns = draw(sample, *size, *ranges).T
        drawn = (rows * columns / (size[0] * size[1]), columns / rows)
        for values, reference in zip(drawn, allowed(*size, *ranges), strict=True):
            found = share_below(reference, np.quantile(values, LEVELS))
            np.testing.assert_allclose(found, LEVELS, atol=0.02)  # 3 standard errors
        # Wherever it fits, a box is anywhere: TensorFlow's never at the last offset.
        last = 1 if sample is ops.random_resized_box else 0
        for start, margin in ((top, size[0] - rows), (left, size[1] - columns)):
            free = margin > 30
            places = (start[free] + 0.5) / (margin[free] + last)
            np.testing.assert_allclose(np.quantile(places, LEVELS), LEVELS, atol=0.03)


def test_the_two_samplers_differ_far_beyond_chance_at_the_same_ranges():
    shares = {
        sample: np.prod(draw(sample, 400, 400, AREA, ASPECT)[:, 2:], axis=1) / 400**2
        for sample in SAMPLERS
    }
    torchvision, tensorflow = (np.quantile(shares[sample], LEVELS) for sample in SAMPLERS)
    assert (torchvision > tensorflow + 0.01).all()  # TensorFlow's boxes are smaller throughout,
    assert torchvision[9] - tensorflow[9] > 0.1  # by a tenth of the image at the median
    swapped = share_below(allowed_by_tensorflow(400, 400, AREA, ASPECT)[0], torchvision)
    assert np.abs(swapped - LEVELS).max() > 0.1  # and the quantiles' test tells them apart


def triangle(x):
    return np.maximum(1 - np.abs(x), 0)


def cubic(a):
    """Keys' cubic convolution kernel (1981), of support 2."""

    def kernel(x):
        x = np.abs(x)
        near = (a + 2) * x**3 - (a + 3) * x**2 + 1
        far = a * (x**3 - 5 * x**2 + 8 * x - 4)
        return np.where(x < 1, near, np.where(x < 2, far, 0))

    return kernel


def taps(size, target, kernel, antialias):
    """Return the matrix (target, size) that resizes one axis."""
    scale = size / target
    centres = (np.arange(target) + 0.5) * scale - 0.5
    if antialias:  # the kernel is as wide as the footprint, and renormalised at the border
        matrix = kernel((np.arange(size) - centres[:, None]) / max(scale, 1))
        return matrix / matrix.sum(1, keepdims=True)
    wide = np.arange(-4, size + 4)  # beyond the border its pixel is repeated
    matrix = np.zeros((target, size))
    for weights, pixel in zip(
        kernel(wide - centres[:, None]).T, wide.clip(0, size - 1), strict=True
    ):
        matrix[:, pixel] += weights
    return matrix


@pytest.mark.parametrize("target", [(20, 37), (100, 97), (30, 110)])
@pytest.mark.parametrize(
    "method, kernel, antialias",
    [
        (Resize.BILINEAR, triangle, False),
        (Resize.BILINEAR_ANTIALIAS, triangle, True),
        (Resize.BICUBIC, cubic(-0.5), True),
        (Resize.BICUBIC_NO_ANTIALIAS, cubic(-0.75), False),
    ],
)
def test_a_resize_is_the_convolution_that_its_name_says(photo, target, method, kernel, antialias):
    image = photo[100:161, 200:283]
    rows, columns = (taps(image.shape[i], target[i], kernel, antialias=antialias) for i in range(2))
    wanted = np.einsum("ih,jw,hwc->ijc", rows, columns, image).clip(0, 255)
    out = ops.resize(image, target, method).astype(float)
    assert np.abs(out - wanted).max() < 1.6  # both axes are rounded to whole levels
    assert np.abs(out - wanted).mean() < 0.35
    grey = ops.resize(image[..., 1:2], target, method)
    np.testing.assert_array_equal(grey[..., 0], out[..., 1])


def test_a_random_cut_is_a_window_of_the_mirrored_image_anywhere_with_equal_chance():
    image = np.arange(35, dtype=np.uint8).reshape(5, 7, 1)
    mirrored = np.pad(image, ((2, 2), (2, 2), (0, 0)), mode="reflect")
    windows = {mirrored[y : y + 4, x : x + 4].tobytes(): 0 for y in range(6) for x in range(8)}
    rng = RNG(0)
    for _ in range(100 * len(windows)):
        out = ops.random_cut(rng, image, (4, 4), pad=2)
        windows[out.tobytes()] += 1
    counts = np.array(list(windows.values()))
    assert len(counts) == 48
    assert ((counts - 100) ** 2 / 100).sum() < 47 + 4 * np.sqrt(2 * 47)  # chi-square, 47 degrees


def test_tfs_centre_crop_is_big_visions() -> None:
    # resize_small and central_crop of big_vision/pp/ops_image.py, in float32 as there.
    whole = RNG(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    for height, width, side in RNG(1).integers((20, 20, 16), (300, 300, 65), (500, 3)).tolist():
        image, small = whole[:height, :width], math.floor(side / 0.875)
        factor = np.float32(small) / np.float32(min(height, width))
        rows, columns = (int(np.round(np.float32(s) * factor)) for s in (height, width))
        resized = cv2.resize(image, (columns, rows), interpolation=cv2.INTER_AREA)
        top, left = (rows - side) // 2, (columns - side) // 2
        found = ops.center_crop(image, (side, side), 0.875, Resize.AREA, CropRule.TF)
        expected = resized[top : top + side, left : left + side]
        np.testing.assert_array_equal(found, expected, err_msg=f"{height}x{width} to {side}")
