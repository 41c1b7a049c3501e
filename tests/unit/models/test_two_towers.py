# SPDX-License-Identifier: Apache-2.0
"""Pairs of towers by name: exact parameter counts, where training starts, what does not meet."""

import dataclasses
from typing import Any

import pytest

from tests.pairs_of_towers import pair
from tests.unit.models.tiny import TINY
from vit_jax import models, trees
from vit_jax.errors import UserError
from vit_jax.models import two_towers
from vit_jax.models.text import TextConfig, TextPool, TowerHead
from vit_jax.models.two_towers import TwoTowers

# Of the published files: OpenAI's, open_clip's docs/model_profile.csv, big_vision's, PE's.
COUNTS = {
    "clip_b32": 151_277_313,
    "clip_b16": 149_620_737,
    "clip_l14": 427_616_513,
    "clip_l14_336": 427_944_193,
    "openclip_h14": 986_109_441,
    "openclip_g14": 1_366_678_273,
    "openclip_G14": 2_539_567_105,
    "siglip_b16": 203_155_970,
    "siglip_so400m14": 877_360_306,
    "siglip2_b16": 375_187_970,
    "siglip2_l16_256": 881_526_786,
    "siglip2_so400m14": 1_135_463_602,
    "siglip2_gopt16_256": 1_871_393_906,
    "pe_core_l14": 671_137_793,
}


def text_count(cfg: TextConfig, out: int) -> int:
    d, f = cfg.dim, cfg.mlp_dim
    block = 4 * d * d + 4 * d + 2 * d * f + f + d + 4 * d + 2 * d * bool(cfg.layer_scale)
    head = {"none": 0, "linear": d * out, "affine": d * out + out}[cfg.projection]
    return (cfg.vocab_size + cfg.context) * d + cfg.depth * block + 2 * d + head


def count(cfg: TwoTowers) -> int:
    """Return the number of parameters by a formula; of the image encoder by its shapes."""
    image = trees.num_params(models.abstract(cfg.image)["params"])
    width = getattr(cfg.image, "dim", 0)
    head = width * cfg.dim if cfg.image_projection is TowerHead.LINEAR else 0
    return image + head + text_count(cfg.text, cfg.dim) + 1 + cfg.has_bias


def test_counts_are_those_published(subtests: pytest.Subtests) -> None:
    """That all pairs have as many is tests/meta/test_image_text_docs.py's, which traces them."""
    for name, published in COUNTS.items():
        with subtests.test(name):
            cfg = two_towers.variant(name)
            two_towers.validate(cfg)
            assert count(cfg) == published


def test_every_count_is_of_a_pair() -> None:
    assert set(COUNTS) <= set(two_towers.names())


def test_a_size_is_the_images() -> None:
    assert two_towers.variant("siglip2_b16_384").image.image_size == (384, 384)
    assert two_towers.variant("siglip2_l16_512").image.image_size == (512, 512)
    assert two_towers.variant("siglip2_l16_512").text == two_towers.variant("siglip2_l16_256").text
    shallow: Any = two_towers.variant("clip_b16", depth=1).image
    assert shallow.depth == 1


@pytest.mark.parametrize(
    "changes, words",
    [
        (
            {"text": TextConfig(projection=TowerHead.NONE)},
            "text.projection=none needs text.dim=512",
        ),
        ({"image_projection": TowerHead.NONE}, "image_projection=none needs the images' features"),
        ({"text": TextConfig(num_heads=7)}, "text.num_heads=7 does not divide text.dim=512"),
        ({"text": TextConfig(end_id=99_999)}, "text.end_id=99999 is no token of text.vocab_size"),
        (
            {"text": TextConfig(end_id=3, pool=TextPool.LAST)},
            "text.end_id=3 has no effect with text.pool=last",
        ),
        ({"image": TINY["vit"]}, "model.num_classes="),
    ],
)
def test_what_does_not_meet_is_one_line(changes: dict, words: str) -> None:
    with pytest.raises(UserError) as caught:
        two_towers.validate(dataclasses.replace(pair("open_clip"), **changes))
    assert words in str(caught.value)


def test_unknown_pairs_name_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'clip_b16'"):
        two_towers.variant("clip_b61")
