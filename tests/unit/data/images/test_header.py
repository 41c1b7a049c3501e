# SPDX-License-Identifier: Apache-2.0
import io
import os

import numpy as np
import pytest
from PIL import Image

from tests.faults.broken_files import bombs
from tests.unit.data.conftest import encode
from vit_jax.data.config import Crop, TransformConfig
from vit_jax.data.images import header as image_header
from vit_jax.data.images.decode import decode
from vit_jax.data.images.header import (
    check_size,
    image_size,
    jpeg_size,
    look,
    open_image,
    png_chunks,
    read_file,
)
from vit_jax.data.stream.transform import Transform

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
    assert png_chunks(data) == [b"IHDR", b"IDAT"]
    assert png_chunks(data + b"more")
    assert png_chunks(data[:-20]) is None
    assert png_chunks(data[: data.index(b"IEND") - 4])  # OpenCV forgives it


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


def test_suffixes_are_those_of_formats_that_are_read(photo):
    kinds = {".jpe": "JPEG", ".jfif": "JPEG", ".jif": "JPEG", ".mpo": "MPO", ".apng": "PNG"}
    kinds |= {".dib": "BMP", ".avifs": "AVIF", ".pbm": "PPM", ".pnm": "PPM"}
    assert {*image_header.OLD_SUFFIXES, *kinds} == {*image_header.SUFFIXES}
    for suffix, form in kinds.items():
        mode = "1" if suffix == ".pbm" else "RGB"
        out = io.BytesIO()
        Image.fromarray(photo[:8, :9]).convert(mode).save(out, form)
        assert decode(out.getvalue(), 3).shape == (8, 9, 3)
    assert not {*image_header.SUFFIXES} & {*image_header.UNREAD_SUFFIXES}
    # Those read first of a key's members in a tar are the first ones: their order stays.
    assert image_header.SUFFIXES[: len(image_header.OLD_SUFFIXES)] == image_header.OLD_SUFFIXES


def brand(major: bytes, *others: bytes) -> bytes:
    body = b"ftyp" + major + b"\0\0\0\0" + b"".join(others)
    return (4 + len(body)).to_bytes(4) + body + bytes(99)


def test_avif_is_told_from_heic_by_all_brands(photo):
    assert image_header.is_heic(brand(b"heic"))
    assert image_header.is_heic(brand(b"mif1", b"mif1", b"heic"))
    assert image_header.is_heic(brand(b"mif1"))
    assert not image_header.is_heic(brand(b"mif1", b"mif1", b"miaf", b"avif"))
    assert not image_header.is_heic(brand(b"msf1", b"avis"))
    assert not image_header.is_heic(b"\0\0\0\x18ftypisom" + bytes(99))
    data = encode(photo[:16, :16], "AVIF")
    assert data[8:12] == b"avif"
    assert b"mif1" in data[16:40]
    general = data[:8] + b"mif1" + data[12:]
    np.testing.assert_array_equal(decode(general, 3), decode(data, 3))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM"])
def test_a_look_at_the_first_bytes_finds_nothing_wrong_with_what_can_be_read(photo, form):
    data = encode(photo[:64, :64], form)
    for length in (len(data), len(data) // 2, 1024):
        assert look(data[:length], len(data)) == ""


def test_a_look_at_the_first_bytes_says_what_is_wrong(photo, monkeypatch):
    assert look(b"", 0) == "the file is empty"
    assert look(b"text " * 20, 100) == look(b"text " * 20, 1000)
    assert look(b"text " * 20, 100).startswith("no image of a known format (JPEG, PNG")
    assert (
        look(brand(b"heic"), 9999) == "a HEIC photograph, which is not read here; save it as JPEG"
    )
    assert look(b"\xff\xd8\xff", 1 << 29) == "a file of more than 256 MiB"
    for form, data in BOMBS.items():
        told = look(data[:4096], len(data))
        halved = form == "JPEG" or "of JPEG" in form
        assert ("limit" in told) == (not halved), form
    assert look(encode(photo[:1, :1].repeat(600, 0), "PNG"), 9999).startswith(
        "1x600 pixels, a strip"
    )
    for form in ("JPEG", "PNG", "TIFF", "GIF"):
        short = encode(photo[:64, :64], form)[:20]
        assert look(short, 20)
        assert look(short, 9999) == ""  # the rest of the header may come
    webp = encode(photo[:64, :64], "WEBP")
    assert look(webp[:50], len(webp) - 9) == "the file is cut off"
