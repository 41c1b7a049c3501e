# SPDX-License-Identifier: Apache-2.0
import math

import cv2
import numpy as np
import pytest

from vit_jax.data import ops
from vit_jax.data.config import CropRule, Resize

RNG = np.random.default_rng
AREA, ASPECT = (0.05, 1.0), (0.75, 1.33)


@pytest.mark.parametrize("sample", [ops.inception_box, ops.random_resized_box])
@pytest.mark.parametrize("size", [(375, 500), (500, 375), (40, 400), (3, 3)])
def test_boxes_lie_inside_and_keep_their_ranges(sample, size):
    rng = RNG(0)
    whole = ops.Box(0, 0, *size)
    for _ in range(300):
        box = sample(rng, *size, AREA, ASPECT)
        assert 0 <= box.top <= size[0] - box.height
        assert 0 <= box.left <= size[1] - box.width
        if box != whole and size[0] > 100:
            assert AREA[0] * 0.98 <= box.height * box.width / (size[0] * size[1]) <= AREA[1]
            assert ASPECT[0] * 0.97 <= box.width / box.height <= ASPECT[1] * 1.03


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


def test_inception_offsets_never_touch_the_far_edge_as_in_tensorflow():
    boxes = [ops.inception_box(RNG(i), 30, 40, (0.05, 0.3), ASPECT) for i in range(2000)]
    assert max(b.top + b.height for b in boxes) == 29
    assert max(b.left + b.width for b in boxes) == 39
    assert min(b.top for b in boxes) == 0


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


def test_random_resized_falls_back_to_the_largest_central_box():
    assert ops.random_resized_box(RNG(0), 10, 1000, (1.0, 1.0), (0.75, 4 / 3)) == (0, 493, 10, 13)
    assert ops.random_resized_box(RNG(0), 1000, 10, (1.0, 1.0), (0.75, 4 / 3)) == (493, 0, 13, 10)


def test_inception_falls_back_to_the_whole_image():
    assert ops.inception_box(RNG(0), 10, 1000, (0.9, 1.0), ASPECT) == (0, 0, 10, 1000)


def test_bilinear_is_four_taps_with_half_pixel_centres():
    image = (np.arange(8, dtype=np.uint8) * 32)[None, :, None].repeat(8, 0)
    # Output x reads input (x + 0.5) * 8 / 3 - 0.5: no antialiasing, so pixels 2 and 5 are skipped.
    out = ops.resize(image, (3, 3), Resize.BILINEAR)
    np.testing.assert_allclose(out[0, :, 0], [32 * 5 / 6, 32 * 3.5, 32 * (37 / 6)], atol=1)


def test_area_is_the_mean_over_the_footprint(photo):
    image = photo[:64, :96]
    wanted = image.reshape(16, 4, 24, 4, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(ops.resize(image, (16, 24), Resize.AREA), wanted, atol=0.51)


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


@pytest.mark.parametrize("method", list(Resize))
@pytest.mark.parametrize("channels", [1, 3])
def test_every_resize_keeps_the_channel_axis(photo, method, channels):
    out = ops.crop_resize(photo[..., :channels], ops.Box(3, 5, 100, 90), (20, 30), method)
    assert out.shape == (20, 30, channels)


@pytest.mark.parametrize("shape", [(427, 640), (640, 427), (224, 224), (100, 90)])
@pytest.mark.parametrize("size", [(224, 224), (96, 160)])
def test_center_keeps_the_share_that_the_ratio_says(shape, size):
    y, x = np.mgrid[: shape[0], : shape[1]]
    image = np.stack([y * 255 / (shape[0] - 1), x * 255 / (shape[1] - 1), x * 0], -1)
    out = ops.resize_cover(image.round().astype(np.uint8), size, 0.875, Resize.BILINEAR)
    assert min(out.shape[i] - math.floor(size[i] / 0.875) for i in range(2)) == 0
    out = ops.cut(out, ops.center_box(*out.shape[:2], size))
    assert out.shape == (*size, 3)
    scale = max(math.floor(size[0] / 0.875) / shape[0], math.floor(size[1] / 0.875) / shape[1])
    for axis in range(2):
        share = size[axis] / (shape[axis] * scale)
        levels = out[..., axis].astype(float)
        assert abs((levels.max() - levels.min()) / 255 - share) < 0.02
        assert abs((levels.max() + levels.min()) / 2 - 127.5) < 2


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


def test_affine_is_the_identity_by_default_and_exact_for_known_moves():
    image = RNG(0).integers(0, 256, (8, 8, 1)).astype(np.uint8)
    still = {"degrees": 0.0, "translate": (0.0, 0.0), "scale": (1.0, 1.0), "shear": 0.0}
    (matrix,) = ops.affine_matrices(RNG(0).random((1, 5)), 8, 8, **still)
    np.testing.assert_allclose(matrix, [[1, 0, 0], [0, 1, 0]], atol=1e-12)
    np.testing.assert_array_equal(ops.warp(image, matrix), image)
    right = ops.warp(image, np.array([[1.0, 0, 2], [0, 1, 0]]))
    np.testing.assert_array_equal(right[:, 2:], image[:, :-2])
    assert not right[:, :2].any()


def test_affine_draws_fill_their_ranges_and_fix_the_centre():
    centre = np.array([4.5, 2.5, 1])  # of 6 rows and 10 columns
    uniforms = np.stack([RNG(i).random(5) for i in range(2000)])
    drawn = ops.affine_matrices(
        uniforms, 6, 10, degrees=30.0, translate=(0.2, 0.1), scale=(0.8, 1.2), shear=10.0
    )
    moves = np.array([m @ centre for m in drawn]) - centre[:2]
    np.testing.assert_allclose(np.abs(moves).max(0), [2.0, 0.6], rtol=0.02)
    zoom = np.sqrt([np.linalg.det(m[:, :2]) for m in drawn])
    np.testing.assert_allclose([zoom.min(), zoom.max()], [0.8, 1.2], atol=0.01)
    angles = np.degrees([np.arctan2(m[1, 0], m[0, 0]) for m in drawn])
    np.testing.assert_allclose([angles.min(), angles.max()], [-30, 30], atol=0.5)


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


@pytest.mark.parametrize(
    "size, scaled, torch, tf",
    [
        ((300, 402), (256, 343), 60, 59),  # half of an odd margin, 59.5, to the even 60
        ((300, 400), (256, 341), 58, 58),  # 58.5 to the even 58
        ((427, 640), (256, 383), 80, 80),  # 383.7, which big_vision rounds to 384
    ],
)
def test_the_two_rules_round_apart(size, scaled, torch, tf) -> None:
    # A ramp from left to right says where a cut begins.
    columns = np.linspace(0, 250, size[1]).astype(np.uint8)
    image = np.broadcast_to(columns[None, :, None], (*size, 3)).copy()
    found = ops.center_crop(image, (224, 224), 0.875, Resize.BICUBIC, CropRule.TORCH)
    whole = ops.resize(image, scaled, Resize.BICUBIC)
    np.testing.assert_array_equal(found, whole[16:240, torch : torch + 224])
    found = ops.center_crop(image, (224, 224), 0.875, Resize.BICUBIC, CropRule.TF)
    whole = ops.resize(image, (256, round(256 * size[1] / size[0])), Resize.BICUBIC)
    np.testing.assert_array_equal(found, whole[16:240, tf : tf + 224])


@pytest.mark.parametrize(
    "size, side, scaled",
    [((384, 438), 224, (224, 255)), ((832, 1131), 224, (224, 305)), ((20, 185), 438, (438, 4052))],
)
def test_halves_are_rounded_as_tensorflows_float32_has_them(size, side, scaled) -> None:
    # In float64 the long sides are 256, 304 and 4051.
    image = np.zeros((*size, 1), np.uint8)
    assert ops.resize_cover(image, (side, side), 1.0, Resize.AREA).shape[:2] == scaled
