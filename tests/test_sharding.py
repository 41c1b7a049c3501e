# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from vit_jax import models, optim, sharding
from vit_jax.durations import Clock
from vit_jax.errors import UserError
from vit_jax.sharding import MeshConfig

SIZES = {"data": 2, "fsdp": 2, "tensor": 2}


@pytest.mark.parametrize(
    "cfg, devices, shape",
    [
        (MeshConfig(), 8, (8, 1, 1)),
        (MeshConfig(), 1, (1, 1, 1)),
        (MeshConfig(data=1, fsdp=-1), 8, (1, 8, 1)),
        (MeshConfig(data=2, fsdp=2, tensor=2), 8, (2, 2, 2)),
        (MeshConfig(data=1), 8, (1, 1, 1)),  # one of eight
    ],
)
def test_mesh_shape(cfg: MeshConfig, devices: int, shape: tuple) -> None:
    assert sharding.mesh_shape(cfg, devices) == shape
    assert tuple(sharding.abstract_mesh(cfg, devices).shape.values()) == shape


@pytest.mark.parametrize(
    "cfg",
    [MeshConfig(fsdp=3), MeshConfig(data=-1, fsdp=-1), MeshConfig(data=0), MeshConfig(data=16)],
)
def test_mesh_that_does_not_fit(cfg: MeshConfig) -> None:
    with pytest.raises(UserError, match="mesh"):
        sharding.mesh_shape(cfg, 8)


@pytest.mark.parametrize(
    "name, shape, spec",
    [
        ("blocks/attn/qkv/kernel", (12, 64, 192), P(None, "fsdp", "tensor")),
        ("opt_state/adamw/mu/blocks/mlp/fc2/kernel", (12, 256, 64), P(None, "tensor", "fsdp")),
        ("blocks/attn/qkv/bias", (12, 192), P(None, "tensor")),
        ("head/kernel", (64, 7), P("fsdp", None)),  # 7 classes: not divisible by 2
        ("pos_embed", (1, 17, 64), P(None, None, "fsdp")),
        ("patch_embed/kernel", (4, 4, 3, 64), P(None, None, None, "fsdp")),
        ("stage0/block1/conv2/conv/kernel", (3, 3, 8, 64), P(None, None, None, "fsdp")),
        ("stage0/block1/conv3/kernel", (1, 1, 8, 64), P(None, None, None, "fsdp")),
        ("blocks/norm1/scale", (12, 64), P()),
        ("opt_state/adafactor/v_row/blocks/attn/qkv/kernel", (12, 64), P()),  # another rank
        ("step", (), P()),
    ],
)
def test_spec(name: str, shape: tuple, spec: P) -> None:
    assert sharding.spec(name, shape, SIZES) == spec


def test_every_large_vit_parameter_and_moment_is_sharded() -> None:
    cfg = models.variant("vit_b16")
    module = models.create(cfg)
    params, _ = jax.eval_shape(lambda k: models.init(module, cfg, k), jax.random.key(0))
    clock = Clock(batch_size=1, num_examples=1, total_steps=10)
    tx, _ = optim.make_optimizer(optim.OptimConfig(), params, clock)
    tree = {"params": params, "opt_state": jax.eval_shape(tx.init, params)}
    mesh = sharding.abstract_mesh(MeshConfig(data=1, fsdp=8), 8)
    for leaf, where in zip(
        jax.tree.leaves(tree), jax.tree.leaves(sharding.shardings(tree, mesh)), strict=True
    ):
        whole, part = leaf.size * 4, np.prod(where.shard_shape(leaf.shape)) * 4
        assert whole < 2**20 or part * 8 == whole, (leaf.shape, where)


def test_constrain_is_free_without_a_mesh_and_drops_what_does_not_divide() -> None:
    x = jnp.zeros((6, 2, 2))
    assert sharding.constrain(x, sharding.BATCH_AXES) is x
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    with jax.set_mesh(mesh):
        whole = jax.jit(lambda x: sharding.constrain(x, sharding.BATCH_AXES))(x)
        split = jax.jit(lambda x: sharding.constrain(x, None, "tensor"))(x)
    assert whole.sharding.shard_shape(x.shape) == (6, 2, 2)
    assert split.sharding.shard_shape(x.shape) == (6, 1, 2)


def test_global_batch_is_split_over_data_and_fsdp() -> None:
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    batch = sharding.global_batch({"x": np.arange(8)}, mesh, batch_size=8)
    assert batch["x"].sharding.shard_shape((8,)) == (2,)
    np.testing.assert_array_equal(batch["x"], np.arange(8))


@pytest.mark.parametrize("missing", ["JAX_NUM_PROCESSES", "JAX_PROCESS_ID"])
def test_half_described_cluster(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    full = {
        "JAX_COORDINATOR_ADDRESS": "localhost:1",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "0",
    }
    for key, value in full.items():
        if key != missing:
            monkeypatch.setenv(key, value)
    with pytest.raises(UserError, match="JAX_NUM_PROCESSES"):
        sharding.initialize_distributed()


@pytest.mark.parametrize(
    "environment, joins",
    [
        ({}, False),
        ({"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, False),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "3"}, True),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, False),
        ({"TPU_WORKER_HOSTNAMES": "host-0,host-1"}, True),
        ({"TPU_ML_PLATFORM": "JAX"}, True),
        ({"TPU_ML_PLATFORM": "JAX", "TPU_SKIP_MDS_QUERY": "1"}, False),
    ],
)
def test_which_environments_are_clusters(
    monkeypatch: pytest.MonkeyPatch, environment: dict, joins: bool
) -> None:
    for key in ("TPU_SKIP_MDS_QUERY", "TPU_ML_PLATFORM"):  # jax sets them at import
        monkeypatch.delenv(key, raising=False)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    called = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *args: called.append(args))
    sharding.initialize_distributed()
    assert called == ([()] if joins else [])
