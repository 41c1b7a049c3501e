# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest

from vit_jax.data.config import CropRule, Resize
from vit_jax.data.images import ops

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


def test_inception_offsets_never_touch_the_far_edge_as_in_tensorflow():
    boxes = [ops.inception_box(RNG(i), 30, 40, (0.05, 0.3), ASPECT) for i in range(2000)]
    assert max(b.top + b.height for b in boxes) == 29
    assert max(b.left + b.width for b in boxes) == 39
    assert min(b.top for b in boxes) == 0


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
