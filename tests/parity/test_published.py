# SPDX-License-Identifier: Apache-2.0
"""How published files want their images is what timm says, of every tag."""

import numpy as np
import pytest
from PIL import Image

from tests.parity import published_table
from tests.parity.torch_models import timm
from vit_jax import models
from vit_jax.data import evaluation_view
from vit_jax.weights.published import table as published_lib
from vit_jax.weights.published.table import Preprocessing, preprocessing

PUBLISHED = published_table.published()


def ours(name: str, size: tuple[int, ...]) -> Preprocessing:
    cfg = models.variant("vit_mu16", image_size=size)
    return preprocessing(f"timm:{name}.safetensors", cfg)


def timms(name: str, *, tested: bool) -> dict:
    cfg = PUBLISHED[name].to_dict()
    return timm.data.resolve_data_config(pretrained_cfg=cfg, use_test_size=tested)


def test_the_table_is_what_timm_makes_it() -> None:
    file = published_lib.TABLE
    assert file.read_text("utf-8") == published_table.table()
    assert len(PUBLISHED) > 400


@pytest.mark.parametrize("tested", [False, True])
def test_every_tag_is_prepared_as_timm_resolves_it(tested: bool) -> None:
    for name in PUBLISHED:
        told = timms(name, tested=tested)
        found = ours(name, told["input_size"][1:])
        assert found.source == f"timm's table ({name})"
        assert (found.mean, found.std) == (told["mean"], told["std"]), name
        assert found.size == told["input_size"][1:], name


def test_pixels_are_those_of_timms_own_transform() -> None:
    # Once for each way to prepare an image; the photograph's sides are odd, and far from square.
    image = np.random.default_rng(0).integers(0, 256, (301, 422, 3), dtype=np.uint8)
    ways = {}
    for name in PUBLISHED:
        for tested in (False, True):
            told = timms(name, tested=tested)
            keys = ("input_size", "crop_pct", "crop_mode", "interpolation")
            ways.setdefault(tuple(told[key] for key in keys), name)
    assert len(ways) > 30
    for (size, ratio, mode, interpolation), name in ways.items():
        transform = timm.data.create_transform(
            input_size=size,
            crop_pct=ratio,
            crop_mode=mode,
            interpolation=interpolation,
            normalize=False,
        )
        expected = transform(Image.fromarray(image)).numpy().transpose(1, 2, 0)
        found = evaluation_view(image, ours(name, size[1:]).transform, size[1:])
        np.testing.assert_array_equal(found, expected, err_msg=f"{name} {size} {ratio} {mode}")
