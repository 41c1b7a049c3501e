# SPDX-License-Identifier: Apache-2.0
"""Settings of bands that do not go together, and sources that are not as they say."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import refused_by
from vit_jax import data, models
from vit_jax.config import checks
from vit_jax.config.tree import Config
from vit_jax.data import DataConfig, PixelType, TransformConfig
from vit_jax.data.images import bands
from vit_jax.data.sources.base import Labelled
from vit_jax.errors import UserError


def config(channels: int = 12, **fields: Any) -> Config:
    model = models.variant("vit_mu8", channels=channels, num_classes=2, image_size=(16, 16))
    return Config(model=model, data=DataConfig(**{"bands": ("all",), **fields}))


def test_what_does_not_go_together_is_refused(subtests: pytest.Subtests) -> None:
    colours = TransformConfig(auto_augment="randaug(2,10)")
    cases = {
        "model.channels=12: pictures are grey or RGB": config(bands=()),
        "data.bands=all,B02: all is every band": config(bands=("all", "B02")),
        "must name each band, and once": config(bands=("B02", "B02"), channels=2),
        "are 2, and model.channels=12": config(bands=("B02", "B03")),
        "the model has channels 0 to 11": config(bands_shown=(3, 2, 12)),
        "data.mean=(0.1, 0.2) must hold 1 or model.channels=12": config(mean=(0.1, 0.2)),
        "data.transform.auto_augment=randaug(2,10) changes colours": config(transform=colours),
        "data.transform.color_jitter=0.4 changes colours": config(
            transform=TransformConfig(color_jitter=0.4)
        ),
        "data.dtype=uint16 has no effect without data.bands": config(
            bands=(), channels=3, dtype=PixelType.UINT16
        ),
        "data.upright=False has no effect with data.bands": config(upright=False),
        "data.mean=300: white is 1 here": config(mean=(300.0,), dtype=PixelType.UINT16),
    }
    for why, cfg in cases.items():
        with subtests.test(why), pytest.raises(UserError) as error:
            checks.check(cfg)
        assert why in str(error.value)
    checks.check(config(mean=(300.0,), dtype=PixelType.FLOAT32))  # in the data's own unit
    with pytest.raises(UserError, match="changes colours"):
        data.one_view(colours, (16, 16), 12, data.reading(config().data))


def test_bands_are_as_a_flag_gives_them() -> None:
    cfg = config(bands=("B11,B02",), channels=2)
    checks.check(cfg)
    assert cfg.data.bands == ("B11", "B02")


def test_statistics_are_read_into_the_config(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    mean = [i / 100 for i in range(12)]
    found = {"mean": mean, "std": [0.5] * 12, "dtype": "uint16", "bands": ["all"]}
    file.write_text(json.dumps(found))
    cfg = config(dtype=PixelType.UINT16, statistics=str(file))
    checks.check(cfg)
    assert cfg.data.mean == tuple(mean)
    assert cfg.data.std == (0.5,) * 12
    assert cfg.data.statistics == ""  # a run is saved with the numbers
    cases = {
        "is of data.dtype=uint16, and this is uint8": {"dtype": PixelType.UINT8},
        "is of data.bands=all, and this is 0,1": {"bands": ("0", "1")},
        "has another; give one": {"mean": (0.3,)},
        "holds no statistics (No such file": {"statistics": str(tmp_path / "none.json")},
    }
    for why, fields in cases.items():
        given = {"dtype": PixelType.UINT16, "statistics": str(file), **fields}
        with pytest.raises(UserError) as error:
            data.check(config(**given).data)
        assert why in str(error.value)
    file.write_text(json.dumps({**found, "std": [0.0, *[0.5] * 11]}))
    with pytest.raises(UserError, match=r"channels \[0\] have one value"):
        data.check(config(dtype=PixelType.UINT16, statistics=str(file)).data)


@dataclasses.dataclass
class Arrays(Labelled):
    name: str
    arrays: list[np.ndarray]
    class_names: tuple[str, ...] = ()
    labels: None = None

    def __len__(self) -> int:
        return len(self.arrays)

    def read(self, index: int) -> dict[str, Any]:
        return {"image": bands.as_file(self.arrays[index])}

    def digest(self) -> str:
        return ""

    def example_id(self, index: int) -> str:
        return f"array {index}"


def test_the_first_images_are_looked_at() -> None:
    four = np.zeros((16, 16, 4), np.uint16)
    cfg = config(dtype=PixelType.UINT16).data
    wanted = "array 0: has 4 bands, where the model takes 12"
    with pytest.raises(UserError, match=wanted):
        data.check_bands(Arrays("a", [four] * 3), cfg, 12)
    data.check_bands(Arrays("a", [four, np.zeros((16, 16, 12), np.uint16)]), cfg, 12)
    with refused_by("data.bands_config.check_source"):
        data.check_bands(Arrays("a", [four.astype(np.float32)]), cfg, 4)
