# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from vit_jax.data.augment import parse, randaug

RNG = np.random.default_rng
NAMES = [
    *("autocontrast", "equalize", "invert", "rotate", "posterize", "solarize", "color", "contrast"),
    *("brightness", "sharpness", "shear_x", "shear_y", "translate_x", "translate_y", "cutout"),
    "solarize_add",
]
OPS = dict(zip(NAMES, randaug.OPERATIONS.values(), strict=True))


@pytest.fixture
def cut(photo):
    return photo[100:164, 200:280]


def near(a, b, atol=1):
    np.testing.assert_allclose(np.asarray(a, int), np.asarray(b, int), atol=atol)


@pytest.mark.parametrize("name", ["autocontrast", "equalize", "invert"])
def test_parameterless_operations_are_pillows(cut, name):
    # Pillow's autocontrast truncates, this one rounds.
    wanted = getattr(ImageOps, name)(Image.fromarray(cut))
    near(OPS[name](cut, 10.0, RNG(0)), wanted, atol=1 if name == "autocontrast" else 0)


@pytest.mark.parametrize("m", [0.0, 5.0, 10.0, 15.0])
@pytest.mark.parametrize("name", ["color", "contrast", "brightness"])
def test_enhancing_operations_are_pillows_with_the_published_factor(cut, name, m):
    wanted = getattr(ImageEnhance, name.capitalize())(Image.fromarray(cut)).enhance(
        1.8 * m / 10 + 0.1
    )
    near(OPS[name](cut, m, RNG(0)), wanted, atol=2)


def test_sharpness_exaggerates_the_difference_from_the_smooth_image(cut):
    near(OPS["sharpness"](cut, 5.0, RNG(0)), cut)  # factor 1
    flat = np.full((5, 5, 3), 100, np.uint8)
    flat[2, 2] = 152
    out = OPS["sharpness"](flat, 10.0, RNG(0))  # factor 1.9; smooth: 120 in the middle, 104 beside
    assert out[2, 2, 0] == round(120 + 1.9 * 32)
    assert out[1, 1, 0] == round(104 - 1.9 * 4)
    edge = OPS["sharpness"](flat[1:, 1:], 10.0, RNG(0))
    assert (edge[0] == 100).all()
    assert (edge[:, 0] == 100).all()


def test_contrast_blends_with_the_mean_not_with_the_pixel_count():
    image = np.full((224, 224, 3), 90, np.uint8)  # H * W / 256 would be 196
    near(OPS["contrast"](image, 0.0, RNG(0)), image)
    near(OPS["contrast"](image, 10.0, RNG(0)), image)


def test_solarize_inverts_from_the_threshold_up_and_never_wraps():
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    half = OPS["solarize"](levels, 5.0, RNG(0)).ravel()
    np.testing.assert_array_equal(half[:128], np.arange(128))
    np.testing.assert_array_equal(half[128:], np.arange(127, -1, -1))
    np.testing.assert_array_equal(OPS["solarize"](levels, 10.0, RNG(0)), levels)


def test_solarize_add_and_posterize_on_known_levels():
    levels = np.array([0, 17, 100, 127, 128, 255], np.uint8).reshape(1, 6, 1)
    added = OPS["solarize_add"](levels, 10.0, RNG(0)).ravel()
    np.testing.assert_array_equal(added, [110, 127, 210, 237, 128, 255])
    assert OPS["solarize_add"](levels, 20.0, RNG(0)).ravel()[2] == 255
    bits = {m: OPS["posterize"](levels, m, RNG(0)).ravel().tolist() for m in (0.0, 5.0, 10.0, 20.0)}
    assert bits[0] == [0, 0, 0, 0, 128, 128]  # one bit at least
    assert bits[5] == [0, 0, 64, 64, 128, 192]
    assert bits[10] == [0, 16, 96, 112, 128, 240]
    assert bits[20] == levels.ravel().tolist()


@pytest.mark.parametrize(
    "name, moved",
    [
        ("translate_x", lambda y, x, s: (y, x + 20 * s)),
        ("translate_y", lambda y, x, s: (y + 20 * s, x)),
        ("shear_x", lambda y, x, s: (y, x + 0.06 * s * y)),
        ("shear_y", lambda y, x, s: (y + 0.06 * s * x, x)),
        ("rotate", lambda y, x, s: _turned(y, x, np.radians(6) * s)),
    ],
)
def test_geometric_operations_move_a_spot_as_published_in_both_directions(name, moved):
    image = np.full((200, 300, 3), 10, np.uint8)
    image[98:103, 198:203] = 250
    seen = set()
    for seed in range(12):
        out = OPS[name](image, 2.0, RNG(seed))
        spot = np.argwhere(out[..., 0] == 250).mean(0)
        for sign in (-1, 1):
            if np.abs(spot - moved(100, 200, sign)).max() < 0.7:
                seen.add(sign)
        assert (out == 128).any()  # what came in from outside
    assert seen == {-1, 1}


def _turned(y, x, angle):
    y, x = y - 99.5, x - 149.5
    return y * np.cos(angle) - x * np.sin(angle) + 99.5, x * np.cos(angle) + y * np.sin(
        angle
    ) + 149.5


def test_cutout_greys_a_square_cut_off_at_the_border():
    image = np.zeros((100, 120, 3), np.uint8)
    for seed in range(50):
        rows, columns = np.nonzero(OPS["cutout"](image, 5.0, RNG(seed))[..., 0] == 128)
        height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
        assert len(rows) == height * width
        assert 20 <= height <= 40
        assert 20 <= width <= 40
        assert height == 40 or rows.min() == 0 or rows.max() == 99


def test_every_operation_keeps_shape_type_and_its_input(cut, subtests: pytest.Subtests) -> None:
    for name in NAMES:
        for channels in [1, 3]:
            with subtests.test(name=name, channels=channels):
                image = np.ascontiguousarray(cut[..., :channels])
                before = image.copy()
                out = OPS[name](image, 10.0, RNG(0))
                assert out.shape == image.shape
                assert out.dtype == np.uint8
                np.testing.assert_array_equal(image, before)


def test_the_policy_draws_its_operations_uniformly(monkeypatch):
    counts = np.zeros(16, int)

    def count(i):
        def operation(image, magnitude, rng):
            assert magnitude == 7.5
            counts[i] += 1
            return image

        return operation

    monkeypatch.setattr(randaug, "OPERATIONS", {str(i): count(i) for i in range(16)})
    policy = parse("randaug(3, 7.5)")
    for i in range(800):
        policy(np.zeros((1, 1, 3), np.uint8), RNG(i))
    assert counts.sum() == 2400  # always applied
    assert counts.min() > 100
    assert counts.max() < 200
