# SPDX-License-Identifier: Apache-2.0
"""What a run evaluates on, and how often."""

import dataclasses

from vit_jax import data, durations
from vit_jax.fields import group, value


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class EvalConfig:
    """One evaluation of a run.

    Attributes:
        split: what to evaluate on, as in `data.train_split`.
        every: how often, a duration; "" is once, at the end of the run.
        batch_size: over all processes; 0 is the training batch size.
        dataset: as `data.name`; "" is the training set's.
        transform: what happens to each image.
        report: write the per-class table and the confusion matrix at the end of the run.
    """

    split: str = "val"
    every: str = ""
    batch_size: int = value(0, least=0, note="0 is the training batch size")
    dataset: str = ""
    transform: data.TransformConfig = group(data.TransformConfig)
    report: bool = False


def validate(cfg: EvalConfig, name: str) -> None:
    """Refuse what can be refused of `evals.<name>` without the dataset and the model."""
    if cfg.every:
        durations.parse(cfg.every)
    data.check_fixed(cfg.transform, f"evals.{name}.transform")
