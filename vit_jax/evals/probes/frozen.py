# SPDX-License-Identifier: Apache-2.0
"""Probes of the encoder's features while a run trains: neighbours, a few images a class, a line."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from vit_jax.devices import sharding
from vit_jax.evals.base import EvalContext, EvalStream, Folder, Predictors
from vit_jax.evals.config import FewShotEval, KNNEval, LinearEval, ProbeEval
from vit_jax.evals.probes import fewshot, knn, logistic
from vit_jax.evals.probes.base import check_sets
from vit_jax.evals.probes.features import FeatureSet, extract
from vit_jax.process import waiting


@dataclasses.dataclass(frozen=True)
class FrozenProbe:
    """Evaluator that fits a classifier to the features of one split and tests it on another."""

    cfg: ProbeEval
    context: EvalContext
    test: EvalStream
    train: EvalStream

    def run(
        self, predictors: Predictors, variables: Any, report_dir: Folder = None, of: str = ""
    ) -> dict[str, float]:
        """Return the accuracies and num_examples; every process computes them alike.

        Raises UserError: splits that no probe can use, or features that are not finite.
        """
        del report_dir, of
        train, test = (
            extract(
                predictors["features"],
                variables,
                stream.source,
                stream.batches,
                shape=(*self.context.image_size, self.context.channels),
                mesh=self.context.mesh,
                batch_size=stream.batch_size,
            )["features"]
            for stream in (self.train, self.test)
        )
        check_sets(train, test)
        with waiting.said(f"fitting {self.context.name}", after=30):
            found = _FITS[type(self.cfg)](self.cfg, train, test)
        return {**found, "num_examples": float(len(test.labels))}


def create(cfg: ProbeEval, context: EvalContext) -> FrozenProbe:
    """Build the evaluator of a probe's two splits."""
    return FrozenProbe(cfg, context, EvalStream(cfg, context), EvalStream(cfg, context, "train"))


def _nearest(cfg: KNNEval, train: FeatureSet, test: FeatureSet) -> dict[str, float]:
    # On this process's devices: all processes have all features.
    mesh = sharding.make_mesh(sharding.MeshConfig(), jax.local_devices())
    with jax.set_mesh(mesh):
        found = knn.run(train, test, mesh=mesh, k=cfg.k, temperature=cfg.temperature)
    return {f"knn{each.settings['k']}": each.mean for each in found}


def _few(cfg: FewShotEval, train: FeatureSet, test: FeatureSet) -> dict[str, float]:
    seeds = range(cfg.seeds)
    found = fewshot.run(train, test, shots=cfg.shots, l2=(cfg.l2,), seeds=seeds)
    return {f"{each.settings['shots']}shot": each.mean for each in found}


def _linear(_: LinearEval, train: FeatureSet, test: FeatureSet) -> dict[str, float]:
    (found,) = logistic.run(train, test)
    return {"linear": found.mean}


# (the config, train, test) -> metrics by name
_FITS: dict[type[ProbeEval], Callable[[Any, FeatureSet, FeatureSet], dict[str, float]]] = {
    KNNEval: _nearest,
    FewShotEval: _few,
    LinearEval: _linear,
}
