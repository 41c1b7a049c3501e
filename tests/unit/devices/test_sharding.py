# SPDX-License-Identifier: Apache-2.0
import collections
import dataclasses
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from vit_jax import models, optim, trees
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.errors import UserError
from vit_jax.settings.durations import Clock

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
    "cfg, told",
    [
        (MeshConfig(fsdp=3), r"8 device\(s\), which is no multiple of 3; lower mesh.fsdp"),
        (MeshConfig(data=-1, fsdp=-1), "at most one -1"),
        (MeshConfig(data=0), "each must be positive"),
        (MeshConfig(data=16), r"does not fit 8 device\(s\); set one of them to -1"),
    ],
)
def test_mesh_that_does_not_fit(cfg: MeshConfig, told: str) -> None:
    with pytest.raises(UserError, match=told):
        sharding.mesh_shape(cfg, 8)


def test_several_processes_must_use_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(UserError, match=r"all 8 devices of all processes; set mesh\.data=-1"):
        sharding.make_mesh(MeshConfig(data=4))


@pytest.mark.parametrize(
    "name, shape, spec",
    [
        ("blocks/attn/qkv/kernel", (12, 64, 192), P(None, "fsdp", "tensor")),
        ("opt_state/adamw/mu/blocks/mlp/fc2/kernel", (12, 256, 64), P(None, "tensor", "fsdp")),
        ("blocks/attn/qkv/bias", (12, 192), P(None, "tensor")),
        ("head/kernel", (64, 7), P(("fsdp", "tensor"), None)),  # 7 classes: not divisible by 2
        ("head/kernel", (66, 7), P("fsdp", None)),  # 66 is divisible by 2, not by 4
        ("blocks/mlp_tokens/fc1/kernel", (8, 49, 256), P(None, None, ("tensor", "fsdp"))),
        ("dino_head/prototypes/kernel", (64, 4096), P("fsdp", "tensor")),
        ("dino_head/fc3/kernel", (256, 64), P("fsdp", None)),
        ("decoder_embed/kernel", (64, 32), P("fsdp", None)),
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


# Over 1 MB and not cut into fsdp * tensor parts, each with the reason.
COPIED = (
    # 32 KB a block, used beside a matmul: a collective more for each block would cost more.
    (r"blocks/mlp/fc1(_[gx])?/bias$", "fsdp"),
    # Adafactor's row and column means, vectors of a block each, as small.
    (r"/v_(row|col)/", "fsdp"),
    # Heads and MLPs are what the tensor axis splits; around them every device has all channels.
    (r"(^|/)(patch_embed|conv(\d|_dw)?)/kernel$", "tensor"),
    (r"(^|/)(pos_embed|(reduction|expand)/kernel)$", "tensor"),
)


def copied(name: str, axis_sizes: dict[str, int], optimizer: str = "adamw") -> list[str]:
    """List the parameters and moments over 1 MB that a mesh cuts in fewer parts than it could."""
    cfg = models.variant(name, scan_unroll=1)
    for field in ("depths", "backbone_depths"):  # a stage's second block is as all that follow
        if hasattr(cfg, field):
            setattr(cfg, field, tuple(min(depth, 2) for depth in getattr(cfg, field)))
    params = models.abstract(cfg)["params"]
    clock = Clock(batch_size=1, num_examples=1, total_steps=10)
    tx, _ = optim.make_optimizer(optim.OptimConfig(name=optim.Optimizer(optimizer)), params, clock)
    tree = {"params": params, "opt_state": jax.eval_shape(tx.init, params)}
    whole, found = math.prod(axis_sizes.values()), []
    for leaf_name, leaf in trees.named_leaves(tree):
        axes = jax.tree.leaves(tuple(sharding.spec(leaf_name, leaf.shape, axis_sizes)))
        missing = [a for a in axis_sizes if axis_sizes[a] > 1 and a not in axes]
        parts = math.prod(axis_sizes[a] for a in axes)
        if trees.num_bytes(leaf) > 2**20 and parts < whole:
            found += [f"{leaf_name} over {axis}" for axis in missing]
    return found


@pytest.mark.parametrize("optimizer", ["sgd", "lamb", "lion", "adafactor", "muon"])
def test_every_optimizers_moments_follow_their_parameters(optimizer: str) -> None:
    assert unexplained(copied("vit_G14", {"data": 1, "fsdp": 8, "tensor": 1}, optimizer)) == []


def unexplained(leaves: list[str]) -> list[str]:
    def reason(leaf: str) -> bool:
        name, axis = leaf.split(" over ")
        return any(re.search(pattern, name) and why == axis for pattern, why in COPIED)

    return [leaf for leaf in leaves if not reason(leaf)]


@dataclasses.dataclass(frozen=True)
class Device:
    """What mesh_utils asks of a TPU: no machine here has several hosts or slices of them."""

    id: int
    process_index: int
    coords: tuple[int, int, int]
    slice_index: int = 0
    device_kind: str = "TPU v4"
    platform: str = "tpu"
    core_on_chip: int = 0


def pod(x: int, y: int, z: int, num_slices: int = 1) -> list[Device]:
    """List the chips as jax does: by process, each a host of 2 x 2 chips, along x, y, z."""
    devices = []
    for number in range(num_slices):
        hosts = itertools.product(range(z), range(0, y, 2), range(0, x, 2))
        for plane, row, column in hosts:
            process = len(devices) // 4
            for dy, dx in itertools.product(range(2), range(2)):
                coords = (column + dx, row + dy, plane)
                devices.append(Device(len(devices), process, coords, number))
    return devices


SLICES = [(2, 2, 4), (4, 4, 4), (4, 4, 1), (8, 8, 1), (16, 16, 1)]
SHARDS = [(1, 1), (-1, 1), (8, 1), (4, 2), (1, 4), (1, 8)]


def test_a_slices_mesh_follows_its_torus(subtests: pytest.Subtests) -> None:
    for row in itertools.product(["TPU v4", "TPU v5 lite"], SLICES, SHARDS):
        with subtests.test(str(row)):
            kind, size, (fsdp, tensor) = row
            devices = [dataclasses.replace(d, device_kind=kind) for d in pod(*size)]
            cfg = MeshConfig(data=1 if fsdp == -1 else -1, fsdp=fsdp, tensor=tensor)
            shape = sharding.mesh_shape(cfg, len(devices))
            grid = sharding.device_grid(shape, devices)
            assert grid.shape == shape
            assert {d.id for d in grid.flat} == set(range(len(devices)))
            # v5e's compiler refuses groups of chips that are strided along two sides of the torus.
            for axis in range(3):
                for group in np.moveaxis(grid, axis, -1).reshape(-1, shape[axis]):
                    coords = zip(*(d.coords for d in group), strict=True)
                    sides = [sorted(set(side)) for side in coords]
                    strided = [side for side in sides if side != list(range(side[0], side[-1] + 1))]
                    assert len(strided) <= 1


@pytest.mark.parametrize("size", [(4, 4, 1), (4, 4, 4), (16, 16, 1)])
@pytest.mark.parametrize("fsdp, tensor", [(1, 1), (8, 1), (4, 2), (1, 8)])
def test_a_pods_hosts_read_the_rows_that_their_chips_hold(
    size: tuple, fsdp: int, tensor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = [dataclasses.replace(d, device_kind="TPU v5 lite") for d in pod(*size)]
    shape = (len(devices) // fsdp // tensor, fsdp, tensor)
    grid = sharding.device_grid(shape, devices)
    owners = [{d.process_index for d in copies} for copies in grid.reshape(-1, tensor)]
    batch_size = 2 * len(owners)
    found: collections.Counter[int] = collections.Counter()
    for process in range(len(devices) // 4):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        rows = sharding.batch_rows(Mesh(grid, sharding.AXES), batch_size)
        mine = [part for part, owner in enumerate(owners) if process in owner]
        assert rows.tolist() == [2 * part + i for part in mine for i in range(2)]
        found.update(rows.tolist())
    # Every row is read, and as often as processes share a part.
    assert found == {row: len(owners[row // 2]) for row in range(batch_size)}


def test_a_v5e_host_reads_two_runs() -> None:
    devices = [dataclasses.replace(d, device_kind="TPU v5 lite") for d in pod(16, 16, 1)]
    grid = sharding.device_grid((32, 8, 1), devices)
    rows = sharding.batch_rows(Mesh(grid, sharding.AXES), 512)
    assert len(rows) == 8
    assert (np.diff(rows) != 1).sum() == 1


def test_a_batch_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(UserError, match="a batch of 10 cannot be divided evenly over 8"):
        sharding.batch_rows(sharding.make_mesh(MeshConfig()), 10)


def test_some_of_a_slices_devices() -> None:
    grid = sharding.device_grid((3, 1, 1), pod(2, 2, 1)[:3])
    assert [d.id for d in grid.flat] == [0, 1, 2]


def test_data_alone_crosses_from_slice_to_slice() -> None:
    devices = pod(4, 4, 1, num_slices=2)
    for shape in ((32, 1, 1), (4, 8, 1), (2, 16, 1), (4, 4, 2), (2, 4, 4)):
        grid = sharding.device_grid(shape, devices)
        slices = [{d.slice_index for d in copy.flat} for copy in grid]
        assert slices == [{0}] * (shape[0] // 2) + [{1}] * (shape[0] // 2)
    for shape in ((1, 32, 1), (1, 8, 4)):
        with pytest.raises(UserError, match="a multiple of 2"):
            sharding.device_grid(shape, devices)


def test_gpu_nodes_may_share_parameters() -> None:
    nodes = [dataclasses.replace(d, platform="gpu") for d in pod(4, 4, 1, num_slices=2)]
    assert sharding.device_grid((1, 32, 1), nodes).shape == (1, 32, 1)
    # tensor, then fsdp, stay inside a node's fast links where they fit.
    for group in sharding.device_grid((8, 2, 2), nodes).reshape(8, 4):
        assert len({d.process_index for d in group}) == 1


def test_processes_of_unlike_numbers_of_devices() -> None:
    devices = pod(4, 2, 1)
    devices[-1] = dataclasses.replace(devices[-1], process_index=0)
    with pytest.raises(UserError, match="process 0 has 5, process 1 has 3"):
        sharding.device_grid((8, 1, 1), devices)


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
