# SPDX-License-Identifier: Apache-2.0
"""The objective's own loss over a split: each example counted once, whatever the layout."""

import dataclasses
import functools
import math
import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax.errors import UserError
from vit_jax.evals.base import Context, Predict, Predictors, Stream
from vit_jax.evals.config import LossEval
from vit_jax.evals.passes import run_pass


@dataclasses.dataclass(frozen=True)
class MeanLoss:
    """Evaluator of the mean of the predictor "loss"."""

    stream: Stream
    mesh: Mesh

    def run(
        self,
        predictors: Predictors,
        variables: Any,
        report_dir: str | os.PathLike[str] | None = None,
    ) -> dict[str, float]:
        """Return loss and num_examples; raises UserError: an empty split."""
        del report_dir
        losses: list[float] = []

        def score(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
            return _score(variables, batch, predict=predictors["loss"], mesh=self.mesh)

        def take(result: dict[str, jax.Array]) -> None:
            losses.extend(np.asarray(result["loss"])[np.asarray(result["mask"]) > 0].tolist())

        run_pass(self.stream.batches, self.stream.batch_size, self.mesh, score, take)
        if not losses:
            raise UserError(f"{self.stream.name} has no examples to evaluate on")
        # fsum rounds once, so that the order and size of the batches have no effect.
        return {"loss": math.fsum(losses) / len(losses), "num_examples": float(len(losses))}


def create(cfg: LossEval, context: Context) -> MeanLoss:
    """Build the evaluator of a split."""
    return MeanLoss(Stream(cfg, context), context.mesh)


@functools.partial(jax.jit, static_argnames=("predict", "mesh"))
def _score(
    variables: Any, batch: Mapping[str, jax.Array], *, predict: Predict, mesh: Mesh
) -> dict[str, jax.Array]:
    result = {"loss": predict(variables, batch).astype(jnp.float32), "mask": batch["mask"]}
    return jax.lax.with_sharding_constraint(result, NamedSharding(mesh, PartitionSpec()))
