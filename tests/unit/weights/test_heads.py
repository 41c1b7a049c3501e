# SPDX-License-Identifier: Apache-2.0
"""Rows of a head move with the names of their classes, in every family and every kind of head."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from tests.unit.models.tiny import TINY
from vit_jax import inference, models, trees
from vit_jax.data import classes
from vit_jax.weights import heads
from vit_jax.weights.heads import Move

OLD, NEW = ("ant", "bee", "cow", "dog"), ("dog", "emu", "ant")


def move() -> Move:
    return Move(NEW, OLD, classes.matched(NEW, OLD))


@pytest.mark.parametrize("family", TINY)
def test_rows_go_with_their_names(family: str) -> None:
    old, new = (dataclasses.replace(TINY[family], num_classes=len(n)) for n in (OLD, NEW))
    shapes = {name: leaf.shape for name, leaf in trees.named_leaves(models.abstract(old))}
    rng = np.random.default_rng(0)
    values = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    wanted = {name: leaf.shape for name, leaf in trees.named_leaves(models.abstract(new))}
    found = heads.moved(
        values, new, move(), lambda names: {name: np.full(wanted[name], 7.0) for name in names}
    )
    assert {name: value.shape for name, value in found.items()} == wanted
    rows = heads.leaves(new)
    assert {name.rpartition("/")[2] for name in rows} == {"kernel", "bias"}
    assert ("params/head_dist/kernel" in rows) == (family == "deit")
    for name, value in found.items():
        if name not in rows:
            assert value is values[name]
            continue
        dog, emu, ant = np.moveaxis(value, rows[name], 0)
        before = np.moveaxis(values[name], rows[name], 0)
        np.testing.assert_array_equal(dog, before[3])
        np.testing.assert_array_equal(ant, before[0])
        assert (emu == 7.0).all()


def test_what_is_said() -> None:
    told = heads.told("ckpt:a", move())
    assert told == (
        "head: 2 of 3 classes keep their rows by name, 1 starts anew: 'emu'; dropped: 'bee', 'cow'"
    )
    assert not heads.told("ckpt:a", Move(OLD, OLD, (0, 1, 2, 3)))
    assert "names no classes; its 4 rows are kept by their place" in heads.told("x", Move(OLD))
    assert Move(OLD, OLD[::-1], (3, 2, 1, 0)).stays is False


def test_a_head_that_is_skipped() -> None:
    model = TINY["deit"]
    assert heads.skipped(model, ("^head",))
    assert not heads.skipped(model, ("^head/",))  # the distillation head is read
    assert not heads.skipped(model, ())


def test_classes_of_a_file_with_a_config_beside_it(tmp_path: Path) -> None:
    file, beside = tmp_path / "model.safetensors", tmp_path / "config.json"
    about = {"mean": [0.5], "std": [0.5], "input_size": [1, 8, 8]}
    tree = {"num_classes": 4, "label_names": list(OLD), "pretrained_cfg": about}
    wrong = {**tree, "num_classes": 3}
    inner = {"pretrained_cfg": {**about, "num_classes": 4, "label_names": list(OLD)}}
    words = {**tree, "label_names": ["n1", "n2", "n3", "n4"]}
    words["label_descriptions"] = dict(zip(words["label_names"], OLD, strict=True))
    for each, known in ((tree, OLD), (inner, OLD), (words, OLD), (wrong, ()), ({**about}, ())):
        beside.write_text(json.dumps(each))
        found = heads.move(f"timm:{file}", NEW)
        assert found.there == known, each
        assert found.ids == ((3, None, 0) if known else ())
    for known, kept in ((OLD, OLD), (("0", "1", "2", "3"), ())):  # the latter only count
        beside.write_text(json.dumps({**tree, "label_names": known}))
        found = heads.move(f"timm:{file}", ("w", "x", "y", "z"))
        assert (found.there, found.ids) == (kept, (None,) * len(kept)), known
    beside.unlink()
    assert heads.move(f"timm:{file}", NEW).there == ()
    # What predicts by the file names the same classes.
    beside.write_text(json.dumps(tree))
    model = dataclasses.replace(TINY["vit"], num_classes=4)
    assert inference.describe(f"timm:{file}", model=model).class_names == OLD
    model = dataclasses.replace(model, num_classes=2)
    assert inference.describe(f"timm:{file}", model=model).class_names == ("class 0", "class 1")
