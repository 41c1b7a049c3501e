# SPDX-License-Identifier: Apache-2.0
"""Weights of a run of our own, from one of its checkpoints: `ckpt:DIR[@step]`."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax import models, trees
from vit_jax.checkpoints import reader
from vit_jax.errors import UserError, unknown
from vit_jax.models import ModelConfig
from vit_jax.weights.config import AVERAGE
from vit_jax.weights.files import WeightsFile
from vit_jax.weights.layout import Entry, FileTensor


class Checkpoint:
    """Parameters and model state of a checkpoint, by our names.

    The first array that is asked for reads and verifies all of them, but no optimizer state.

    Raises UserError: no such checkpoint, a damaged one, or one without a moving average.
    """

    def __init__(self, ref: str, *, ema: bool = False) -> None:
        """Find the checkpoint "DIR", "DIR@1200", "DIR@best" or "DIR@latest"; see `reader.find`.

        With `ema`, or if the run says so, take the moving averages of parameters and statistics
        instead of their last values.
        """
        found = re.fullmatch(r"(.*?)(?:@(\d+|best|latest))?", ref)
        assert found is not None
        run, _, which = ref.rpartition("@")
        if run and not found[2] and Path(run).is_dir() and not Path(ref).exists():
            raise unknown(f"checkpoint of {run}", which, ["best", "latest", "a step"])
        self._saved = reader.find(found[1], found[2] or "")
        self.name = str(self._saved.path)
        self.directory = self._saved.origin
        self.ema = ema = ema or bool(self._saved.manifest.metadata.get(AVERAGE))
        # Maps our names, without their collection, to those of a TrainState's leaves.
        inside = re.compile(r"ema/\w+/" if ema else r"(params|model_state/\w+)/")
        leaves = self._saved.manifest.leaves
        self._names = {inside.sub("", name, 1): name for name in leaves if inside.match(name)}
        if ema and not self._names:
            why = "the run had ema_decay=0; take its parameters, with ema=false"
            raise UserError(f"{self.name} holds no moving average: {why}")
        self.step, manifest = self._saved.step, self._saved.manifest
        self.metadata = manifest.metadata  # of the run: "config", "class_names", "versions"
        self.metrics = manifest.metrics  # by name, at that step
        saved = self.metadata.get("config", {}).get("model", {})
        self.model: ModelConfig = models.from_json(saved)
        self._arrays: dict[str, np.ndarray] | None = None
        shapes = {key: tuple(manifest.leaves[name][1]) for key, name in self._names.items()}
        self.file = WeightsFile(self.name, shapes, self._read)

    def _read(self, key: str) -> np.ndarray:
        """Return one array as float32 and drop it here, so that it is in memory once."""
        if self._arrays is None:
            self._arrays = reader.load(self._saved, self._names.values())
        return self._arrays.pop(self._names[key]).astype(np.float32, copy=False)


def entries(variables: Any) -> list[Entry]:
    """List every parameter and statistic under its own name in a checkpoint, by their shapes."""
    return [
        Entry(
            name=name,
            shape=leaf.shape,
            stacked=False,  # whole arrays: layers are not separated
            layers=((FileTensor(name.split("/", 1)[1], leaf.shape),),),
            decode=lambda parts: parts[0],
            encode=lambda value: [value],
        )
        for name, leaf in trees.named_leaves(variables)
    ]
