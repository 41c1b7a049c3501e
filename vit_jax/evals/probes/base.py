# SPDX-License-Identifier: Apache-2.0
"""What the probes of frozen features share: their score, and the checks of their splits."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from vit_jax.errors import UserError
from vit_jax.evals.calibration import wilson
from vit_jax.evals.probes.features import FeatureSet

_FEW = 2**24


@dataclasses.dataclass(frozen=True)
class Score:
    """Test accuracy of one probe with one setting."""

    method: str  # "fewshot", "knn" or "logistic"
    settings: Mapping[str, int | float]
    top1: tuple[float, ...]  # in [0, 1], one for each seed
    num_test: int  # test images
    of: str = "features"  # or "pixels"
    notes: tuple[str, ...] = ()  # for the reader

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return statistics.fmean(self.top1)

    @property
    def deviation(self) -> float | None:
        """Standard deviation over the seeds (n - 1); None for one seed."""
        return statistics.stdev(self.top1) if len(self.top1) > 1 else None

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the accuracy, from the number of test images."""
        return wilson(round(self.mean * self.num_test), self.num_test)


def blas_threads(size: int) -> AbstractContextManager[Any]:
    """Limit NumPy's and SciPy's BLAS to one thread for small matrices.

    Its threads would mostly wait for each other: on busy cores, up to 80 times as long.
    """
    from threadpoolctl import threadpool_limits  # comes with scikit-learn

    return threadpool_limits(limits=1 if size < _FEW else None, user_api="blas")


def check_sets(train: FeatureSet, test: FeatureSet) -> None:
    """Raise UserError for several labels an image, unlabelled images, or a single class."""
    for split in (train, test):
        if split.labels.ndim > 1:
            raise UserError(f"{split.name} has several labels per image; probes tell one from one")
        if split.labels.min() < 0 or split.labels.max() >= split.num_classes:
            why = "has images without a label (test splits often hold -1)"
            raise UserError(f"{split.name} {why}; choose another split")
    if len(np.unique(train.labels)) < 2:
        raise UserError(f"{train.name} holds images of a single class; a probe needs two")


def unseen_classes(train: FeatureSet, test: FeatureSet) -> list[str]:
    """Describe, in a line or none, the test classes without a training image."""
    missing = np.setdiff1d(np.unique(test.labels), np.unique(train.labels))
    if not len(missing):
        return []
    lost = int(np.isin(test.labels, missing).sum())
    return [
        f"{len(missing)} of the classes of {test.name} have no image in {train.name} (the first: "
        f"{test.class_names[int(missing[0])]}); its {lost:,} images of them count as wrong"
    ]


def to_json(train: FeatureSet, test: FeatureSet, results: Sequence[Score]) -> dict[str, Any]:
    """Return splits and results as JSON holds them."""
    return {
        "train": train.name,
        "test": test.name,
        "num_train": len(train.features),
        "num_test": len(test.features),
        "num_classes": train.num_classes,
        "num_features": train.features.shape[1],
        "results": [
            {
                "of": result.of,
                "method": result.method,
                **result.settings,
                "top1": result.mean,
                "top1_interval": list(result.interval),
                "top1_by_seed": list(result.top1),
            }
            for result in results
        ],
    }
