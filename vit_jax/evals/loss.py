# SPDX-License-Identifier: Apache-2.0
"""The objective's own loss over a split: each example counted once, whatever the layout."""

import dataclasses
import math
import os
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from vit_jax.errors import UserError
from vit_jax.evals.base import Context, Predictors, Stream
from vit_jax.evals.config import LossEval
from vit_jax.evals.features import predict_batch
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
            mask = {"mask": batch["mask"]}
            return predict_batch(variables, batch, mask, predict=predictors["loss"], mesh=self.mesh)

        def take(result: dict[str, jax.Array]) -> None:
            losses.extend(np.asarray(result["rows"])[np.asarray(result["mask"]) > 0].tolist())

        run_pass(self.stream.batches, self.stream.batch_size, self.mesh, score, take)
        if not losses:
            raise UserError(f"{self.stream.name} has no examples to evaluate on")
        # fsum rounds once, so that the order and size of the batches have no effect.
        return {"loss": math.fsum(losses) / len(losses), "num_examples": float(len(losses))}


def create(cfg: LossEval, context: Context) -> MeanLoss:
    """Build the evaluator of a split."""
    return MeanLoss(Stream(cfg, context), context.mesh)
