# SPDX-License-Identifier: Apache-2.0
"""What of a file's head is read, by the classes of both sides."""

import dataclasses
import json
from pathlib import Path

import pytest

from tests.unit.models.tiny import TINY
from vit_jax.errors import UserError
from vit_jax.train.initial_state import _plan
from vit_jax.weights.config import InitConfig

OLD, NEW, OTHER = ("ant", "bee", "cow", "dog"), ("dog", "emu", "ant"), ("w", "x", "y", "z")


def test_rows_move_where_a_head_is_read_that_has_classes_of_the_data(tmp_path: Path) -> None:
    about = {"mean": [0.5], "std": [0.5], "input_size": [1, 8, 8]}
    beside = {"num_classes": 4, "label_names": OLD, "pretrained_cfg": about}
    (tmp_path / "config.json").write_text(json.dumps(beside))
    init = InitConfig(weights=f"timm:{tmp_path / 'model.safetensors'}")
    three, four, none = (dataclasses.replace(TINY["vit"], num_classes=n) for n in (3, 4, 0))
    read, model, move = _plan(init, three, NEW)
    assert (read, model) == (init, four)
    assert move is not None
    assert (move.there, move.ids) == (OLD, (3, None, 0))
    assert _plan(init, three, ()) == (init, four, None)
    skipped = dataclasses.replace(init, skip=("^head",))
    assert _plan(skipped, four, OTHER) == (skipped, four, None)
    assert _plan(init, none, ()) == (init, none, None)
    assert _plan(init, three, OTHER[:3]) == (init, three, None)
    with pytest.raises(UserError, match=r"none of which is a class here.*start the head anew"):
        _plan(init, four, OTHER)
    assert _plan(dataclasses.replace(init, new_head=True), four, OTHER)[0].skip == ("^head",)
