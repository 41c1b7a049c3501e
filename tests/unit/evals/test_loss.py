# SPDX-License-Identifier: Apache-2.0
"""The mean of the predictor "loss": every example once, padding left out."""

import jax
import numpy as np
import pytest

from vit_jax import sharding
from vit_jax.errors import UserError
from vit_jax.evals.base import Stream
from vit_jax.evals.loss import MeanLoss


class Pass(list):
    """One pass over batches in memory."""

    def close(self) -> None:
        pass


def evaluator(*masks: list[int]) -> MeanLoss:
    values = np.arange(100, dtype=np.float32).reshape(-1, 2)
    batches = [
        {"image": values[i], "mask": np.array(mask, np.float32)} for i, mask in enumerate(masks)
    ]
    stream = Stream.__new__(Stream)  # without a source: its batches are these
    stream.batches, stream.batch_size, stream.name = lambda size: Pass(batches), 2, "val"
    return MeanLoss(stream, sharding.make_mesh(sharding.MeshConfig(data=1), jax.devices()[:1]))


def twice(variables: float, batch: dict) -> jax.Array:
    return batch["image"] * variables


def run(evaluator: MeanLoss) -> dict[str, float]:
    return evaluator.run({"loss": twice}, 2.0)


def test_padding_is_left_out() -> None:
    assert run(evaluator([1, 1], [1, 0])) == {"loss": 2 * (0 + 1 + 2) / 3, "num_examples": 3.0}


def test_an_empty_split_is_refused() -> None:
    with pytest.raises(UserError, match="val has no examples"):
        run(evaluator([0, 0]))
