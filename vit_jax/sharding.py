# SPDX-License-Identifier: Apache-2.0
"""Device mesh, and rules from parameter names to shardings (regex over names, as in big_vision).

One code path: a laptop is the (1, 1, 1) mesh. `data` copies parameters and splits the batch,
`fsdp` splits both (ZeRO-3), `tensor` splits heads and MLP width (Megatron-LM, arXiv:1909.08053).
"""

import collections
import dataclasses
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from vit_jax import trees
from vit_jax.errors import UserError

PyTree = Any
AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")
HEARTBEAT_TIMEOUT = 30  # seconds
SHUTDOWN_TIMEOUT = 60  # longer than the first process takes for a run's last files

# First match wins; a spec names the trailing dimensions, so that stacked parameters (one leading
# depth axis) follow the same rules, and optimizer moments follow by the end of their name.
# qkv columns are ordered (head, {q,k,v}, head_dim): splitting them splits whole heads.
RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"(^|/)(qkv|qk|kv|q|k|v|fc1)/kernel$", ("fsdp", "tensor")),
    (r"(^|/)(qkv|qk|kv|q|k|v|fc1)/bias$", ("tensor",)),
    (r"(^|/)(proj|fc2)/kernel$", ("tensor", "fsdp")),
    (r"(^|/)reduction/kernel$", ("fsdp", None)),
    (r"(^|/)(pre_logits|head|head_dist)/kernel$", ("fsdp", "tensor")),
    (r"(^|/)(head|head_dist)/bias$", ("tensor",)),
    (r"(^|/)(patch_embed|conv\d?)/kernel$", (None, None, None, "fsdp")),
    (r"(^|/)pos_embed$", (None, None, "fsdp")),
)


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class MeshConfig:
    """Sizes of the mesh axes; one of them may be -1: all devices that are left."""

    data: int = -1
    fsdp: int = 1
    tensor: int = 1


def mesh_shape(cfg: MeshConfig, num_devices: int) -> tuple[int, int, int]:
    """Resolve -1 and check that there are devices enough; fewer than all is one's choice.

    Raises:
        UserError: the sizes cannot be laid over `num_devices` devices.
    """
    sizes = [cfg.data, cfg.fsdp, cfg.tensor]
    asked = ", ".join(f"mesh.{a}={s}" for a, s in zip(AXES, sizes, strict=True))
    if sizes.count(-1) > 1 or any(s < 1 and s != -1 for s in sizes):
        raise UserError(f"{asked}: each must be positive, and at most one -1 (all devices left)")
    known = math.prod(s for s in sizes if s != -1)
    if -1 in sizes and num_devices % known == 0:
        sizes[sizes.index(-1)] = num_devices // known
    if -1 in sizes or math.prod(sizes) > num_devices:
        raise UserError(f"{asked} does not fit {num_devices} device(s); set one of them to -1")
    return sizes[0], sizes[1], sizes[2]


def make_mesh(cfg: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """Lay `devices` (default: all, of all hosts) over the (data, fsdp, tensor) mesh.

    Raises:
        UserError: a mesh that does not fit, or one that leaves a host without work.
    """
    devices = list(devices) if devices is not None else jax.devices()
    shape = mesh_shape(cfg, len(devices))
    if jax.process_count() > 1 and math.prod(shape) != len(devices):
        raise UserError(f"mesh {shape} must use all {len(devices)} devices of all processes")
    grid = device_grid(shape, devices[: math.prod(shape)])
    # Auto: Linen's modules reject Explicit axes.
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * 3)


def device_grid(shape: tuple[int, int, int], devices: Sequence[Any]) -> np.ndarray:
    """Lay devices over the mesh, a process's own devices side by side: tensor first, then fsdp.

    So the axes that talk most stay on the fastest links, a process reads contiguous examples, and
    of several TPU slices `data` alone crosses the network between them. JAX's own layout of a whole
    pod follows the torus instead and scatters each host's devices over the batch.

    Args:
        shape: of (data, fsdp, tensor).
        devices: as many as that takes.

    Raises:
        UserError: processes of unlike numbers of devices, or a mesh that slices cannot share out.
    """
    counts = collections.Counter(d.process_index for d in devices)
    local = len(devices) // len(counts)
    if set(counts.values()) != {local}:
        each = ", ".join(f"process {i} has {n}" for i, n in sorted(counts.items()))
        raise UserError(f"every process must have as many devices as the others, but {each}")
    tensor = math.gcd(shape[2], local)
    fsdp = math.gcd(shape[1], local // tensor)
    inside = (local // tensor // fsdp, fsdp, tensor)
    across = tuple(whole // part for whole, part in zip(shape, inside, strict=True))
    grid = mesh_utils.create_hybrid_device_mesh(
        inside, across, devices, process_is_granule=True, allow_split_physical_axes=True
    )
    if devices[0].platform == "tpu":
        num_slices = len({_slice(d) for d in devices})
        if any(len({_slice(d) for d in copy.flat}) > 1 for copy in grid):
            raise UserError(
                f"mesh {shape}: fsdp and tensor cannot cross the network between slices; "
                f"make mesh.data a multiple of {num_slices}"
            )
    return grid


def _slice(device: Any) -> int:
    return getattr(device, "slice_index", 0)


def abstract_mesh(cfg: MeshConfig, num_devices: int) -> AbstractMesh:
    """Describe a mesh without its devices: a dry run plans a pod from a laptop."""
    return AbstractMesh(mesh_shape(cfg, num_devices), AXES, axis_types=(AxisType.Auto,) * 3)


def spec(name: str, shape: Sequence[int], axis_sizes: Mapping[str, int]) -> PartitionSpec:
    """Return the PartitionSpec of a parameter (or of its moment) by the first rule that matches.

    An axis that does not divide its dimension joins another axis on the last dimension that it does
    divide (a Mixer's tokens are odd in number, its token MLP is not), or else copies. A leaf of
    another rank than its rule's is copied (Adafactor's factored moments).
    """
    for pattern, axes in RULES:
        if re.search(pattern, name):
            lead = len(shape) - len(axes)
            if lead != int(trees.is_stacked(name)):
                continue
            return PartitionSpec(*[None] * lead, *_fit(axes, shape[lead:], axis_sizes))
    return PartitionSpec()


def _fit(
    axes: Sequence[str | None], shape: Sequence[int], axis_sizes: Mapping[str, int]
) -> list[str | tuple[str, ...] | None]:
    placed: list[list[str]] = [[] for _ in shape]

    def place(axis: str, dims: Sequence[int]) -> bool:
        for dim in dims:
            parts = math.prod(axis_sizes[a] for a in (*placed[dim], axis))
            if shape[dim] % parts == 0:
                placed[dim].append(axis)
                return True
        return False

    left = [axis for dim, axis in enumerate(axes) if axis and not place(axis, [dim])]
    for axis in left:
        place(axis, range(len(shape) - 1, -1, -1))
    return [tuple(on) if len(on) > 1 else on[0] if on else None for on in placed]


def shardings(abstract: PyTree, mesh: Mesh | AbstractMesh) -> PyTree:
    """Map every leaf of a state to its NamedSharding by name."""
    sizes = dict(mesh.shape)
    return trees.map_named(
        lambda name, leaf: NamedSharding(mesh, spec(name, leaf.shape, sizes)), abstract
    )


def batch_sharding(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """Split the leading (example) axis over data and fsdp."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def batch_parts(mesh: Mesh | AbstractMesh) -> int:
    """Count the parts that a global batch is split into."""
    return math.prod(mesh.shape[a] for a in BATCH_AXES)


def batch_slice(mesh: Mesh) -> tuple[int, int]:
    """Return (i, n): this process reads part i of n equal, contiguous parts of a global batch.

    Processes that share examples (a tensor axis that spans them) read the same part.

    Raises:
        UserError: devices so ordered that a process would need scattered examples.
    """
    parts = batch_parts(mesh)
    slices = batch_sharding(mesh).addressable_devices_indices_map((parts,)).values()
    starts = sorted({index[0].indices(parts)[0] for index in slices if index is not None})
    count = len(starts)
    if starts != list(range(starts[0], starts[0] + count)) or starts[0] % count or parts % count:
        raise UserError(
            f"mesh {dict(mesh.shape)} gives process {jax.process_index()} the parts {starts} of a "
            "batch, which are not contiguous; make mesh.tensor * mesh.fsdp a multiple or divisor "
            "of the devices per process"
        )
    return starts[0] // count, parts // count


def constrain(x: jax.Array, *axes: str | tuple[str, ...] | None) -> jax.Array:
    """Pin an activation's leading dimensions to mesh axes; a no-op outside `jax.set_mesh`.

    An axis that does not divide its dimension is dropped (the batch of one of a prediction).
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return x
    return jax.lax.with_sharding_constraint(x, fitted_spec(x.shape, axes, mesh))


def fitted_spec(
    shape: Sequence[int],
    axes: Sequence[str | tuple[str, ...] | None],
    mesh: Mesh | AbstractMesh,
) -> PartitionSpec:
    """Split leading dimensions over mesh axes, but for those that their axis does not divide."""
    fitted: list[str | tuple[str, ...] | None] = []
    for dim, axis in enumerate(axes):
        names = (axis,) if isinstance(axis, str) else axis or ()
        parts = math.prod(mesh.shape[a] for a in names)
        fitted.append(axis if shape[dim] % parts == 0 else None)
    return PartitionSpec(*fitted)


def global_batch(batch: Mapping[str, Any], mesh: Mesh, *, batch_size: int) -> dict[str, jax.Array]:
    """Assemble the global batch from every process's contiguous slice (numpy, leading axis)."""
    sharding = batch_sharding(mesh)
    if jax.process_count() == 1:  # the same, in less of the host's time
        return jax.device_put(dict(batch), sharding)
    return {
        # global_shape always: without it processes with uneven slices disagree silently.
        key: jax.make_array_from_process_local_data(sharding, x, (batch_size, *x.shape[1:]))
        for key, x in batch.items()
    }


def initialize_distributed() -> None:
    """Join the cluster that the environment describes (TPU pod, Slurm, Open MPI, Kubernetes).

    A single process does nothing. `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and
    `JAX_PROCESS_ID` describe a cluster by hand; `JAX_NUM_PROCESSES=1` alone says that a process
    that looks like one of a cluster's is a run of its own. Must run before any other jax call.

    Raises:
        UserError: half a description, or a cluster that could not be joined.
    """
    env = os.environ
    by_hand: tuple[Any, ...] = ()
    if "JAX_COORDINATOR_ADDRESS" in env:
        try:
            count, index = int(env["JAX_NUM_PROCESSES"]), int(env["JAX_PROCESS_ID"])
        except (KeyError, ValueError) as error:
            raise UserError(
                "JAX_COORDINATOR_ADDRESS is set: set JAX_NUM_PROCESSES and JAX_PROCESS_ID as well"
            ) from error
        if not re.fullmatch(r".+:\d+", env["JAX_COORDINATOR_ADDRESS"]):
            raise UserError(
                f"JAX_COORDINATOR_ADDRESS={env['JAX_COORDINATOR_ADDRESS']} must be HOST:PORT"
            )
        by_hand = (env["JAX_COORDINATOR_ADDRESS"], count, index)
    elif env.get("JAX_NUM_PROCESSES") == "1" or not _in_cluster(env):
        return
    try:
        # Of a process that dies the others hear after the heartbeats' timeout, 100 s by default.
        # One that ends by an error of its own waits for the others, 300 s by default.
        jax.distributed.initialize(
            *by_hand,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
            shutdown_timeout_seconds=SHUTDOWN_TIMEOUT,
        )
    except Exception as error:  # of jax, and of the clients of Kubernetes and metadata servers
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"cannot join the cluster of this environment: {reason}; "
            "set JAX_COORDINATOR_ADDRESS=HOST:PORT, JAX_NUM_PROCESSES and JAX_PROCESS_ID by hand, "
            "or JAX_NUM_PROCESSES=1 for a run of this process alone"
        ) from error


def _in_cluster(env: Mapping[str, str]) -> bool:
    if "TPU_WORKER_HOSTNAMES" in env or env.get("TPU_ML_PLATFORM") == "JAX":
        return (
            len(env.get("TPU_WORKER_HOSTNAMES", "").split(",")) > 1
            or "MEGASCALE_COORDINATOR_ADDRESS" in env
            # A Cloud TPU VM, where jax sets the first and asks the metadata server for the pod's
            # hosts; the second says that there is no such server.
            or (env.get("TPU_ML_PLATFORM") == "JAX" and "TPU_SKIP_MDS_QUERY" not in env)
        )
    return (
        # Of the step, not of the job: a batch script or a shell is no task of srun's.
        int(env.get("SLURM_STEP_NUM_TASKS") or 1) > 1
        or int(env.get("OMPI_COMM_WORLD_SIZE") or 1) > 1
        or "MEGASCALE_COORDINATOR_ADDRESS" in env
        # A pod of an Indexed Job; jax asks Kubernetes for the others.
        or ("KUBERNETES_SERVICE_HOST" in env and "JOB_COMPLETION_INDEX" in env)
    )
