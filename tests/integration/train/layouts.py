# SPDX-License-Identifier: Apache-2.0
"""One process of several: goes on from a checkpoint, some steps on one mesh after the other.

    python -m tests.integration.train.layouts WORKDIR DEVICES,DATA,FSDP,TENSOR[,scattered] ...

DEVICES is how many of its virtual devices each process lends to a mesh; scattered ones lie in it in
a random order, so that the rows of a process are several runs. Prints a line of JSON for each mesh:
what `run` returns.
"""

import dataclasses
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from configs.vit_mu_digits import get_config
from vit_jax.checkpoints import CheckpointConfig
from vit_jax.checkpoints.checkpointer import Checkpointer
from vit_jax.config.tree import Config
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.distill import LogitCache
from vit_jax.distill import cache as cache_lib
from vit_jax.distill.cache import LOGITS, WEIGHTS
from vit_jax.optim import OptimConfig
from vit_jax.process import startup
from vit_jax.train import build as build_lib
from vit_jax.train.batches import device_batches

STEPS = 2  # on each mesh


def config() -> Config:
    cfg = get_config()
    sizes = {"dim": 16, "depth": 1, "num_heads": 2, "mlp_dim": 32}
    cfg.model = dataclasses.replace(cfg.model, **sizes)
    cfg.data.batch_size = 32
    cfg.optim = OptimConfig(lr=1e-3, weight_decay=0.1)
    cfg.duration = "100 steps"
    cfg.ema_decay = 0.0
    return cfg


def lend(mesh: MeshConfig, num_devices: int, *, scattered: bool = False) -> Mesh:
    """Make a mesh of the first devices of every process, `scattered` in one random order."""
    by_process: dict[int, list[Any]] = {}
    for device in jax.devices():
        by_process.setdefault(device.process_index, []).append(device)
    lent = [device for own in by_process.values() for device in own[:num_devices]]
    tidy = sharding.make_mesh(mesh, lent)
    if not scattered:
        return tidy
    grid = np.random.default_rng(0).permutation(tidy.devices.reshape(-1)).reshape(tidy.axis_sizes)
    return Mesh(grid, tidy.axis_names, axis_types=tidy.axis_types)


def write_logits(place: Path, positions: int) -> LogitCache:
    """Write a cache of random logits: what a teacher would say is of no matter here."""
    place.mkdir(parents=True)
    cache = LogitCache(place, {WEIGHTS: "random"}, 0, num_classes=10)
    cache.reserve(positions)
    rng = np.random.default_rng(0)
    cache.write(0, {LOGITS: rng.standard_normal((positions, 10)).astype(np.float16)})
    return cache.finish(positions)


def run(workdir: Path, mesh: Mesh, *, steps: int = STEPS) -> dict[str, Any]:
    """Train `steps` steps from the newest checkpoint on, or from the start; save the last.

    The restored state is, to the bit, what the layout before saved: the checkpoint holds a digest
    of every leaf, which restoring verifies.

    Returns:
        "step" of the first, "losses" of all, and for each the "batches" of this process: the row
        of every example in the global batch, and the SHA-256 of its image, label and logits of
        `WORKDIR/logits`; "val" of the last, what an evaluation says.
    """
    cfg = config()
    source = build_lib.open_train(cfg)
    parts = build_lib.build(cfg, len(source))
    cache = cache_lib.read(workdir / "logits")
    checkpoints = Checkpointer(workdir / "checkpoints", CheckpointConfig(keep=1))
    result: dict[str, Any] = {"losses": [], "batches": [], "step": 0}
    with jax.set_mesh(mesh):
        if checkpoints.latest_step() is None:
            state = build_lib.init_state(cfg, parts, mesh)
        else:
            restored = checkpoints.restore(build_lib.abstract_state(parts, mesh))
            assert restored is not None
            state, result["step"] = restored.state, restored.step
        step = build_lib.compile_steps(parts, mesh)[0]
        batches = device_batches(
            cfg.data,
            parts.objective,
            source,
            mesh,
            seed=cfg.seed,
            start=result["step"],
            rows=cache.rows,
        )
        for _ in range(steps):
            batch = next(batches)
            result["batches"].append(rows(batch))
            del batch[LOGITS]
            state, metrics = step(state, {}, batch)
            result["losses"].append(float(metrics["loss"]))
        batches.close()
        variables = {"params": state.params, **state.model_state}
        sources = build_lib.open_evals(cfg, source)
        val = build_lib.evaluators(cfg, sources, source, mesh, lambda: None)["val"]
        result["val"] = val.run(parts.objective.predictors, variables)
        checkpoints.save(result["step"] + steps, state, metadata={})
        checkpoints.wait()
    return result


def rows(batch: dict[str, jax.Array]) -> dict[str, str]:
    """Hash every example that this process holds, by its row in the global batch."""
    found = {}
    shards = [batch[key].addressable_shards for key in ("image", "label", LOGITS)]
    for arrays in zip(*shards, strict=True):
        first = arrays[0].index[0].start or 0
        assert all((array.index[0].start or 0) == first for array in arrays)
        for i, row in enumerate(zip(*(np.asarray(array.data) for array in arrays), strict=True)):
            joined = b"".join(x.tobytes() for x in row)
            found[str(first + i)] = hashlib.sha256(joined).hexdigest()
    return found


def main() -> None:
    workdir, meshes = Path(sys.argv[1]), sys.argv[2:]
    startup.join_cluster()
    for given in meshes:
        num_devices, data, fsdp, tensor, *scattered = given.split(",")
        cfg = MeshConfig(data=int(data), fsdp=int(fsdp), tensor=int(tensor))
        mesh = lend(cfg, int(num_devices), scattered=bool(scattered))
        print(json.dumps(run(workdir, mesh)), flush=True)


if __name__ == "__main__":
    main()
