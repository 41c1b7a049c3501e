# SPDX-License-Identifier: Apache-2.0
"""A teacher for distillation: its settings, its weights, and its logits on disk."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what `__getattr__` imports, for editors and type checkers
    from vit_jax.distill.cache import LogitCache
    from vit_jax.distill.config import (
        Distillation,
        TeacherConfig,
        check,
        check_unmixed,
        of_student,
    )
    from vit_jax.distill.stream import Stream
    from vit_jax.distill.teacher import check_source, open_teacher, read_weights

RECORD = "cache.json"  # describes the logits of a directory
_FILES = {
    "cache": ("LogitCache",),
    "config": ("Distillation", "TeacherConfig", "check", "check_unmixed", "of_student"),
    "stream": ("Stream",),
    "teacher": ("check_source", "open_teacher", "read_weights"),
}


def __getattr__(name: str) -> Any:
    # Late: most runs have no teacher, but ask whether a directory holds a teacher's logits.
    for file, names in _FILES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{file}"), name)
    raise AttributeError(f"vit_jax.distill has no {name!r}")
