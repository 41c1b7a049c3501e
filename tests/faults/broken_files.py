# SPDX-License-Identifier: Apache-2.0
"""What happens to real image files, and images whose headers promise far more than there is."""

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_image

PHOTO = load_sample_image("china.jpg")[100:148, 200:264]


def encode(image: Image.Image, form: str, **options) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def _flip_bytes(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[2:40] = bytes(38)
    path.write_bytes(data)


# Each leaves a file, or none, that cannot be read; the reason that is then given.
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut off": (lambda path: path.write_bytes(path.read_bytes()[:400]), r"truncated|broken"),
    "empty": (lambda path: path.write_bytes(b""), "the file is empty"),
    "gone": (lambda path: path.unlink(), "No such file or directory"),
    "text": (lambda path: path.write_text("<html>404</html>"), "no image of a known format"),
    "overwritten": (_flip_bytes, "."),
    "bomb": (lambda path: path.write_bytes(png_bomb(20_000, 20_000)), "20000x20000 pixels, where"),
}


def png_bomb(width: int, height: int) -> bytes:
    """Write a PNG of a few hundred bytes, its pixels never there."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    end = chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + end


def bombs() -> dict[str, bytes]:
    """Return small files whose headers say 16,000 x 16,000 pixels, by format."""
    image, side = Image.fromarray(PHOTO), 16_000

    def patched(data: bytes, at: int, layout: str) -> bytes:
        size = struct.pack(layout, side, side)
        return data[:at] + size + data[at + len(size) :]

    jpeg = encode(image, "JPEG")
    progressive = encode(image, "JPEG", progressive=True)
    lossless = bytearray(encode(image, "WEBP", lossless=True))
    lossless[21:25] = struct.pack("<I", (side - 1) | (side - 1) << 14)
    webp = encode(image, "WEBP")
    canvas = encode(image, "WEBP", exif=b"Exif\0\0" + bytes(20))  # which makes it a VP8X
    assert (webp[12:16], canvas[12:16]) == (b"VP8 ", b"VP8X")
    three = struct.pack("<I", side - 1)[:3]
    tiff = io.BytesIO()
    Image.new("1", (side, side)).save(tiff, "TIFF", compression="group4")
    return {
        "JPEG": patched(jpeg, jpeg.index(b"\xff\xc0") + 5, ">HH"),
        "progressive JPEG": patched(progressive, progressive.index(b"\xff\xc2") + 5, ">HH"),
        "PNG": png_bomb(side, side),
        "WebP": patched(webp, 26, "<HH"),
        "lossless WebP": bytes(lossless),
        "WebP canvas": canvas[:24] + three + three + canvas[30:],
        "GIF": patched(encode(image.quantize(16), "GIF"), 6, "<HH"),
        "BMP": patched(encode(image, "BMP"), 18, "<ii"),
        "PPM": b"P6\n%d %d\n255\n" % (side, side),
        "TIFF": tiff.getvalue(),
    }


def noise(side: int = 24) -> np.ndarray:
    """Pixels that no codec makes small, uint8 (side, side, 3)."""
    return np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
