# SPDX-License-Identifier: Apache-2.0
"""`visualize --attention` and `--weights` draw what a trained model's attention and weights are."""

import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.figures.overlay import overlay
from vit_jax.visual import attention_sheets
from vit_jax.visual.attention import HeadMaps
from vit_jax.visual.attention_sheets import Choice, chosen


def layer(number: int, kind: str = "block", heads: int = 12, query: str = "q") -> HeadMaps:
    maps = np.random.default_rng(number).random((heads, 2, 3)).astype(np.float32)
    return HeadMaps(kind, number, kind, query, maps, np.arange(heads) + 1.0)


def test_layers_and_heads_are_chosen_evenly_or_by_number():
    local = [layer(i, "local block", query=q) for i in range(10) for q in ("a", "b")]
    layers = [*local, layer(10), layer(11)]
    assert [each.layer for each in chosen(layers, Choice())] == [0, 0, 3, 3, 6, 6, 9, 9, 10, 11]
    assert [each.layer for each in chosen(layers, Choice(layers=(11, 0)))] == [0, 0, 11]
    assert chosen(layers, Choice(layers="all")) == layers
    for choice, message in (
        (Choice(layers=(12,)), "--layers=12: the model has 12 layers, 0 to 11"),
        (Choice(heads=(1, 12)), "--heads=12: the model has 12 heads, 0 to 11"),
    ):
        with pytest.raises(UserError, match=message):
            chosen(layers, choice)

    image = np.zeros((160, 160, 1), np.uint8)

    def heads(choice: Choice) -> list[str]:
        row = attention_sheets._row(image, layers[-1], choice)
        return [tile.caption.split(":")[0] for tile in row]

    assert heads(Choice()) == ["layer 11", *(f"head {i}" for i in (0, 2, 4, 7, 9, 11))]
    assert heads(Choice(heads=())) == ["layer 11"]
    assert heads(Choice(heads=(3, 40))) == ["layer 11", "head 3"]
    assert len(heads(Choice(heads="all"))) == 13
    mean, first, *_ = attention_sheets._row(image, layers[-1], Choice())
    np.testing.assert_array_equal(mean.image, overlay(image, layers[-1].maps.mean(axis=0)))
    np.testing.assert_array_equal(first.image, overlay(image, layers[-1].maps[0]))
    low, high = layers[-1].maps[0].min(), layers[-1].maps[0].max()
    assert first.caption == f"head 0: {low:.3f} to {high:.3f}\n1.0 px"


def test_a_layer_of_several_maps_has_one_distance():
    whole, part = layer(0, query="whole"), layer(0, query="part")
    part.distance[:] = 9
    found = attention_sheets._distances([whole, part, layer(1)._replace(distance=None)])
    assert list(found) == [0]
    np.testing.assert_array_equal(found[0], whole.distance)


def test_a_file_of_any_name_is_told_in_one_line(tmp_path):
    told = attention_sheets.write(tmp_path, "two\nlines_\udce9.png", b"")
    assert told.endswith(r"two\nlines_\udce9.png'")
    assert len(list(tmp_path.iterdir())) == 1
