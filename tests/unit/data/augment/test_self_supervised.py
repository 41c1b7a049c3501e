# SPDX-License-Identifier: Apache-2.0
"""Jitter, grey, blur and solarization are Pillow's, come as often as said, and in their order."""

import itertools
import math
import pickle
from typing import Any

import numpy as np
import pytest
from PIL import Image as PillowImage
from PIL import ImageEnhance, ImageFilter, ImageOps

from vit_jax.data.augment import parse
from vit_jax.data.augment.self_supervised import SelfSupervised, read, shift_hue
from vit_jax.errors import UserError

RNG = np.random.default_rng
IMAGE = RNG(0).integers(0, 256, (12, 9, 3), dtype=np.uint8)
GREY = IMAGE[..., :1]
NUMBERS = 13
# Where each number stands among those drawn: four in 5..8 order the jitter, four in 9..12 are its
# brightness, contrast, saturation and hue.
JITTER, GREYS, BLUR, SIGMA, SOLARIZE = range(5)


class Numbers(np.random.Generator):
    """Gives the numbers of a list."""

    def __init__(self, **given: float) -> None:
        super().__init__(np.random.Philox(0))
        self.values = np.full(NUMBERS, 0.9999)
        self.values[5:9] = np.arange(4) / 4
        self.values[9:] = 0.5  # no change
        for name, value in given.items():
            places = {"brightness": 9, "contrast": 10, "saturation": 11, "hue": 12}
            self.values[places[name] if name in places else globals()[name]] = value
        self.at = 0

    def random(self, shape: Any = ()) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        count = math.prod(shape) if isinstance(shape, tuple) else shape
        self.at += count
        return self.values[self.at - count : self.at].reshape(shape)[()]


def run(policy: str, image: np.ndarray = IMAGE, numbers: Numbers | None = None) -> np.ndarray:
    found = read(policy, (0,))
    assert found is not None
    drawn = numbers or Numbers()
    out = found(image, drawn)
    assert drawn.at == NUMBERS
    assert (out.shape, out.dtype) == (image.shape, np.uint8)
    return out


def torchvision_hue(picture: PillowImage.Image, factor: float) -> PillowImage.Image:
    """torchvision's `adjust_hue` for pictures, from its definition: uint8 wraps around."""
    hue, saturation, value = picture.convert("HSV").split()
    levels = np.array(hue, np.uint8) + np.int32(factor * 255).astype(np.uint8)
    turned = PillowImage.fromarray(levels.astype(np.uint8))
    return PillowImage.merge("HSV", (turned, saturation, value)).convert("RGB")


@pytest.mark.parametrize("factor", [-0.5, -0.1, -0.0501, -0.001, 0.0, 0.003, 0.07, 0.1, 0.5])
def test_the_hue_is_torchvisions(factor):
    picture = PillowImage.fromarray(IMAGE)
    expected = np.asarray(torchvision_hue(picture, factor))
    np.testing.assert_array_equal(np.asarray(shift_hue(picture, factor)), expected)


@pytest.mark.parametrize("drawn", [0.0, 0.2, 0.8, 0.999])
@pytest.mark.parametrize("strength", ["", "-jitter0.5"])
def test_each_jitter_is_pillows_between_its_limits(drawn, strength):
    picture, by = PillowImage.fromarray(IMAGE), 2 * drawn - 1
    scale = 0.5 if strength else 1.0
    expected = {
        "brightness": ImageEnhance.Brightness(picture).enhance(1 + 0.4 * scale * by),
        "contrast": ImageEnhance.Contrast(picture).enhance(1 + 0.4 * scale * by),
        "saturation": ImageEnhance.Color(picture).enhance(1 + 0.2 * scale * by),
        "hue": torchvision_hue(picture, 0.1 * scale * by),
    }
    policy = read(f"dino{strength}-blur0", (0,))
    assert policy is not None
    parts = policy.parts()

    for name, one in expected.items():
        numbers = Numbers(JITTER=drawn)  # its first
        np.testing.assert_array_equal(parts[name](IMAGE, numbers), np.asarray(one), err_msg=name)


def test_the_jitter_runs_in_the_order_drawn():
    """The hue's trip through HSV rounds, even where it is not turned: it belongs to the order."""
    numbers = Numbers(JITTER=0.79, brightness=1.0, contrast=1.0)
    picture = PillowImage.fromarray(IMAGE)

    def changed(*kinds: str) -> np.ndarray:
        out = picture
        for kind in kinds:
            if kind == "hue":
                out = torchvision_hue(out, 0.0)
            else:
                out = getattr(ImageEnhance, kind)(out).enhance(1.4)
        return np.asarray(out)

    first = run("dino-blur0", numbers=numbers)
    np.testing.assert_array_equal(first, changed("Brightness", "Contrast", "hue"))
    numbers.at, numbers.values[5:9] = 0, [0.9, 0.1, 0.5, 0.2]
    second = run("dino-blur0", numbers=numbers)
    np.testing.assert_array_equal(second, changed("Contrast", "hue", "Brightness"))
    assert (first != second).any()


def test_the_others_are_pillows_one_after_another():
    picture = PillowImage.fromarray(IMAGE)
    grey = np.repeat(np.asarray(picture.convert("L"))[..., None], 3, axis=-1)
    np.testing.assert_array_equal(run("dino-blur0", numbers=Numbers(GREYS=0.19)), grey)
    for drawn, sigma in ((0.0, 0.1), (0.5, 1.05), (1.0, 2.0)):
        blurred = run("dino-blur0.1", numbers=Numbers(BLUR=0.09, SIGMA=drawn))
        expected = picture.filter(ImageFilter.GaussianBlur(sigma))
        np.testing.assert_array_equal(blurred, np.asarray(expected))
    solarized = run("dino-blur0-solarize0.2", numbers=Numbers(SOLARIZE=0.19))
    np.testing.assert_array_equal(solarized, np.where(IMAGE < 128, IMAGE, 255 - IMAGE))

    everything = {"JITTER": 0.0, "GREYS": 0.0, "BLUR": 0.0, "SIGMA": 0.5, "SOLARIZE": 0.0}
    out = run("dino-blur1-solarize1", numbers=Numbers(brightness=0.0, **everything))
    expected = torchvision_hue(ImageEnhance.Brightness(picture).enhance(0.6), 0.0)
    expected = expected.convert("L").convert("RGB").filter(ImageFilter.GaussianBlur(1.05))
    np.testing.assert_array_equal(out, np.asarray(ImageOps.solarize(expected, 128)))


def test_each_comes_at_its_probability(monkeypatch):
    """Counted on a stand-in for a picture, which notes what is done to it."""
    module = "vit_jax.data.augment.self_supervised"
    done: list[str] = []

    def note(name):
        return lambda picture, *_: done.append(name) or picture

    for name in ("grey", "blur", "solarize"):
        monkeypatch.setattr(f"{module}._{name}", note(name))
    jitter = {name: (most, note(name)) for name, most in (("brightness", 0.4), ("hue", 0.1))}
    monkeypatch.setattr(f"{module}._JITTER", jitter)
    policy, rng, count = SelfSupervised(0.5, 0.2, 1.0), RNG(1), 4000
    for _ in range(count):
        done.append("image")
        policy(GREY, rng)
    expected = {"brightness": 0.8, "hue": 0.8, "grey": 0.2, "blur": 0.5, "solarize": 0.2}
    for name, rate in expected.items():
        spread = 3 * math.sqrt(rate * (1 - rate) / count)
        assert abs(done.count(name) / count - rate) <= spread, name
    pairs = list(itertools.pairwise(done))
    first = pairs.count(("image", "brightness"))
    both = first + pairs.count(("image", "hue"))
    assert abs(first / both - 0.5) <= 3 * 0.5 / math.sqrt(both)


def test_the_extremes_are_never_and_always():
    rng = RNG(2)
    never, always = SelfSupervised(0.0, 0.0, 0.0), SelfSupervised(0.0, 1.0, 0.0)
    flat = GREY // 2  # which grey leaves alone, and solarize too
    for _ in range(30):
        np.testing.assert_array_equal(never(flat, rng), flat)
        np.testing.assert_array_equal(always(255 - flat, rng), flat)


@pytest.mark.parametrize("image", [GREY, GREY[:1, :1]], ids=["grey", "one pixel"])
def test_a_grey_image_keeps_its_channel_and_has_no_hue(image):
    numbers = {"JITTER": 0.0, "GREYS": 0.0}
    same = run("dino-blur0", image, Numbers(**numbers, saturation=1.0, hue=1.0))
    np.testing.assert_array_equal(same, image)
    rng, policy = RNG(3), parse("dino-blur0.5-solarize0.2")
    assert policy is not None
    for _ in range(50):
        assert policy(image, rng).shape == image.shape
    for name, part in policy.parts().items():
        assert part(image, rng).shape == image.shape, name


def test_the_generator_stands_at_the_same_place_whatever_was_done():
    after = set()
    for text in ("dino-blur0", "dino-blur1-solarize1", "dino-jitter0-blur0.5"):
        for image in (IMAGE, GREY):
            rng, policy = RNG(4), read(text, (0,))
            assert policy is not None
            policy(image, rng)
            after.add(rng.random())
    assert len(after) == 1


def test_the_seed_fixes_the_pixels_and_the_policy_can_be_pickled():
    policy = parse("dino-blur0.5-solarize0.2")
    assert policy is not None
    again = pickle.loads(pickle.dumps(policy))
    draws = [policy(IMAGE, RNG(i)) for i in range(20)]
    for i, draw in enumerate(draws):
        np.testing.assert_array_equal(again(IMAGE, RNG(i)), draw)
    assert len({draw.tobytes() for draw in draws}) >= 12


def test_the_keys_stand_in_any_order():
    assert read("dino-blur0.1-solarize0.2", (0,)) == SelfSupervised(0.1, 0.2, 1.0)
    assert read("dino-jitter0.5-solarize1-blur1.0", (0,)) == SelfSupervised(1.0, 1.0, 0.5)
    assert set(SelfSupervised(0.0, 0.0, 0.0).parts()) == {"grayscale"}
    assert read("dinosaur-blur1", (0,)) is None


@pytest.mark.parametrize(
    "text, told",
    [
        ("dino", "no probability of the blur; write dino-blur0.5"),
        ("dino-solarize0.2", "no probability of the blur; write dino-blur0.5"),
        ("dino-blur2", "blur=2 must be in 0..1"),
        ("dino-blur", "blur= must be in 0..1"),
        ("dino-blur-0.5", "blur= must be in 0..1"),
        ("dino-blur0.5-solarize1.5", "solarize=1.5 must be in 0..1"),
        ("dino-blur0.5-jitter2.1", "jitter=2.1 must be in 0..2"),
        ("dino-blur0.5-blur0.5", "key 'blur' is given twice"),
        ("dino-blurry0.5", "no key 'blurry0.5'; keys: blur, solarize, jitter"),
        ("dino-", "no key ''"),
        ("dino-blur1e9", "blur=1e9 must be in 0..1"),
    ],
)
def test_what_is_wrong_in_the_form_is_named(text, told):
    with pytest.raises(UserError) as caught:
        parse(text)
    assert str(caught.value).startswith(f"auto_augment={text!r}: {told}")
    assert "\n" not in str(caught.value)
