# SPDX-License-Identifier: Apache-2.0
"""What the metrics of evaluations mean: which direction is better, and how a value is written."""

import enum
import re
from typing import NamedTuple

from vit_jax.errors import UserError


class Mode(enum.StrEnum):
    """Which direction of a metric is better; AUTO is the metric's own, as `declare` has it."""

    AUTO = ""
    MAX = "max"
    MIN = "min"


class Measure(NamedTuple):
    """How to read a metric.

    Attributes:
        better: MAX or MIN.
        title: what it is, for the axis of a picture that it shares with others of this title.
        unit: "%" for a share in [0, 1], which is written in per cent; else what stands behind it.
    """

    better: Mode
    title: str
    unit: str = ""

    def written(self, value: float) -> str:
        """Write a value for a person."""
        return f"{value:.1%}" if self.unit == "%" else f"{value:.4f}{self.unit and f' {self.unit}'}"


_DECLARED: dict[str, Measure] = {}


def declare(pattern: str, measure: Measure) -> None:
    """Declare metrics by the last part of their names, a regex that must match all of it.

    What ranks checkpoints, stops early, draws and prints reads a metric as it is declared here; an
    evaluation of one's own declares its metrics where its config is defined.

    Raises UserError: a direction that is none.
    """
    if measure.better not in (Mode.MAX, Mode.MIN):
        raise UserError(f"{pattern}: better={measure.better!r} must be Mode.MAX or Mode.MIN")
    _DECLARED[pattern] = measure


def of(metric: str) -> Measure | None:
    """Return how a metric such as "val/top1" is read, None if nobody has declared it."""
    last = metric.rpartition("/")[2]
    hits = (m for pattern, m in reversed(_DECLARED.items()) if re.fullmatch(pattern, last))
    return next(hits, None)


def is_accuracy(metric: str) -> bool:
    """Return whether a metric is a share in [0, 1] that should be large."""
    found = of(metric)
    return found is not None and (found.better, found.unit) == (Mode.MAX, "%")


def is_better_larger(metric: str) -> bool:
    """Return whether more of a metric is better; of one that nobody has declared, by its name."""
    found = of(metric)
    return not metric.endswith("loss") if found is None else found.better is Mode.MAX


def direction(metric: str, mode: Mode) -> Mode:
    """Return which direction of a metric is better: its own, or `mode` if nobody has declared it.

    Raises UserError: `mode` is another direction than the metric's own, or AUTO of one that has
    none.
    """
    found = of(metric)
    if found is None and mode is Mode.AUTO:
        raise UserError(
            f"which direction of {metric} is better? Nobody has declared it: set "
            "checkpoint.mode=max, or min"
        )
    if found is not None and mode not in (Mode.AUTO, found.better):
        better = "smaller" if found.better is Mode.MIN else "larger"
        raise UserError(
            f"checkpoint.mode={mode}, but a {better} {metric} is better; leave it out (or set "
            f"{found.better})"
        )
    return mode if found is None else found.better


def resolved(metric: str, mode: Mode) -> Mode:
    """Return `mode` or, where it is AUTO, the metric's own; MAX of one that nobody has declared."""
    found = of(metric)
    auto = Mode.MAX if found is None else found.better
    return auto if mode is Mode.AUTO else mode


_ACCURACY = Measure(Mode.MAX, "accuracy", "%")
declare("loss", Measure(Mode.MIN, "loss"))
declare(r"top\d+|knn\d+|\d+shot|linear", _ACCURACY)
declare(r"(image_to_text|text_to_image)_r\d+", Measure(Mode.MAX, "recall", "%"))
declare("rank", Measure(Mode.MAX, "effective rank"))
declare("similarity", Measure(Mode.MIN, "mean cosine of two images"))
declare("cka|overlap", Measure(Mode.MAX, "alike with the start", "%"))
declare("macro_top1", Measure(Mode.MAX, "accuracy, mean over the classes", "%"))
declare("macro_f1", Measure(Mode.MAX, "F1, mean over the classes", "%"))
declare("abs_rel", Measure(Mode.MIN, "error relative to the truth"))
declare("log10", Measure(Mode.MIN, "error of log10"))
declare(r"delta\d", Measure(Mode.MAX, "depths within a factor of 1.25 to a power", "%"))
declare("map", Measure(Mode.MAX, "average precision, mean over the classes", "%"))
declare("micro_map", Measure(Mode.MAX, "average precision over all labels", "%"))
declare("auroc", Measure(Mode.MAX, "area under the ROC curve", "%"))
declare("f1|cf1|of1", Measure(Mode.MAX, "F1", "%"))
declare("cp|op", Measure(Mode.MAX, "precision", "%"))
declare("cr|or", Measure(Mode.MAX, "recall", "%"))
declare(r"(mae|rmse)(_\w+)?", Measure(Mode.MIN, "error"))
declare(r"r2(_\w+)?", Measure(Mode.MAX, "R2"))
declare("miou", Measure(Mode.MAX, "mean intersection over union", "%"))
declare("accuracy", Measure(Mode.MAX, "accuracy of pixels", "%"))
declare(r"[psr]q(_things|_stuff)?", Measure(Mode.MAX, "panoptic quality", "%"))
declare(r"(mask|box)_a[pr](\d+|_small|_medium|_large)?", Measure(Mode.MAX, "COCO's AP", "%"))
