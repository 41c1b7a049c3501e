# SPDX-License-Identifier: Apache-2.0
"""The rows of a head by the names of their classes: from weights of other classes to a model's."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vit_jax import models, trees
from vit_jax.data import classes
from vit_jax.models import ModelConfig
from vit_jax.settings import fields
from vit_jax.weights.config import CHECKPOINT, split

Flat = Mapping[str, np.ndarray]  # our names -> arrays


class Move(NamedTuple):
    """Where each class of a model lies among those of some weights.

    Attributes:
        names: of the model's K classes.
        there: those of the weights; () where they name none, and rows keep their place.
        ids: of each class of the model its row there; None for a class that the weights lack.
    """

    names: tuple[str, ...]
    there: tuple[str, ...] = ()
    ids: tuple[int | None, ...] = ()

    @property
    def stays(self) -> bool:
        """Whether every row keeps its place."""
        return not self.there or self.ids == tuple(range(len(self.there)))

    @property
    def new(self) -> list[str]:
        """The classes that the weights lack."""
        if not self.there:
            return []
        return [name for name, k in zip(self.names, self.ids, strict=True) if k is None]

    @property
    def dropped(self) -> list[str]:
        """The classes that only the weights have."""
        return [name for k, name in enumerate(self.there) if k not in self.ids]


def class_names(ref: str, *, ema: bool = False) -> tuple[str, ...]:
    """Return the names of the classes of a head, of a run or published; () if unknown."""
    scheme, path = split(ref)
    if scheme != CHECKPOINT:
        from vit_jax.weights.published import describe  # late, as all that reads files of others

        return describe.class_names(ref)
    from vit_jax.weights.readers.ckpt import Checkpoint

    saved = Checkpoint(path, ema=ema)
    names = tuple(saved.metadata.get("class_names", ()))
    return names if len(names) == saved.model.num_classes else ()


def move(ref: str, names: Sequence[str], *, ema: bool = False) -> Move:
    """Find a model's classes among those of weights, by name (`classes.matched`).

    Names that only count, "0", "1", beside others are none. A file of a thousand
    classes is ImageNet's in the order of all published networks, where the model's classes are.
    """
    names, there = tuple(names), class_names(ref, ema=ema)
    if not there and len(names) == classes.NUM_CLASSES:
        there = tuple(classes.names_by_synset().values())
        if None in classes.matched(names, there):
            there = ()
    ids = classes.matched(names, there)
    nothing = all(k is None for k in ids) and len(there) == len(names)
    if nothing and (classes.only_count(there, names) or classes.only_count(names, there)):
        return Move(names)
    return Move(names, there, ids) if there else Move(names)


def leaves(model: ModelConfig) -> dict[str, int]:
    """Return the parameters of a model with a row for each class, and the axis of the rows."""
    if not model.num_classes:
        return {}
    wider = dataclasses.replace(model, num_classes=model.num_classes + 1)
    pairs = zip(*(trees.named_leaves(models.abstract(m)) for m in (model, wider)), strict=True)
    return {
        name: next(i for i, (a, b) in enumerate(zip(x.shape, y.shape, strict=True)) if a != b)
        for (name, x), (_, y) in pairs
        if x.shape != y.shape
    }


def skipped(model: ModelConfig, skip: Sequence[str]) -> bool:
    """Return whether patterns of `init.skip` leave out all of a head."""
    found = [fields.regex("init.skip", pattern) for pattern in skip]
    names = (name.partition("/")[2] for name in leaves(model))
    return all(any(regex.search(name) for regex in found) for name in names)


def moved(
    values: Flat, model: ModelConfig, move: Move, fresh: Callable[[set[str]], Flat] | None = None
) -> dict[str, np.ndarray]:
    """Move the rows of a head, as the weights have them, to their classes in `model`.

    Args:
        values: by our names, of the weights' classes.
        model: of `move.names`.
        move: where each class lies.
        fresh: returns the initial values of some parameters, for classes that the weights lack;
            None where they lack none.
    """
    rows = {name: axis for name, axis in leaves(model).items() if name in values}
    known = np.array([k is not None for k in move.ids])
    places = np.array([0 if k is None else k for k in move.ids])
    found = {name: np.take(values[name], places, axis) for name, axis in rows.items()}
    if not known.all():
        assert fresh is not None, move.new
        for name, value in fresh(set(rows)).items():
            shape = np.ones(value.ndim, int)
            shape[rows[name]] = len(known)
            found[name] = np.where(known.reshape(shape), found[name], value)
    return {**values, **found}


def told(ref: str, move: Move) -> str:
    """Describe in a line what becomes of a head's rows; "" where they simply stay."""
    total, new, dropped = len(move.names), move.new, move.dropped
    if not move.there:
        return f"head: {ref} names no classes; its {total:,} rows are kept by their place"
    if move.stays:
        return ""
    kept = f"{total - len(new):,} of {total:,} classes keep their rows by name"
    anew = f", {len(new):,} start anew: {classes.shown(new)}" if new else ""
    if len(new) == 1:
        anew = anew.replace("start anew", "starts anew")
    gone = f"; dropped: {classes.shown(dropped)}" if dropped else ""
    return f"head: {kept}{anew}{gone}"
