# SPDX-License-Identifier: Apache-2.0
"""Names find the files they stand for; files of every kind become the pixels a person sees."""

import io
import os
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_image

from tests.faults.broken_files import png_bomb
from vit_jax.data.images import header as image_header
from vit_jax.data.images.decode import decode
from vit_jax.errors import UserError
from vit_jax.inference.images import expand, read_image

PHOTO = load_sample_image("china.jpg")[100:148, 200:264]
HEIGHT, WIDTH = PHOTO.shape[:2]


def encode(image: Image.Image, form: str, **options) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    names = ["b/img10.png", "b/img2.JPG", "b/c/x.webp", "a.jpg", "b-1.png", "note[1].png"]
    for name in [*names, "b/notes.txt", "b/.hidden.png", "text/readme.txt"]:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    return tmp_path


def test_folders_are_searched_in_natural_order(tree: Path) -> None:
    assert expand(["b"]) == ["b/c/x.webp", "b/img2.JPG", "b/img10.png"]
    assert expand(["."])[0] == "./a.jpg"
    assert expand([str(tree / "b")]) == [str(tree / name) for name in expand(["b"])]


def test_patterns_find_images_and_folders(tree: Path) -> None:
    assert expand(["b/*"]) == expand(["b"])
    assert expand(["b/img*"]) == ["b/img2.JPG", "b/img10.png"]
    assert expand(["**/*.png"]) == ["b/img10.png", "b-1.png", "note[1].png"]
    assert expand(["**"]) == ["a.jpg", *expand(["b"]), "b-1.png", "note[1].png"]
    assert expand(["note[1].png"]) == ["note[1].png"]  # a file before it is a pattern


def test_each_image_comes_once_where_it_is_named_first(tree: Path) -> None:
    here = f"{tree}/a.jpg"
    assert expand(["b/img10.png", "a.jpg", "b", "./a.jpg", here]) == [
        "b/img10.png",
        "a.jpg",
        "b/c/x.webp",
        "b/img2.JPG",
    ]


def test_a_file_is_taken_whatever_its_name(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert expand(["b/notes.txt", "b/.hidden.png"]) == ["b/notes.txt", "b/.hidden.png"]
    monkeypatch.setenv("HOME", str(tree))
    assert expand(["~/a.jpg"]) == [str(tree / "a.jpg")]


def test_a_list_on_stdin_may_name_what_is_gone(tree: Path) -> None:
    lines = ["b/img2.JPG\n", "\n", "gone.png\r\n", "b\n", "*-1.png"]
    expected = ["a.jpg", "b/img2.JPG", "gone.png", "b/c/x.webp", "b/img10.png", "b-1.png"]
    assert expand(["a.jpg", "-", "b"], lines) == expected


@pytest.mark.parametrize(
    "name, message",
    [
        ("nope.png", "^nope.png: no such file or folder$"),
        ("text", r"^text: no images there \(.jpg, "),
        ("*.gif", r"^\*.gif: no images there"),
    ],
)
@pytest.mark.usefixtures("tree")
def test_a_name_that_finds_nothing_is_an_error(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        expand(["a.jpg", name])


def test_a_folder_that_cannot_be_read_is_an_error(tree: Path) -> None:
    def scandir(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    with pytest.MonkeyPatch.context() as patch:  # root may read any
        patch.setattr(os, "scandir", scandir)
        with pytest.raises(UserError, match=r"^b: Permission denied$"):
            expand(["b"])


PLAIN = {
    "JPEG": {"quality": 90},
    "PNG": {},
    "WEBP": {"quality": 80},
    "BMP": {},
    "TIFF": {},
    "GIF": {},
}


@pytest.mark.parametrize("form", PLAIN)
@pytest.mark.parametrize("channels", [1, 3])
def test_plain_images_have_the_pixels_of_evaluation(
    form: str, channels: int, tmp_path: Path
) -> None:
    for mode in ("RGB", "L"):
        data = encode(Image.fromarray(PHOTO).convert(mode), form, **PLAIN[form])
        expected = decode(data, channels, exact=True)
        np.testing.assert_array_equal(read_image(data, channels), expected)
    file = tmp_path / "x"
    file.write_bytes(data)
    np.testing.assert_array_equal(read_image(file, channels), expected)
    np.testing.assert_array_equal(read_image(str(file), channels), expected)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(form: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if form == "WEBP" else {}
    data = encode(Image.fromarray(PHOTO), form, exif=exif, **options)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    pixels = read_image(data, 3)
    assert pixels.shape == ((WIDTH, HEIGHT, 3) if orientation > 4 else (HEIGHT, WIDTH, 3))
    assert np.abs(pixels.astype(int) - expected).max() <= 1  # of libjpeg-turbo's two wrappers


def test_broken_exif_is_ignored() -> None:
    exif = Image.Exif()
    exif[0x0112] = 77  # of eight
    text = b"Exif\0\0" + struct.pack(">2sHIHHHI4sI", b"MM", 42, 8, 1, 0x0112, 2, 3, b"up", 0)
    for broken in (text, exif):
        data = encode(Image.fromarray(PHOTO), "JPEG", exif=broken)
        np.testing.assert_array_equal(read_image(data, 3), decode(data, 3))


def with_alpha(alpha: np.ndarray, mode: str) -> Image.Image:
    image = Image.fromarray(PHOTO).convert(mode[:-1])
    image.putalpha(Image.fromarray(alpha))
    assert image.mode == mode
    return image


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize("form", ["PNG", "WEBP", "TIFF"])
def test_what_is_transparent_becomes_white(mode: str, form: str) -> None:
    alpha = np.full((HEIGHT, WIDTH), 255, np.uint8)
    alpha[:10], alpha[10:20] = 0, 128
    options = {"lossless": True, "exact": True} if form == "WEBP" else {}
    data = encode(with_alpha(alpha, mode), form, **options)
    plain = np.asarray(Image.fromarray(PHOTO).convert(mode[:-1]).convert("RGB")).astype(float)
    share = alpha[..., None] / 255
    expected = plain * share + 255 * (1 - share)
    pixels = read_image(data, 3)
    np.testing.assert_allclose(pixels, expected, atol=1)
    np.testing.assert_array_equal(pixels[20:], plain[20:])
    grey = read_image(data, 1)
    assert (grey[:10] == 255).all()
    np.testing.assert_allclose(grey[..., 0], expected @ [0.299, 0.587, 0.114], atol=1.5)


def test_palettes_with_and_without_transparency() -> None:
    palette = Image.fromarray(PHOTO).quantize(16)
    colours = np.asarray(palette.convert("RGB"))
    for form in ("PNG", "GIF"):
        np.testing.assert_array_equal(read_image(encode(palette, form), 3), colours)
        index = np.asarray(palette)
        clear = encode(palette, form, transparency=int(index[0, 0]))
        expected = np.where((index == index[0, 0])[..., None], 255, colours)
        np.testing.assert_array_equal(read_image(clear, 3), expected)


LEVELS = PHOTO[..., 0].astype(np.uint16)


def tiff(
    values: np.ndarray, bits: int, kind: int = 1, *, white: int = 1, order: str = "<"
) -> bytes:
    """Write an uncompressed grey TIFF, as Pillow cannot: `kind` 1 unsigned, 2 signed, 3 float."""
    height, width = values.shape
    if bits == 12:
        digits = np.stack([values >> 8, values >> 4 & 15, values & 15], -1).reshape(-1, 2)
        pixels = (digits[:, 0] << 4 | digits[:, 1]).astype(np.uint8).tobytes()
    else:
        pixels = values.astype(f"{order}{' uif'[kind]}{bits // 8}").tobytes()
    # width, height, bits, compression, black or white is zero, offset, samples, rows, bytes, kind
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: white, 273: 138}
    tags |= {277: 1, 278: height, 279: len(pixels), 339: kind}
    entries = b"".join(struct.pack(f"{order}HHII", tag, 4, 1, tags[tag]) for tag in sorted(tags))
    entries = struct.pack(f"{order}H", len(tags)) + entries + bytes(4)
    start = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 8)
    return (start + entries).ljust(138, b"\0") + pixels


def pgm(values: np.ndarray, white: int) -> bytes:
    height, width = values.shape
    return f"P5 {width} {height} {white}\n".encode() + values.astype(">u2").tobytes()


DEEP = {
    "PNG": encode(Image.fromarray(LEVELS * 257), "PNG"),
    "TIFF": encode(Image.fromarray(LEVELS * 257), "TIFF"),
    "TIFF, big-endian": tiff(LEVELS * 257, 16, order=">"),
    "TIFF, white is zero": tiff(65535 - LEVELS * 257, 16, white=0),
    "TIFF of 12 bits": tiff(LEVELS * 16, 12),
    "PGM": pgm(LEVELS * 257, 65535),
    "PGM of 10 bits": pgm(LEVELS * 4, 1020),
}
UNKNOWN = {
    "float TIFF": tiff(LEVELS / 255, 32, 3),
    "int32 TIFF": tiff(LEVELS, 32, 2),
    "signed TIFF": tiff(LEVELS, 16, 2),
    "PFM": f"Pf {WIDTH} {HEIGHT} -1\n".encode() + LEVELS.astype("<f4").tobytes(),
}


@pytest.mark.parametrize("name", DEEP)
def test_training_and_prediction_bring_deep_grey_to_8_bits(name: str) -> None:
    for channels in (1, 3):
        expected = np.repeat(PHOTO[..., :1], channels, axis=-1)
        np.testing.assert_array_equal(read_image(DEEP[name], channels), expected)
        np.testing.assert_array_equal(decode(DEEP[name], channels), expected)
        np.testing.assert_array_equal(decode(DEEP[name], channels, exact=False), expected)


@pytest.mark.parametrize("name", UNKNOWN)
def test_training_and_prediction_refuse_numbers_of_unknown_white(name: str) -> None:
    told = r"pixels without a known white \(mode [IF]\); save it as 8-bit PNG$"
    with pytest.raises(UserError, match=f"^image: {told}"):
        read_image(UNKNOWN[name], 1)
    with pytest.raises(ValueError, match=f"^{told}"):
        decode(UNKNOWN[name], 3)


def test_cmyk_is_as_pillow_converts_it() -> None:
    data = encode(Image.fromarray(PHOTO).convert("CMYK"), "JPEG", quality=95)
    assert np.abs(read_image(data, 3).astype(int) - PHOTO).mean() < 6
    assert read_image(data, 1).shape == (HEIGHT, WIDTH, 1)


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP", "TIFF", "MPO"])
def test_of_several_frames_the_first_is_taken(form: str) -> None:
    first, second = Image.fromarray(PHOTO).quantize(16).convert("RGB"), Image.new("RGB", (64, 48))
    options = {"WEBP": {"lossless": True}, "MPO": {"quality": 95}}.get(form, {})
    data = encode(first, form, save_all=True, append_images=[second], **options)
    with Image.open(io.BytesIO(data)) as image:
        assert image.n_frames == 2
    assert np.abs(read_image(data, 3).astype(int) - np.asarray(first)).mean() < 9  # MPO is JPEG


def test_one_pixel_is_an_image() -> None:
    for form in ("JPEG", "PNG", "WEBP", "GIF"):
        pixels = read_image(encode(Image.new("RGB", (1, 1), (200, 200, 200)), form), 3)
        assert pixels.shape == (1, 1, 3)
        assert np.abs(pixels.astype(int) - 200).max() <= 2


BROKEN = {
    "empty": (b"", "the file is empty"),
    "text": (b"this is no picture\n" * 99, "no image of a known format"),
    "heic": (b"\0\0\0\x18ftypheic" + b"\0" * 99, "a HEIC photograph, .*; save it as JPEG"),
    "start of a JPEG": (b"\xff\xd8\xff\xe0\0\x10", "a broken header"),
    "start of a PNG": (encode(Image.fromarray(PHOTO), "PNG")[:20], "a broken header"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_no_image_is_named_with_the_reason(case: str, tmp_path: Path) -> None:
    data, reason = BROKEN[case]
    file = tmp_path / "x.jpg"
    file.write_bytes(data)
    with pytest.raises(UserError, match=f"^{file}: {reason}") as error:
        read_image(file, 3)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=f"^image: {reason}"):
        read_image(data, 3)


WITH_ALPHA = ("PNG", "WEBP", "GIF", "TIFF", "AVIF")


@pytest.mark.parametrize(
    "mode, form",
    [("RGB", form) for form in ("JPEG", "BMP", *WITH_ALPHA)] + [("RGBA", f) for f in WITH_ALPHA],
)
def test_truncated_files_are_broken(form: str, mode: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, len(mode)), np.uint8)
    data = encode(Image.fromarray(noise, mode), form)
    for length in (len(data) // 2, len(data) // 8):
        with pytest.raises(UserError, match=r"^image: [a-z]"):
            read_image(data[:length], 3)


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone.png: no such file or directory$"):
        read_image(tmp_path / "gone.png", 3)
    with pytest.raises(UserError, match=r": is a directory$"):
        read_image(tmp_path, 3)
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(UserError, match=r"pipe.png: is no regular file$"):
        read_image(tmp_path / "pipe.png", 3)
    with pytest.raises(UserError, match=r"/dev/zero: is no regular file$"):
        read_image("/dev/zero", 3)
    with pytest.raises(UserError, match=r"^'.*two\\nlines.png': no such file"):
        read_image(tmp_path / "two\nlines.png", 3)


def test_bombs_are_refused_by_their_header() -> None:
    with pytest.raises(UserError, match="20000x20000 pixels, where 89 million are the limit"):
        read_image(png_bomb(20_000, 20_000), 3)
    with (
        warnings.catch_warnings(record=True) as warned,
        pytest.raises(UserError, match="10000x10000 pixels, where 89 million are the limit"),
    ):
        read_image(png_bomb(10_000, 10_000), 3)
    assert warned == []
    with pytest.raises(UserError, match="1x600 pixels, a strip of more than 500:1"):
        read_image(encode(Image.new("L", (1, 600)), "PNG"), 3)


def test_a_large_jpeg_is_halved_and_a_larger_one_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(Image.fromarray(PHOTO), "JPEG")
    monkeypatch.setattr(image_header, "MAX_PIXELS", HEIGHT * WIDTH)
    assert read_image(data, 3).shape == PHOTO.shape
    monkeypatch.setattr(image_header, "MAX_PIXELS", HEIGHT * WIDTH - 1)
    half = decode(data, 3, min_size=(HEIGHT // 2, WIDTH // 2))
    np.testing.assert_array_equal(read_image(data, 3), half)
    assert half.shape == (HEIGHT // 2, WIDTH // 2, 3)
    with pytest.raises(UserError, match="64x48 pixels, where"):
        read_image(encode(Image.fromarray(PHOTO), "PNG"), 3)
    with pytest.raises(UserError, match="64x48 pixels, where"):  # libjpeg does not convert it
        read_image(encode(Image.fromarray(PHOTO).convert("CMYK"), "JPEG"), 3)
    monkeypatch.setattr(image_header, "MAX_PIXELS", HEIGHT * WIDTH // 4 - 1)
    with pytest.raises(UserError, match="64x48 pixels, where"):
        read_image(data, 3)


def test_files_of_endless_bytes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_header, "MAX_BYTES", 1 << 20)
    with open(tmp_path / "zeros.png", "wb") as file:
        file.truncate((1 << 20) + 1)
    with pytest.raises(UserError, match=r"zeros.png: a file of more than 1 MiB"):
        read_image(tmp_path / "zeros.png", 3)
