# SPDX-License-Identifier: Apache-2.0
"""What a trained model's outputs mean: one class of an image, several labels, or numbers."""

import numpy as np

from vit_jax.errors import UserError, setting
from vit_jax.evals import MultiLabelEval
from vit_jax.evals.config import EvalConfig
from vit_jax.evals.several import read_thresholds
from vit_jax.inference.trained import Trained
from vit_jax.models.losses import Loss
from vit_jax.workdir.folder import CHECKPOINTS

_USUAL = 0.5  # of a probability, where a run has chosen no other


def learns_several(trained: Trained) -> bool:
    """Return whether a run has learned several labels of an image, as its evaluations say."""
    return any(isinstance(each, MultiLabelEval) for each in _evals(trained).values())


def thresholds(trained: Trained, given: float = 0.0) -> tuple[float, ...]:
    """Return what each class's probability must reach to count as seen; () of one class an image.

    It is the number `given`, else what the run chose on its val, else 0.5 for every class.

    Raises UserError: a number for a model that chooses one class, or none below 1; thresholds of
    the run that are damaged.
    """
    several = learns_several(trained)
    if given and (trained.gives_numbers or trained.loss is Loss.SOFTMAX):
        does = "gives numbers" if trained.gives_numbers else "chooses one class of an image"
        raise UserError(f"{trained.ref} {does}; leave {setting('threshold')} out")
    if given >= 1:
        raise UserError(f"threshold={given} is of probabilities; set one below 1, such as 0.5")
    count = len(trained.class_names)
    if given:
        return (given,) * count
    if not several:
        return ()
    folders = [f"{_run(trained)}/{name}" for name, each in _chosen(trained).items() if each.report]
    found = read_thresholds(folders, trained.class_names)
    return (_USUAL,) * count if found is None else tuple(np.asarray(found).tolist())


def _evals(trained: Trained) -> dict[str, EvalConfig]:
    return {} if trained.config is None else trained.config.evals


def _chosen(trained: Trained) -> dict[str, MultiLabelEval]:
    """Return the evaluations that choose thresholds, the one that ranks checkpoints first."""
    assert trained.config is not None
    ranking = trained.config.checkpoint.metric.partition("/")[0].removesuffix("_ema")
    found = [(k, x) for k, x in _evals(trained).items() if isinstance(x, MultiLabelEval)]
    return dict(sorted(found, key=lambda item: item[0] != ranking))


def _run(trained: Trained) -> str:
    """Return the folder or the address of the run."""
    place = trained.source.partition(":")[2]
    return (place.rpartition("@")[0] or place).removesuffix(f"/{CHECKPOINTS}")
