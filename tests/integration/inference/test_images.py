# SPDX-License-Identifier: Apache-2.0
"""Names find the files they stand for; files of every kind become the pixels a person sees."""

from pathlib import Path

from PIL import Image

from vit_jax.inference.images import read_image


def test_a_real_200_megapixel_photograph_is_read(tmp_path: Path) -> None:
    file = tmp_path / "huge.jpg"
    Image.new("L", (16_320, 12_240), 77).save(file)
    pixels = read_image(file, 1)
    assert pixels.shape == (6_120, 8_160, 1)
    assert (pixels == 77).all()
