# SPDX-License-Identifier: Apache-2.0
"""`mesh.reproducible` refuses in one line what would change bits with the number of devices."""

from typing import Any

import pytest

from vit_jax import models
from vit_jax.config import checks, reproducible
from vit_jax.config.tree import Config
from vit_jax.data import DataConfig
from vit_jax.devices.sharding import MeshConfig
from vit_jax.errors import UserError
from vit_jax.objectives import DinoConfig, IJepaConfig
from vit_jax.optim import OptimConfig
from vit_jax.optim.config import Optimizer

REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "=6 must be a power of two, 4 or 8; 0 turns it off": ({"reproducible": 6}, {}),
    "=1 must be a power of two, 2 or 4; 0 turns it off": ({"reproducible": 1}, {}),
    "=16 must divide data.batch_size=24; the nearest batch that it can is 32, and 8 can divide": (
        {"reproducible": 16},
        {},
    ),
    "=8 cannot be shared by 6 devices; set mesh.data so that data x fsdp is 2, 4, ... 8": (
        {"data": 3, "fsdp": 2},
        {},
    ),
    "=8 adds over examples alone; set mesh.tensor=1, not 2": ({"tensor": 2}, {}),
    "=8 already takes its shards one after the other": ({}, {"accum_steps": 2}),
    "=8, but optim.name=lamb sums over whole parameters, which mesh.fsdp=2 cuts; set mesh.fsdp=1": (
        {"fsdp": 2},
        {"optim": OptimConfig(name=Optimizer.LAMB)},
    ),
    "=8 cuts the batch, but DinoConfig learns from a batch as a whole": (
        {},
        {"objective": DinoConfig()},
    ),
    "=8 hands a shard the parameters alone, but IJepaConfig reads the moving average": (
        {},
        {"objective": IJepaConfig()},
    ),
}


def config(mesh: dict[str, Any], fields: dict[str, Any]) -> Config:
    given = {"model": models.variant("vit_mu16", num_classes=10), **fields}
    data = DataConfig(name="digits", batch_size=24)
    return Config(data=data, mesh=MeshConfig(**{"reproducible": 8, **mesh}), **given)


def test_what_changes_bits_is_refused(subtests: pytest.Subtests) -> None:
    for told, (mesh, fields) in REFUSED.items():
        with subtests.test(told=told):
            with pytest.raises(UserError) as raised:
                checks.mesh_divides_the_batch(config(mesh, fields))
            assert str(raised.value).startswith(f"mesh.reproducible{told}")
            # Without it all of these are as they were.
            off = config({**mesh, "reproducible": 0}, fields)
            if off.accum_steps == 1:
                checks.mesh_divides_the_batch(off)


def test_what_keeps_them_passes() -> None:
    lamb = {"optim": OptimConfig(name=Optimizer.LAMB)}
    for mesh, fields in (({}, lamb), ({"fsdp": 8}, {}), ({"data": 2, "fsdp": 4}, {})):
        checks.mesh_divides_the_batch(config(mesh, fields))


def test_batch_norm_is_refused() -> None:
    cfg = config({}, {"model": models.variant("resnet50", num_classes=10)})
    state = {"batch_stats": {"mean": 0.0}}
    told = "^mesh.reproducible=8 cuts the batch, but the BatchNorm of ResNetConfig takes statistics"
    with pytest.raises(UserError, match=told):
        reproducible.check_statistics(cfg, state)
    reproducible.check_statistics(cfg, {})
    reproducible.check_statistics(config({"reproducible": 0}, {}), state)
