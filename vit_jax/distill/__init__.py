# SPDX-License-Identifier: Apache-2.0
"""A teacher for distillation: its settings, its weights, and its logits on disk."""

from vit_jax.distill.cache import LogitCache
from vit_jax.distill.config import Distillation, TeacherConfig, check, check_unmixed, of_student
from vit_jax.distill.stream import Stream
from vit_jax.distill.teacher import check_source, open_teacher, read_weights
