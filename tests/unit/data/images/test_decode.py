# SPDX-License-Identifier: Apache-2.0
import io
import struct
import threading

import numpy as np
import pytest
from PIL import Image

from tests.awkward import png, tiff
from tests.unit.data.conftest import encode
from vit_jax.data.config import OLD_READING
from vit_jax.data.images.decode import decode
from vit_jax.data.images.header import jpeg_size

LUMA = np.array([0.299, 0.587, 0.114])


@pytest.mark.parametrize("form", ["PNG", "WEBP"])
def test_lossless_files_come_back_exactly(photo, form):
    image = photo[:50, :70]
    np.testing.assert_array_equal(decode(encode(image, form, lossless=True), 3), image)
    np.testing.assert_allclose(
        decode(encode(image, form, lossless=True), 1)[..., 0], image @ LUMA, atol=1.01
    )


def test_grey_of_a_colour_png_is_the_same_whatever_it_says_of_its_colours(photo):
    image = photo[:50, :70]
    for kind, content in ((b"gAMA", 45455), (b"cHRM", 31270), (b"sRGB", 0)):
        sizes = {b"gAMA": ">I", b"cHRM": ">8I", b"sRGB": "B"}
        values = (content, 32900, 64000, 33000, 30000, 60000, 15000, 6000)
        chunk = struct.pack(sizes[kind], *values[: 8 if kind == b"cHRM" else 1])
        out = decode(png(image, 8, 2, (kind, chunk)), 1)
        np.testing.assert_allclose(out[..., 0], image @ LUMA, atol=1.01)


def test_jpeg_is_decoded_as_pillow_does_and_fast_mode_is_close(photo):
    data = encode(photo, "JPEG", quality=90)
    wanted = np.asarray(Image.open(io.BytesIO(data)))
    exact, fast = decode(data, 3), decode(data, 3, exact=False)
    assert np.abs(exact.astype(int) - wanted).max() <= 1
    assert 0 < np.abs(fast.astype(int) - wanted).mean() < 2.5
    assert jpeg_size(data) == photo.shape[:2]


def test_jpeg_is_halved_only_while_it_stays_large_enough(photo):
    data = encode(photo, "JPEG")  # 427 x 640
    assert decode(data, 3, min_size=(213, 320)).shape == (214, 320, 3)
    assert decode(data, 3, min_size=(215, 10)).shape == photo.shape
    assert decode(data, 3, min_size=(50, 50)).shape == (54, 80, 3)


def test_jpeg_above_the_limit_is_halved_as_far_as_asked_and_at_least_once(photo, monkeypatch):
    data = encode(photo, "JPEG")  # 427 x 640
    monkeypatch.setattr("vit_jax.data.images.header.MAX_PIXELS", 427 * 640 - 1)
    for asked, there in (
        ((0, 0), 2),
        ((427, 640), 2),
        ((200, 50), 2),
        ((50, 300), 2),
        ((50, 50), 8),
    ):
        found = decode(data, 3, min_size=asked).shape
        assert found == (-(-427 // there), 640 // there, 3), asked


def test_opencv_does_not_talk_about_what_pillow_says_better(photo, capfd):
    data = encode(photo[:50, :70], "PNG")
    with pytest.raises(ValueError, match="truncated"):
        decode(data[: len(data) // 2], 3)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_grey_and_transparent_files_give_the_channels_asked_for(photo, form):
    grey = photo[:40, :60, 1]
    for channels in (1, 3):
        if form != "WEBP":  # which has no grey
            out = decode(encode(grey, form), channels)
            assert out.shape == (40, 60, channels)
            assert np.abs(out.astype(int) - grey[..., None]).mean() < 3
        if form != "JPEG":
            alpha = np.full((40, 60, 1), 7, np.uint8)
            rgba = np.concatenate([photo[:40, :60], alpha], axis=-1)
            out = decode(encode(rgba, form, lossless=True), channels, OLD_READING)
            assert out.shape == (40, 60, channels)
            if channels == 3:
                np.testing.assert_array_equal(out, photo[:40, :60])


def test_cmyk_palette_and_16_bit_files(photo):
    cut = Image.fromarray(photo[:64, :64])

    def written(image: Image.Image, form: str) -> bytes:
        out = io.BytesIO()
        image.save(out, form, quality=95)
        return out.getvalue()

    cmyk = decode(written(cut.convert("CMYK"), "JPEG"), 3)
    assert np.abs(cmyk.astype(int) - photo[:64, :64]).mean() < 6
    palette = decode(written(cut.quantize(256), "PNG"), 3)
    assert np.abs(palette.astype(int) - photo[:64, :64]).mean() < 6
    deep = Image.fromarray(photo[:64, :64, 0].astype(np.uint16) * 257)
    np.testing.assert_array_equal(decode(written(deep, "PNG"), 1)[..., 0], photo[:64, :64, 0])


def test_orientation_is_applied_unless_told_otherwise(photo):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    for form in ("JPEG", "PNG", "WEBP", "AVIF"):
        data = encode(photo[:30, :50], form, exif=exif)
        stored = decode(data, 3, OLD_READING)
        assert stored.shape == (30, 50, 3)
        np.testing.assert_array_equal(decode(data, 3), np.rot90(stored, -1))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_broken_bytes_raise_value_error(photo, form):
    data = encode(photo[:64, :64], form)
    for broken in (data[: len(data) // 2], data[:20], b"", b"not an image"):
        with pytest.raises(ValueError):
            decode(broken, 3)


def test_values_of_12_bits_in_16_are_told_once_by_name(photo, caplog, monkeypatch):
    monkeypatch.setattr("vit_jax.data.images.decode._told_dark", threading.Event())
    twelve = photo[:8, :8, 0].astype(np.uint16) * 16
    named = png(twelve, 16, 0, (b"sBIT", b"\x0c"))
    for data in (named, encode(twelve * 16, "PNG"), encode(photo[:8, :8], "PNG")):
        decode(data, 3, name=lambda: "well.png")
    decode(encode(np.zeros((8, 8), np.uint16), "PNG"), 3)  # black is no sign of it
    assert not caplog.records
    for form in ("PNG", "TIFF", "PNG"):
        decode(encode(twelve, form), 3, name=lambda form=form: f"dark.{form}")
    (record,) = caplog.records
    assert record.getMessage().startswith("dark.PNG has 16 bits and no value of 4096 or more")
    monkeypatch.setattr("vit_jax.data.images.decode._told_dark", threading.Event())
    decode(tiff(twelve, 16), 1, name=lambda: "dark.tif")
    assert caplog.records[1].getMessage().startswith("dark.tif has 16 bits")
