# SPDX-License-Identifier: Apache-2.0
import io
import os

import numpy as np
import pytest
from PIL import Image

from tests.faults.broken_files import bombs
from tests.unit.data.conftest import encode
from vit_jax.data import image_header
from vit_jax.data.config import Crop, TransformConfig
from vit_jax.data.decode import decode
from vit_jax.data.image_header import (
    check_size,
    image_size,
    is_sound_png,
    jpeg_size,
    open_image,
    read_file,
)
from vit_jax.data.transform import Transform

BOMBS = bombs()


@pytest.mark.parametrize(
    "form, options",
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("PNG", {}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"exif": b"Exif\0\0" + bytes(20)}),
    ],
)
def test_the_header_tells_the_size(photo, form, options):
    for height, width in ((1, 1), (3, 300), (40, 70)):
        data = encode(photo[:height, :width], form, **options)
        assert image_size(data) == (height, width)
        assert jpeg_size(data) == ((height, width) if form == "JPEG" else None)
        with open_image(data) as image:
            assert (image.height, image.width) == (height, width)


def test_whole_pngs_are_known_from_those_that_claim_too_much(photo):
    data = encode(photo[:48, :64], "PNG")
    assert is_sound_png(data)
    assert is_sound_png(data + b"more")
    assert not is_sound_png(data[:-20])
    assert is_sound_png(data[: data.index(b"IEND") - 4])  # OpenCV forgives it


def test_of_other_bytes_no_size_is_told(photo):
    for data in (b"", b"RIFF", b"\xff\xd8\xff", encode(photo[:9, :9], "GIF"), b"BM  RIFFWEBP" * 3):
        assert image_size(data) is None


@pytest.mark.parametrize("form", BOMBS)
@pytest.mark.parametrize("exact", [True, False])
def test_an_image_of_too_many_pixels_is_refused_with_its_size(form, exact):
    transform = Transform(
        cfg=TransformConfig(crop=Crop.INCEPTION), image_size=(8, 8), channels=3, exact=exact
    )
    told = r"16000x16000 pixels, where 89 million are the limit|more pixels than 89 million"
    with pytest.raises(ValueError, match=told):
        transform(BOMBS[form], np.random.default_rng(0))
    with pytest.raises(ValueError, match=told):
        decode(BOMBS[form], 3, exact=exact)


def test_what_is_large_is_within_the_limit_or_not(monkeypatch):
    check_size(9459, 9459)
    for height, width in ((9460, 9460), (1, 501), (501, 1), (0, 5)):
        with pytest.raises(ValueError, match=f"{width}x{height} pixels"):
            check_size(height, width)
    check_size(2 * 9459, 2 * 9459, times=4)


def test_only_some_formats_are_opened(photo):
    """Of PostScript, Pillow would have another program run."""
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"
    with pytest.raises(ValueError, match="no image of a known format"):
        decode(postscript, 3)
    for form in ("GIF", "BMP", "TIFF", "PPM"):
        image = photo[:9, :9]
        assert decode(encode(image, form), 3).shape == (9, 9, 3)


def test_empty_bytes_are_called_so():
    with pytest.raises(ValueError, match="the file is empty"):
        decode(b"", 3)


def test_no_pipe_and_no_endless_file_is_read(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(ValueError, match="is no regular file"):
        read_file(tmp_path / "pipe.jpg")
    monkeypatch.setattr(image_header, "MAX_BYTES", 1 << 20)
    with open(tmp_path / "zeros.jpg", "wb") as file:
        file.truncate((1 << 20) + 1)
    with pytest.raises(ValueError, match="a file of more than 1 MiB"):
        read_file(tmp_path / "zeros.jpg")
    (tmp_path / "small.jpg").write_bytes(b"abc")
    assert read_file(tmp_path / "small.jpg") == b"abc"


def test_a_broken_header_is_told_whatever_pillow_raises():
    out = io.BytesIO()
    Image.new("RGB", (4, 4)).save(out, "PNG")
    with pytest.raises(ValueError, match="a broken header"):
        open_image(out.getvalue()[:20])
