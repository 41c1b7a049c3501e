# SPDX-License-Identifier: Apache-2.0
"""Whatever bytes a file holds, decoding gives an array of the promised shape or a ValueError."""

import contextlib
import time

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.faults.broken_files import PHOTO, encode, noise
from vit_jax.data.config import Crop, TransformConfig
from vit_jax.data.images.decode import decode
from vit_jax.data.images.header import MAX_PIXELS
from vit_jax.data.stream.transform import Transform

IMAGE, BLACK = Image.fromarray(PHOTO), Image.new("RGB", (64, 48))
FILES = {
    "jpeg": encode(IMAGE, "JPEG"),
    "grey jpeg": encode(IMAGE.convert("L"), "JPEG"),
    "cmyk jpeg": encode(IMAGE.convert("CMYK"), "JPEG"),
    "progressive jpeg": encode(IMAGE, "JPEG", progressive=True),
    "png": encode(IMAGE, "PNG"),
    "palette png": encode(IMAGE.quantize(16), "PNG", transparency=3),
    "16-bit png": encode(Image.fromarray(PHOTO[..., 0].astype(np.uint16) * 257), "PNG"),
    "webp": encode(IMAGE, "WEBP"),
    "lossless webp": encode(IMAGE, "WEBP", lossless=True),
    "animated webp": encode(
        IMAGE, "WEBP", save_all=True, append_images=[Image.new("RGB", (64, 48))]
    ),
    "gif": encode(IMAGE.quantize(16), "GIF"),
    "animated gif": encode(IMAGE, "GIF", save_all=True, append_images=[BLACK]),
    "bmp": encode(IMAGE, "BMP"),
    "tiff": encode(IMAGE, "TIFF", compression="tiff_lzw"),
    "noise png": encode(Image.fromarray(noise()), "PNG"),
}
SECONDS = 10.0  # of one image; the largest allowed takes two

# Where, as a share of the file, and what is written there: a length or a marker lies in the header.
place = st.one_of(st.floats(0, 0.1), st.floats(0, 1))
edits = st.lists(st.tuples(place, st.binary(min_size=1, max_size=4)), max_size=6)


def mutated(data: bytes, changes: list[tuple[float, bytes]], keep: float) -> bytes:
    new = bytearray(data)
    for where, written in changes:
        at = int(where * len(new))
        new[at : at + len(written)] = written
    return bytes(new[: int(keep * len(new))])


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(sorted(FILES)),
    changes=edits,
    keep=st.one_of(st.just(1.0), st.floats(0, 1)),
    channels=st.sampled_from((1, 3)),
    exact=st.booleans(),
)
def test_mutated_and_cut_files_decode_or_raise_value_error(name, changes, keep, channels, exact):
    check(mutated(FILES[name], changes, keep), channels, exact)


@settings(max_examples=60, deadline=None)
@given(
    start=st.sampled_from(
        (
            b"",
            b"\xff\xd8\xff",
            b"\x89PNG\r\n\x1a\n",
            b"RIFF\0\0\0\0WEBPVP8X",
            b"GIF89a",
            b"BM",
            b"II*\0",
            b"P6\n",
            b"\0\0\0\x1cftypavif",
        )
    ),
    rest=st.binary(max_size=200),
)
def test_noise_after_a_signature_is_no_crash(start, rest):
    check(start + rest, 3, exact=True)


def check(data: bytes, channels: int, exact: bool) -> None:
    begin = time.monotonic()
    try:
        pixels = decode(data, channels, exact=exact)
    except ValueError:
        pixels = None
    if pixels is not None:
        assert pixels.dtype == np.uint8
        assert pixels.shape[2:] == (channels,)
        assert 0 < pixels.size <= channels * MAX_PIXELS
    assert time.monotonic() - begin < SECONDS


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(["jpeg", "grey jpeg", "cmyk jpeg", "progressive jpeg"]),
    changes=edits,
    keep=st.one_of(st.just(1.0), st.floats(0, 1)),
    seed=st.integers(0, 9),
)
def test_a_part_of_a_mutated_jpeg_is_cut_or_raises_value_error(name, changes, keep, seed):
    """Training decodes no more of a JPEG than the crop needs, by headers that may lie."""
    data = mutated(FILES[name], changes, keep)
    cfg = TransformConfig(crop=Crop.INCEPTION)
    transform = Transform(cfg=cfg, image_size=(16, 16), channels=3, exact=False)
    with contextlib.suppress(ValueError):
        assert transform(data, np.random.default_rng(seed)).shape == (16, 16, 3)
