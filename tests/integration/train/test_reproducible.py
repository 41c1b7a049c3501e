# SPDX-License-Identifier: Apache-2.0
"""`mesh.reproducible`: one run has the same bits on 2, 4 and 8 devices, however they share."""

import dataclasses
import hashlib
from typing import Any

import jax
import numpy as np

from configs.vit_mu_digits import get_config
from vit_jax import config as config_lib
from vit_jax import trees
from vit_jax.config.tree import Config
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.optim import OptimConfig
from vit_jax.train import build as build_lib
from vit_jax.train.batches import device_batches


def config() -> Config:
    """Dropout, mixing, clipping, an average, spikes: whatever sums over examples or parameters."""
    cfg = get_config()
    sizes = {"dim": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32}
    cfg.model = dataclasses.replace(cfg.model, dropout_rate=0.1, drop_path_rate=0.1, **sizes)
    cfg.data.batch_size = 32
    cfg.optim = OptimConfig(lr=1e-2, weight_decay=0.1, clip_norm=1.0)
    cfg.duration = "100 steps"
    cfg.ema_decay = 0.9
    cfg.faults.skip_spikes = True
    cfg.mesh.reproducible = 8
    return cfg


def mesh_of(data: int, fsdp: int) -> jax.sharding.Mesh:
    """Make a mesh of the first devices."""
    return sharding.make_mesh(MeshConfig(data=data, fsdp=fsdp), jax.devices()[: data * fsdp])


def advance(cfg: Config, layouts: list[tuple[int, int]], steps: int) -> dict[str, Any]:
    """Train `steps` on each (data, fsdp) in turn: a device has 4, 2 or 1 of the shards.

    Returns a digest of each array of the state, and the metrics of each step.
    """
    source = build_lib.open_train(cfg)
    cfg = config_lib.fitted(cfg, len(source), source.num_classes)
    parts = build_lib.build(cfg, len(source))
    state, done, kept = None, 0, []
    for layout in layouts:
        mesh = mesh_of(*layout)
        if state is None:
            state = build_lib.init_state(cfg, parts, mesh)
        else:
            state = jax.device_put(jax.device_get(state), build_lib.shardings(parts, mesh))
        (step,) = build_lib.compile_steps(parts, mesh)
        batches = device_batches(cfg.data, parts.objective, source, mesh, seed=0, start=done)
        with jax.set_mesh(mesh):
            for _ in range(steps):
                state, metrics = step(state, {}, next(batches))
                kept.append({name: float(x) for name, x in metrics.items()})
        batches.close()
        done += steps
    assert state is not None
    leaves = {"params": state.params, "opt": state.opt_state, "ema": state.ema}
    digests = {
        name: hashlib.sha256(np.asarray(leaf).tobytes()).hexdigest()
        for name, leaf in trees.named_leaves(leaves)
    }
    return {**digests, "metrics": kept}


def test_a_run_has_the_same_bits_on_every_layout() -> None:
    whole = advance(config(), [(2, 1)], 4)
    handed_on = advance(config(), [(2, 4), (1, 4)], 2)
    assert [key for key in whole if handed_on[key] != whole[key]] == []
    assert len({step["loss"] for step in whole["metrics"]}) == 4  # it learns
