# SPDX-License-Identifier: Apache-2.0
"""TIFFs of twelve bands as tifffile wrote them: every layout, compression and order of bytes."""

import struct
from pathlib import Path

import numpy as np
import pytest

from vit_jax.data.images import tiff

# By tifffile 2026.11.8; every file's pixels are those of "pixels_DTYPE".
FILES = np.load(Path(__file__).parents[3] / "golden" / "next3" / "tiffs.npz")


def test_every_layout_gives_the_pixels(subtests: pytest.Subtests) -> None:
    names = [
        name for name in FILES if name.split(" ")[0] in ("uint8", "uint16", "float32", "int16")
    ]
    assert len(names) == 24
    for name in names:
        with subtests.test(name):
            wanted = FILES[f"pixels_{name.split(' ')[0]}"]
            found = tiff.read(FILES[name].tobytes())
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted)


def test_the_number_for_no_data_is_gdals_and_an_overview_is_no_band() -> None:
    assert tiff.nodata(tiff.pages(FILES["nodata"].tobytes())[0]) == -9999
    assert tiff.nodata(tiff.pages(FILES["uint8 chunky"].tobytes())[0]) is None
    assert tiff.read(FILES["overview"].tobytes()).shape == (19, 17, 1)


def test_a_damaged_file_is_refused_in_a_line(subtests: pytest.Subtests) -> None:
    good = FILES["uint16 chunky, deflate, predictor, strips"].tobytes()
    jpeg = good.replace(struct.pack("<HHII", 259, 3, 1, 8), struct.pack("<HHII", 259, 3, 1, 7))
    assert jpeg != good
    letter = good.replace(struct.pack("<HHII", 256, 4, 1, 17), struct.pack("<HHII", 256, 2, 1, 17))
    assert letter != good
    wide = {256: 1, 257: 1, 258: 16, 259: 5, 322: 2**32 - 1, 323: 1, 324: 0, 325: 8}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, each) for tag, each in wide.items())
    tile = b"II*\0" + struct.pack("<IH", 8, len(wide)) + entries + bytes(4)
    cases = {
        "no TIFF": b"\xff\xd8\xff",
        "cut off": good[: len(good) // 2],
        "cut off or damaged": good[:40],
        "compression 7": jpeg,
        "off or damaged": letter,
        "tiles of 4294967295x1 pixels": tile,
        "that is damaged": good[:-300] + bytes(300),
        r"damaged \(": FILES["uint16 planar, LZW"].tobytes()[:-300] + bytes(300),
    }
    for why, data in cases.items():
        with subtests.test(why), pytest.raises(ValueError, match=why):
            tiff.read(data)
