# SPDX-License-Identifier: Apache-2.0
"""A dataset's labels as the class ids of a model: classes are matched by their names."""

import functools
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from vit_jax import data
from vit_jax.data import classes
from vit_jax.data.sources.base import (
    Example,
    Labelled,
    account_of,
    gives_numbers,
    has_unknown,
    is_remote,
)
from vit_jax.errors import UserError
from vit_jax.evals.base import Predict

Groups = tuple[tuple[int, ...], ...]  # of each class of a test set, the ids of the model's classes


class Renumbered(Labelled):
    """Another source with a model's class names, and its id for each of the source's classes."""

    def __init__(
        self,
        source: data.Source,
        ids: np.ndarray,
        class_names: tuple[str, ...],
        groups: Groups = (),
    ) -> None:
        self.groups = groups
        self._source = source
        self._ids = ids
        self.name = source.name
        self.multi_label = source.multi_label
        self.class_names = class_names
        self.drawn, self.is_remote = source.drawn, is_remote(source)
        self.account = account_of(source)
        self.has_unknown, self.numbers = has_unknown(source), gives_numbers(source)
        with_none = np.append(ids, -1)  # which -1, no label, finds
        self.labels = None if source.labels is None else with_none[source.labels]

    def __len__(self) -> int:
        return len(self._source)

    def read(self, index: int) -> Example:
        """Return an example with its label by the model's ids."""
        found = self._source.read(index)
        if self.numbers:
            value = np.full(self.num_classes, np.nan, np.float32)
            value[self._ids] = found["value"]
            return {**found, "value": value}
        label = found["label"]
        if isinstance(label, int):
            return {**found, "label": int(self._ids[label]) if label >= 0 else label}
        hot = np.zeros(self.num_classes, label.dtype)
        hot[self._ids] = label
        return {**found, "label": hot}

    def example_id(self, index: int) -> str:
        return self._source.example_id(index)

    def digest(self) -> str:
        return self._source.digest()


def align(
    source: data.Source,
    class_names: Sequence[str],
    advice: str = "evaluate on a dataset of its classes, or name them: --classes=FILE",
) -> data.Source:
    """Renumber a source's class ids to those of a model with these class names (`classes.matched`).

    Raises UserError: a class that the model does not have; it ends with the `advice`. Numbers
    are matched by their names too.
    """
    names, given = tuple(class_names), source.class_names
    if given == names:
        return source
    ids = classes.matched(given, names)
    strange = [name for name, k in zip(given, ids, strict=True) if k is None]
    if not strange:
        return Renumbered(source, np.array(ids, int), names)
    close = classes.near(strange[0], names)
    hint = f", but {close!r} is one" if close else ""
    others = f", nor are {len(strange) - 1:,} others" if strange[1:] else ""
    what = "class"
    if gives_numbers(source):
        what, advice = "number", "call the columns as the model does, with their units"
    few = ", ".join(names[:3]) + (", ..." if names[3:] else "")
    raise UserError(
        f"{source.name} has the {what} {strange[0]!r}, which is none of the model's "
        f"{len(names)} ({few}){others}{hint}; {advice}"
    )


def joined(train: data.Source, test: data.Source) -> tuple[data.Source, data.Source]:
    """Number the classes of two splits alike, by name: the first's, then what only the second has.

    Splits with the same classes in the same order are returned as they are.
    """
    if classes.same(test.class_names, train.class_names):
        return train, test
    ids = classes.matched(test.class_names, train.class_names)
    more = [name for name, k in zip(test.class_names, ids, strict=True) if k is None]
    names, own = (*train.class_names, *more), iter(range(train.num_classes, 10**9))
    there = np.array([next(own) if k is None else k for k in ids], int)
    first = Renumbered(train, np.arange(train.num_classes), names) if more else train
    return first, Renumbered(test, there, names)


def rule(
    source: data.Source, class_names: Sequence[str], **advice: str
) -> tuple[data.Source, Groups]:
    """Number a source by a model's classes; a test set of some of ImageNet's, by its own.

    ImageNet-A and -R are known by TFDS's names or by folders of exactly their 200 synsets,
    ObjectNet by its folders, of which those that ImageNet has no class for are left out. Their
    authors let a model choose among their classes alone: `grouped` does, by the groups returned
    beside the source. Other sources are as `align` has them, with no groups.

    Raises UserError: a class that the model does not have.
    """
    given, name = source.class_names, source.name.partition("[")[0]
    if tuple(class_names) == tuple(classes.names_by_synset().values()):
        for known in ("imagenet_a", "imagenet_r", "objectnet"):
            groups = classes.groups_of(known)
            own = tuple(groups)
            if known == "objectnet" and groups.keys() <= set(given):
                kept = tuple(k for k, folder in enumerate(given) if folder in groups)
                some = data.select_classes(source, kept, cache=False)
                return some, tuple(groups[folder] for folder in some.class_names)
            if known == name or own == given:
                ids = np.array([own.index(x) if x in groups else -1 for x in given])
                return Renumbered(source, ids, classes.readable(own)), tuple(groups.values())
    return align(source, class_names, **advice), ()


def numbered(source: data.Source, class_names: Sequence[str], advice: str) -> data.Source:
    """Number a source as `rule` does, with its groups as an attribute, which `groups_of` finds.

    Classes of the same names in the same order stay under the names that the source has for them.
    """
    if classes.same(source.class_names, class_names):
        return source
    found, groups = rule(source, classes.readable(class_names), advice=advice)
    if not groups:
        return found
    return Renumbered(found, np.arange(len(groups)), found.class_names, groups)


def groups_of(source: data.Source) -> Groups:
    """Return the groups of a source from `with_rule`; () for others."""
    return getattr(source, "groups", ())


@functools.lru_cache  # one function object a model and test set, so that jit finds it
def grouped(predict: Predict, groups: Groups) -> Predict:
    """Return what gives each group of classes the largest of its logits; without groups, the same.

    The largest of several is WiSE-FT's rule (arXiv:2109.01903) for ObjectNet.
    """
    if not groups:
        return predict
    width = max(map(len, groups))
    ids = np.array([[*group, *[group[0]] * (width - len(group))] for group in groups])
    return lambda variables, batch: jnp.max(predict(variables, batch)[:, ids], axis=-1)
