# SPDX-License-Identifier: Apache-2.0
"""What `mesh.reproducible` asks of the rest of a config, so that no layout changes a bit."""

from typing import Any

from vit_jax.config.tree import Config
from vit_jax.errors import UserError
from vit_jax.optim.config import Optimizer

# Their sums run over whole parameters, which mesh.fsdp cuts.
_SUMMING = (
    *(Optimizer.LAMB, Optimizer.LARS, Optimizer.ADAFACTOR),
    *(Optimizer.MUON, Optimizer.NORMUON, Optimizer.ADAMUON, Optimizer.NADAMUON),
)


def check(cfg: Config, devices: int) -> None:
    """Raise UserError for what would change a run's bits with the number of devices.

    `devices` is how many a batch is cut over, as far as the config says it.
    """
    shards, size = cfg.mesh.reproducible, cfg.data.batch_size
    if not shards:
        return
    asked = f"mesh.reproducible={shards}"
    if shards == 1 or shards & (shards - 1):
        below = max(1 << shards.bit_length() - 1, 2)
        raise UserError(f"{asked} must be a power of two, {below} or {2 * below}; 0 turns it off")
    if size % shards:
        near = max(round(size / shards), 1) * shards
        raise UserError(
            f"{asked} must divide data.batch_size={size}; the nearest batch that it can is {near}, "
            f"and {size & -size} can divide this one"
        )
    if shards % devices:
        fewer = f"mesh.data so that data x fsdp is 2, 4, ... {shards}"
        raise UserError(f"{asked} cannot be shared by {devices} devices; set {fewer}")
    mesh, optim = cfg.mesh, cfg.optim.name
    if mesh.tensor != 1:
        raise UserError(f"{asked} adds over examples alone; set mesh.tensor=1, not {mesh.tensor}")
    if cfg.accum_steps > 1:
        anyway = "already takes its shards one after the other where devices are few"
        raise UserError(f"{asked} {anyway}; set accum_steps=1, not {cfg.accum_steps}")
    if mesh.fsdp != 1 and optim in _SUMMING:
        sums = f"optim.name={optim} sums over whole parameters, which mesh.fsdp={mesh.fsdp} cuts"
        raise UserError(f"{asked}, but {sums}; set mesh.fsdp=1, or another optimizer")
    if not cfg.objective.splits_batch:
        whole = f"{type(cfg.objective).__name__} learns from a batch as a whole"
        raise UserError(f"{asked} cuts the batch, but {whole}; set mesh.reproducible=0")
    if cfg.objective.needs_average:
        reads = f"{type(cfg.objective).__name__} reads the moving average of the parameters"
        raise UserError(f"{asked} hands a shard the parameters alone, but {reads}; set it to 0")


def check_statistics(cfg: Config, model_state: Any) -> None:
    """Raise UserError for a model with BatchNorm, whose `model_state` is not empty."""
    if cfg.mesh.reproducible and model_state:
        asked = f"mesh.reproducible={cfg.mesh.reproducible}"
        whole = f"the BatchNorm of {type(cfg.model).__name__} takes statistics of it as a whole"
        raise UserError(f"{asked} cuts the batch, but {whole}; set mesh.reproducible=0")
