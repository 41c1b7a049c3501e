# SPDX-License-Identifier: Apache-2.0
"""Device mesh, and rules from parameter names to shardings (regex over names, as in big_vision).

One code path: a laptop is the (1, 1, 1) mesh. `data` copies parameters and splits the batch,
`fsdp` splits both (ZeRO-3), `tensor` splits heads and MLP width (Megatron-LM, arXiv:1909.08053).
"""

import collections
import dataclasses
import functools
import math
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
    """Resolve -1 and refuse sizes that do not fit `num_devices`; fewer than all is allowed."""
    sizes = [cfg.data, cfg.fsdp, cfg.tensor]
    asked = ", ".join(f"mesh.{a}={s}" for a, s in zip(AXES, sizes, strict=True))
    if sizes.count(-1) > 1 or any(s < 1 and s != -1 for s in sizes):
        raise UserError(f"{asked}: each must be positive, and at most one -1 (all devices left)")
    known = math.prod(s for s in sizes if s != -1)
    if -1 in sizes and num_devices % known == 0:
        sizes[sizes.index(-1)] = num_devices // known
    if -1 in sizes:
        raise UserError(
            f"{asked} does not fit {num_devices} device(s), which is no multiple of {known}; lower "
            "mesh.fsdp or mesh.tensor, or take other devices"
        )
    if math.prod(sizes) > num_devices:
        raise UserError(f"{asked} does not fit {num_devices} device(s); set one of them to -1")
    return sizes[0], sizes[1], sizes[2]


def make_mesh(cfg: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """Lay `devices` (default: all, of all hosts) over the (data, fsdp, tensor) mesh.

    A mesh that does not fit, or that leaves a host without work, is refused.
    """
    devices = list(devices) if devices is not None else jax.devices()
    shape = mesh_shape(cfg, len(devices))
    if jax.process_count() > 1 and math.prod(shape) != len(devices):
        raise UserError(
            f"mesh {shape} must use all {len(devices)} devices of all processes; set mesh.data=-1"
        )
    grid = device_grid(shape, devices[: math.prod(shape)])
    # Auto: Linen's modules reject Explicit axes.
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * 3)


def device_grid(shape: tuple[int, int, int], devices: Sequence[Any]) -> np.ndarray:
    """Lay devices over the mesh so that the axes that talk most stay on the fastest links.

    Within a TPU slice that is jax's own layout: it follows the torus, where a host's devices may
    lie apart in a batch. Blocks of hosts side by side look tidier, but v5e's compiler refuses the
    strided groups that they make. Between slices `data` alone crosses the network. GPUs and CPUs
    lie in the order of their processes, tensor first, then fsdp: a node's share its fast links.

    Raises:
        UserError: processes of unlike numbers of devices, or a mesh that slices cannot share out.
    """
    counts = collections.Counter(d.process_index for d in devices)
    if len(set(counts.values())) > 1:
        each = ", ".join(f"process {i} has {n}" for i, n in sorted(counts.items()))
        raise UserError(f"every process must have as many devices as the others, but {each}")
    slices = collections.defaultdict(list)
    for device in devices:
        on_tpu = device.platform == "tpu"
        slices[getattr(device, "slice_index", 0) if on_tpu else 0].append(device)
    if shape[0] % len(slices):
        count = len(slices)
        raise UserError(f"mesh {shape}: only data crosses slices; make it a multiple of {count}")
    inside = (shape[0] // len(slices), *shape[1:])
    return np.concatenate([_slice_grid(inside, slices[index]) for index in sorted(slices)])


def _slice_grid(shape: tuple[int, int, int], devices: Sequence[Any]) -> np.ndarray:
    try:
        return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    except AssertionError:  # some of a slice's devices, which leave holes in its torus
        return np.asarray(devices).reshape(shape)


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


def batch_shards(mesh: Mesh | AbstractMesh) -> int:
    """Count the parts that a global batch is split into."""
    return math.prod(mesh.shape[a] for a in BATCH_AXES)


def own_parts(mesh: Mesh) -> tuple[int, ...]:
    """Return which parts of a batch lie on this process's devices, in ascending order.

    They are side by side or not, as the devices are. Processes that share examples (a tensor axis
    that spans them) may have the same.
    """
    return _parts_of(jax.process_index(), mesh)


@functools.lru_cache
def _parts_of(process: int, mesh: Mesh) -> tuple[int, ...]:
    copies = mesh.devices.reshape(batch_shards(mesh), -1)
    return tuple(i for i, own in enumerate(copies) if any(d.process_index == process for d in own))


def own_share(mesh: Mesh) -> float:
    """Return the share of a batch that this process reads."""
    return len(own_parts(mesh)) / batch_shards(mesh)


def batch_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """Return which rows [b] of a global batch this process's devices hold, in ascending order."""
    parts = batch_shards(mesh)
    if batch_size % parts:
        raise UserError(f"a batch of {batch_size} cannot be divided evenly over {parts} devices")
    return np.arange(batch_size).reshape(parts, -1)[list(own_parts(mesh))].reshape(-1)


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


def splits_parameters() -> bool:
    """Return whether what is traced runs on a mesh that splits parameters over fsdp."""
    return jax.sharding.get_abstract_mesh().shape.get("fsdp", 1) > 1


def constrain_parameter(p: jax.Array, name: str) -> jax.Array:
    """Pin one layer's parameter, and so its gradient, to where the state holds it.

    A layer then gathers its own weights only, after it has cast them, however many layers of a
    stack are laid out; and sums of gradients end as shards (reduce-scatters) where they are made,
    not as copies in every device. A no-op outside `jax.set_mesh`, and on one device. `name` is the
    module's and the parameter's, such as "qkv/kernel".
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return p
    where = spec(name, p.shape, dict(mesh.shape))
    return jax.lax.with_sharding_constraint(p, where) if any(where) else p


def global_batch(batch: Mapping[str, Any], mesh: Mesh, *, batch_size: int) -> dict[str, jax.Array]:
    """Assemble the global batch from the `batch_rows` of every process (numpy, leading axis)."""
    sharding = batch_sharding(mesh)
    if jax.process_count() == 1:  # the same, in less of the host's time
        return jax.device_put(dict(batch), sharding)
    size = batch_size // batch_shards(mesh)
    place = {part * size: i * size for i, part in enumerate(own_parts(mesh))}

    def put(x: np.ndarray) -> jax.Array:
        def rows(index: Any) -> np.ndarray:
            first = place[index[0].start or 0]
            return x[first : first + size]

        return jax.make_array_from_callback((batch_size, *x.shape[1:]), sharding, rows)

    return {key: put(x) for key, x in batch.items()}
