# SPDX-License-Identifier: Apache-2.0
"""Statistics of a split against NumPy's of all its pixels together, with values left out."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vit_jax import data
from vit_jax.cli.prepare import Prepare, prepare
from vit_jax.data import statistics
from vit_jax.data.config import WHITE, PixelType
from vit_jax.data.images import bands
from vit_jax.errors import UserError


def folder(root: Path, arrays: list[np.ndarray]) -> data.Source:
    place = root / "set" / "train" / "a"
    place.mkdir(parents=True)
    for i, array in enumerate(arrays):
        (place / f"{i}.npy").write_bytes(bands.as_file(array))
    return data.open_source(f"folder:{root}/set", split="train", bands=("all",))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_they_are_numpys_whatever_the_dtype(dtype: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    white = WHITE[PixelType(dtype)]
    # Far from zero and of little spread, where sums of squares in floats would lose it.
    low, high = (1e6, 1e6 + 1) if dtype == "float32" else (white - 9, white)
    sizes = [(5, 7), (9, 4), (3, 11)]
    arrays = [rng.uniform(low, high, (*size, 2)).astype(dtype) for size in sizes]
    found = statistics.measure(folder(tmp_path, arrays), ("all",), num_threads=2)
    flat = np.concatenate([array.reshape(-1, 2) for array in arrays]).astype(np.float64)
    np.testing.assert_allclose(found.mean, flat.mean(axis=0) / white, rtol=1e-13)
    np.testing.assert_allclose(found.std, flat.std(axis=0) / white, rtol=1e-7)
    assert found.dtype == dtype
    assert found.values == len(flat)
    assert found.nodata == (0, 0)


def test_no_data_are_counted_and_left_out(tmp_path: Path) -> None:
    image = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    image[0, 0] = np.nan, -9999
    image[1, 1, 1] = np.inf
    other = np.zeros((4, 3, 3), np.float32)
    source = folder(tmp_path, [image, image, other])  # the last is left out of the folder already
    found = statistics.measure(source, ("all",), nodata=-9999.0)
    kept = [channel[np.isfinite(channel) & (channel > -1)] for channel in np.moveaxis(image, 2, 0)]
    np.testing.assert_allclose(found.mean, [channel.mean() for channel in kept])
    np.testing.assert_allclose(found.std, [channel.std() for channel in kept])
    assert found.nodata == (2, 4)
    assert found.images == 2
    told = found.lines()
    assert "6 values are no data, at most 4 (16.67%) of channel 1" in told[1]
    assert told[-1].startswith("data.mean=12,13.4 data.std=")


def test_no_data_are_what_a_float_of_32_bits_makes_of_the_number(tmp_path: Path) -> None:
    image = np.full((2, 2, 1), 7, np.float32)
    lowest = "-3.40282346638529e+38"  # as older GDAL writes it, a little below the lowest float
    for k, text in enumerate(("0.1", lowest)):
        image[0, 0, 0] = np.float32(text)
        found = statistics.measure(folder(tmp_path / str(k), [image]), ("all",), nodata=float(text))
        assert (found.nodata, found.mean) == ((1,), (7.0,))


def test_the_command_measures_pictures_too(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 3)).astype(np.uint8)
    place = tmp_path / "photos" / "train" / "a"
    place.mkdir(parents=True)
    Image.fromarray(pixels).save(place / "a.png")
    (place / "broken.png").write_bytes((place / "a.png").read_bytes()[:60])
    out = tmp_path / "found.json"
    given = Prepare(name=f"folder:{tmp_path}/photos", statistics=True, out=out)
    assert prepare(given) is None
    found = json.loads(out.read_text())
    np.testing.assert_allclose(found["mean"], pixels.mean(axis=(0, 1)) / 255)
    assert found["bands"] == []
    assert found["dtype"] == "uint8"
    assert f"--config.data.statistics={out}" in capsys.readouterr().out
    cfg = data.DataConfig(statistics=str(out))
    data.check(cfg)
    assert cfg.mean == tuple(found["mean"])
    with pytest.raises(UserError, match="has no effect without --statistics"):
        prepare(Prepare(name="x", nodata=0.0))
