# SPDX-License-Identifier: Apache-2.0
"""The identity of the training stream of cached logits: runs with the same share a cache."""

import dataclasses
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax import models
from vit_jax.data import DataConfig, Source, classes
from vit_jax.data.config import OLD_READING
from vit_jax.distill.cache import WEIGHTS, LogitCache
from vit_jax.distill.config import FIELD, Distillation, TeacherConfig, of_student
from vit_jax.errors import UserError, some
from vit_jax.models import ModelConfig
from vit_jax.settings import fields

_FILES, _CLASSES = "the digest of the images' names", "the checksum of the classes' names"
_FAMILY = f"{FIELD}.teacher.family"
_LATER = re.compile(r"^data\.(batch_size$|mix\.|erasing_prob$)")  # what the step does to a batch


@dataclasses.dataclass(frozen=True)
class Stream:
    """The training stream of a run, and the teacher that labels it."""

    cfg: TeacherConfig
    model: ModelConfig  # the student's; its image size and channels are the stream's
    data: DataConfig
    seed: int
    source: Source  # the training split

    @property
    def taught(self) -> TeacherConfig:
        """The teacher with a head for the student's classes."""
        return of_student(self.cfg, self.model.num_classes)

    def identity(self, weights: str) -> dict[str, Any]:
        """Return, by field, all that the logits depend on; `weights` is the teacher's digest."""
        cfg, data = self.cfg, self.data
        tree = {"seed": self.seed, "data": fields.plain(data)}
        tree["model"] = {"channels": self.model.channels}
        tree["objective"] = {"distill": {"teacher": fields.plain(cfg.teacher)}}

        def decides(key: str) -> bool:
            nodes = {"data.": data, f"{FIELD}.teacher.": cfg.teacher}
            free = (
                key.startswith(prefix) and fields.is_free(node, key.removeprefix(prefix))
                for prefix, node in nodes.items()
            )
            return not _LATER.search(key) and not any(free)

        return {
            **{key: value for key, value in fields.flatten(tree).items() if decides(key)},
            "model.image_size": list(models.input_shape(self.model)[:2]),
            f"{FIELD}.mean": list(cfg.mean or data.mean),
            f"{FIELD}.std": list(cfg.std or data.std),
            "the number of training examples": len(self.source),
            _FILES: self.source.digest(),
            _CLASSES: zlib.crc32(json.dumps(self.source.class_names).encode()),
            WEIGHTS: weights,
        }


def _defaults(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of fields that a cache of an earlier version lacks."""
    teacher = fields.plain(models.from_json({"family": wanted[_FAMILY]}))
    before = dataclasses.replace(DataConfig(), **OLD_READING._asdict())
    tree = {"data": fields.plain(before), "objective": {"distill": {"teacher": teacher}}}
    return {
        **fields.flatten(tree),
        **{key: wanted[key] for key in (_FILES, _CLASSES) if key in wanted},
    }


def check_stream(
    cache: LogitCache, wanted: Mapping[str, Any], class_names: Sequence[str] = ()
) -> None:
    """Raise UserError, with the first differences, if `wanted` is not the cache's identity.

    `class_names` are the student's; a cache that names its own is compared by them.
    """
    if cache.class_names and class_names:
        if not classes.same(class_names, cache.class_names):
            theirs, ours = map(classes.shown, (cache.class_names, class_names))
            what = f"logits of the classes {theirs}, in this order, and these are {ours}"
            raise UserError(f"{cache.path} holds {what}; write another cache")
        wanted = {**wanted, _CLASSES: cache.stream.get(_CLASSES)}
    defaults = _defaults(wanted) if wanted.keys() - cache.stream.keys() else {}
    there = {**{key: defaults[key] for key in wanted if key in defaults}, **cache.stream}
    lines = [
        f"{key} is {wanted.get(key, 'absent')!r}, {there.get(key, 'absent')!r} there"
        for key in sorted(there.keys() | wanted.keys())
        if there.get(key) != wanted.get(key)
    ]
    if lines:
        differs = f"another stream or teacher: {some(lines, 3)}"
        raise UserError(f"{cache.path} holds logits of {differs}; write another cache")


def check_temperature(cache: LogitCache, cfg: TeacherConfig) -> None:
    """Raise UserError if the logits not kept were summed at another temperature."""
    soft = cfg.kind is not Distillation.HARD  # which needs the first guess alone
    if cache.top_k and soft and cache.temperature != cfg.temperature:
        there = f"--top_k={cache.top_k} logits for temperature {cache.temperature:g}"
        wanted = f"{FIELD}.temperature={cfg.temperature:g}"
        raise UserError(f"{cache.path} holds {there}, not {wanted}; write another cache")


def check_length(cache: LogitCache, positions: int) -> None:
    """Raise UserError, with both lengths, for a cache that ends before the run."""
    if cache.done < positions:
        top_k = f" --top_k={cache.top_k}" if cache.top_k else ""
        raise UserError(
            f"{FIELD}.cache={str(cache.path)!r} holds {cache.done:,} of the {positions:,} "
            "positions of this duration; go on with this config: vit_jax cache_teacher "
            f"--config=FILE --out={cache.path}{top_k}"
        )
