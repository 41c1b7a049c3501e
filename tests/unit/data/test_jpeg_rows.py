# SPDX-License-Identifier: Apache-2.0
import io

import numpy as np
import pytest
from PIL import Image

from tests.unit.data.conftest import encode
from vit_jax.data.images.decode import decode, decode_rows

SEQUENTIAL = {
    "4:2:0": {},
    "4:2:2": {"subsampling": 1},
    "4:4:4": {"subsampling": 0},
    "optimized": {"optimize": True, "exif": b"Exif\0\0" + bytes(60)},
}


@pytest.fixture(scope="module")
def cut(photo):
    return photo[200:293, 100:171]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("options", SEQUENTIAL.values(), ids=SEQUENTIAL)
def test_the_upper_rows_are_those_of_the_whole_image(cut, options, channels):
    data = encode(cut, "JPEG", **options)
    whole = decode(data, channels, exact=False)
    for num_rows in range(1, len(cut)):
        rows = decode_rows(data, channels, num_rows)
        assert rows is not None
        np.testing.assert_array_equal(rows, whole[:num_rows])
        np.testing.assert_array_equal(
            decode(data, channels, exact=False, num_rows=num_rows), whole[:num_rows]
        )
    assert decode_rows(data, channels, len(cut)) is None


def test_grey_files(cut):
    data = encode(cut[..., 0], "JPEG")
    for channels in (1, 3):
        whole = decode(data, channels, exact=False)
        np.testing.assert_array_equal(decode_rows(data, channels, 20), whole[:20])


@pytest.mark.parametrize("form", ["progressive", "restarts", "CMYK", "cut off", "damaged"])
def test_what_cannot_be_cut_short_is_decoded_whole(cut, form):
    options = {"progressive": {"progressive": True}, "restarts": {"restart_marker_rows": 1}}
    data = encode(cut, "JPEG", **options.get(form, {}))
    if form == "CMYK":
        out = io.BytesIO()
        Image.fromarray(cut).convert("CMYK").save(out, "JPEG")
        data = out.getvalue()
    elif form == "cut off":
        data = data[:-20]  # in the last rows
    elif form == "damaged":  # an end of image in the upper rows: Pillow fills the rest with grey
        middle = data.index(b"\xff\xda") + 400
        data = data[:middle] + b"\xff\xd9" + data[middle + 2 :]
    for num_rows in (64,) if form == "damaged" else (8, 64):
        assert decode_rows(data, 3, num_rows) is None
    if form == "cut off":
        with pytest.raises(ValueError, match="truncated"):
            decode(data, 3, exact=False, num_rows=64)
    else:
        rows = decode(data, 3, exact=False, num_rows=64)
        np.testing.assert_array_equal(rows, decode(data, 3, exact=False))
