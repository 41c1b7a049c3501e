# SPDX-License-Identifier: Apache-2.0
"""How many directions the features use, and how far training has carried them from the start's.

Four numbers of up to `MOST` images, none of which needs a label. `rank` is the effective rank of
the features' covariance, the exponential of the entropy of its eigenvalues (Roy and Vetterli 2007),
1 on a line; `similarity` the mean cosine of two images. `cka` compares all distances with those of
the starting parameters' features of the same images (linear CKA, arXiv:1905.00414), `overlap` is
the share of each image's nearest neighbours that were its neighbours at the start.

Differs from RankMe (arXiv:2210.02885): that takes singular values of features as they are. Here the
mean is taken off, which in a random network outweighs all else, and eigenvalues, their squares,
count, so that one direction beside many faint ones shows.
"""

import io
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Float, Int

from vit_jax.devices import hosts
from vit_jax.evals.base import EvalContext, EvalStream, Folder, Predictors
from vit_jax.evals.config import FeaturesEval
from vit_jax.evals.probes.features import extract, feature_shapes
from vit_jax.storage import files

MOST = 2048  # images that are compared, evenly from the split
FILE = "start.npy"  # of the starting parameters, in the folder of the evaluation
_FALLEN = 0.1  # of the start's rank: what is left when a warning is due
_LINE, _POINT = 1.5, 1 - 1e-6  # of the rank, and of the similarity

Rows = Float[np.ndarray, "N D"]


def effective_rank(features: Rows) -> float:
    """Return exp(entropy) of the covariance's eigenvalues as shares: 1 to D, 0 of equal rows."""
    powers = np.linalg.svd(_centred(features), compute_uv=False) ** 2
    total = powers.sum()
    if not total > 1e-12 * max(float(np.square(features, dtype=np.float64).sum()), 1e-30):
        return 0.0  # what is left is rounding
    shares = powers[powers > 0] / total
    return float(np.exp(-(shares * np.log(shares)).sum()))


def similarity(features: Rows) -> float:
    """Return the mean cosine of two different rows."""
    unit = _unit(features)
    return float((np.square(unit.sum(axis=0)).sum() - len(unit)) / (len(unit) * (len(unit) - 1)))


def cka(features: Rows, others: Rows) -> float:
    """Return the linear CKA of two networks' features of the same images, from 0 to 1.

    Neither a rotation nor a scale of one of them changes it. It is 0 where either is constant.
    """
    x, y = _centred(features), _centred(others)
    both, own, other = (np.square(a.T @ b).sum() for a, b in ((x, y), (x, x), (y, y)))
    scale = np.sqrt(own) * np.sqrt(other)
    return float(both / scale) if scale > 0 else 0.0


def overlap(features: Rows, others: Rows, k: int) -> float:
    """Return the mean share of a row's k nearest, by their cosine, that are so by `others` too."""
    k = min(k, len(features) - 1)
    first, second = neighbours(features, k), neighbours(others, k)
    shared = (first[:, :, None] == second[:, None, :]).any(axis=2)
    return float(shared.mean())


def neighbours(features: Rows, k: int) -> Int[np.ndarray, "N k"]:
    """Return the k nearest other rows of each, by their cosine, in no order."""
    unit = _unit(features)
    near = unit @ unit.T
    np.fill_diagonal(near, -np.inf)
    return np.argpartition(-near, k - 1, axis=1)[:, :k]


def _centred(features: Rows) -> Rows:
    wide = features.astype(np.float64)
    return wide - wide.mean(axis=0)


def _unit(features: Rows) -> Rows:
    wide = features.astype(np.float64)
    return wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)


def collapse(rank: float, alike: float, start: float, *, labelled: bool) -> str:
    """Return a line that tells how the features have collapsed, "" where they have not.

    It goes by their rank, their similarity and the rank at the start. A run with labels is told
    only that all images are alike: its classes may well lie on few directions.
    """
    if alike > _POINT or not rank:
        return "collapse: the features of all images are the same"
    if labelled:
        return ""
    if rank < _LINE:
        return f"collapse: the features lie nearly on one line, of effective rank {rank:.2f}"
    if rank < _FALLEN * start:
        fallen = f"fell from {start:.1f} at the start to {rank:.1f}"
        return f"the effective rank of the features {fallen}: they may collapse"
    return ""


class Drift:
    """Evaluator of the features, which keeps those that it saw first to compare the others with."""

    def __init__(self, cfg: FeaturesEval, context: EvalContext) -> None:
        self._cfg, self._context = cfg, context
        self._stream = EvalStream(cfg, context)
        self._start: Rows | None = None
        self._first = True  # whether the next features are the start's
        self._file: Path | None = None

    def begin(self, predictors: Predictors, variables: Any, file: Path, *, fresh: bool) -> None:
        """Write the first features to a file or, of a run that is continued, read them there.

        Where the file is lost the comparison is left out, and a line says so. The first of
        several processes reads and writes. `variables` give the shapes alone.
        """
        self._first, self._file = fresh, file
        if fresh:
            return
        mine = _read(file) if jax.process_index() == 0 else None
        shape = self._shape(predictors, variables)
        if not hosts.led(lambda: mine is not None and mine.shape == shape):
            self._tell(f"{file} is not what the run wrote at its start: cka, overlap are left out")
            return
        self._start = np.zeros(shape, np.float32) if mine is None else mine
        if jax.process_count() > 1:
            self._start = np.asarray(multihost_utils.broadcast_one_to_all(self._start))

    def run(
        self, predictors: Predictors, variables: Any, report_dir: Folder = None, of: str = ""
    ) -> dict[str, float]:
        """Return the numbers and num_examples; every process computes them alike.

        A collapse is told in a line. Raises UserError: features that are not finite.
        """
        del report_dir, of
        stream, context = self._stream, self._context
        found = extract(
            predictors["features"],
            variables,
            stream.source,
            stream.batches,
            shape=(*context.image_size, context.channels),
            mesh=context.mesh,
            batch_size=stream.batch_size,
        )["features"].features
        rows = found[_chosen(len(found))]
        if self._first:
            self._first, self._start = False, rows
            self._keep(rows)
        numbers = {"rank": effective_rank(rows), "similarity": similarity(rows)}
        start = numbers["rank"]
        if self._start is not None:
            start = effective_rank(self._start)
            numbers["cka"] = cka(rows, self._start)
            numbers["overlap"] = overlap(rows, self._start, self._cfg.neighbours)
        labelled = context.loss is not None
        told = collapse(numbers["rank"], numbers["similarity"], start, labelled=labelled)
        self._tell(told and f"warning: {context.name}: {told}")
        return {**numbers, "num_examples": float(len(rows))}

    def _shape(self, predictors: Predictors, variables: Any) -> tuple[int, int]:
        size = (*self._context.image_size, self._context.channels)
        width = feature_shapes(predictors["features"], variables, size)["features"][0]
        return len(_chosen(len(self._stream.source))), width

    def _keep(self, rows: Rows) -> None:
        if self._file is None or jax.process_index():
            return
        content = io.BytesIO()
        np.save(content, rows)
        self._file.parent.mkdir(exist_ok=True)
        files.write(self._file, content.getvalue())

    def _tell(self, line: str) -> None:
        if line and jax.process_index() == 0:
            print(line, flush=True)


def create(cfg: FeaturesEval, context: EvalContext) -> Drift:
    """Build the evaluator of a split."""
    return Drift(cfg, context)


def _chosen(count: int) -> Int[np.ndarray, " N"]:
    return np.linspace(0, count - 1, min(count, MOST)).astype(np.int64)


def _read(file: Path) -> Rows | None:
    """Read the features of the start; None where the file is lost or damaged."""
    try:
        return np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return None
