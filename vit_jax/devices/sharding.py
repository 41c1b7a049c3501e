# SPDX-License-Identifier: Apache-2.0
"""Device mesh, and rules from parameter names to shardings (regex over names, as in big_vision).

One code path: a laptop is the (1, 1, 1) mesh. `data` copies parameters and splits the batch,
`fsdp` splits both (ZeRO-3), `tensor` splits heads and MLP width (Megatron-LM, arXiv:1909.08053).
"""

import collections
import contextlib
import contextvars
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from vit_jax import trees
from vit_jax.errors import UserError
from vit_jax.settings.fields import value
from vit_jax.trees import PyTree

AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")

# First match wins; a spec names the trailing dimensions, so that stacked parameters (one leading
# depth axis) follow the same rules, and optimizer moments follow by the end of their name.
# qkv columns are ordered (head, {q,k,v}, head_dim): splitting them splits whole heads.
RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"(^|/)(qkv|qk|kv|q|k|v|fc1(_[gx])?)/kernel$", ("fsdp", "tensor")),
    (r"(^|/)(qkv|qk|kv|q|k|v|fc1(_[gx])?)/bias$", ("tensor",)),
    (r"(^|/)(proj|fc2)/kernel$", ("tensor", "fsdp")),
    (r"(^|/)rope_freqs$", (None, "tensor", None)),
    (r"(^|/)(reduction|expand|(decoder|predictor)_embed|fc[3-9])/kernel$", ("fsdp", None)),
    (r"(^|/)(pre_logits|(patch_)?head|head_dist)/kernel$", ("fsdp", "tensor")),
    (r"(^|/)(decoder_pred|predictor_proj|prototypes)/kernel$", ("fsdp", "tensor")),
    # Factors of a kernel (models/lora.py): each is cut as the kernel's side that it has.
    (r"(^|/)(qkv|qk|kv|q|k|v|fc1(_[gx])?)/lora_a$", ("fsdp", None)),
    (r"(^|/)(qkv|qk|kv|q|k|v|fc1(_[gx])?)/lora_b$", (None, "tensor")),
    (r"(^|/)(proj|fc2)/lora_a$", ("tensor", None)),
    (r"(^|/)(proj|fc2)/lora_b$", (None, "fsdp")),
    (r"(^|/)(head|head_dist)/bias$", ("tensor",)),
    (r"(^|/)(patch_embed|conv(\d|_dw)?)/kernel$", (None, None, None, "fsdp")),
    (r"(^|/)pos_embed(_[xy])?$", (None, None, "fsdp")),
)


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class MeshConfig:
    """Sizes of the mesh axes; one may be -1: all remaining devices.

    Attributes:
        data: groups of devices that each have a part of the batch.
        fsdp: devices over which parameters and moments are cut, and the batch once more.
        tensor: devices over which heads and MLP units are divided.
        reproducible: V, a power of two: the batch is cut into V shards, whose gradients are added
            along one tree, so that a run has the same bits on 2, 4, ... V devices; 0: off.
    """

    data: int = value(-1, free=True)
    fsdp: int = value(1, free=True)
    tensor: int = value(1, free=True)
    reproducible: int = value(0, least=0, note="0 turns it off")


# Whether sums over a whole tree are those of every layout, to the bit.
_WHOLE_SUMS = contextvars.ContextVar("whole sums", default=False)


@contextlib.contextmanager
def whole_sums(on: bool) -> Iterator[None]:
    """Let what is traced within sum over whole arrays on every device, however they are cut."""
    token = _WHOLE_SUMS.set(on)
    try:
        yield
    finally:
        _WHOLE_SUMS.reset(token)


def sums_whole_arrays() -> bool:
    """Return whether the traced program is within `whole_sums`, on a mesh."""
    return _WHOLE_SUMS.get() and not auto_mesh().empty


def mesh_shape(cfg: MeshConfig, num_devices: int) -> tuple[int, int, int]:
    """Resolve -1 and refuse sizes that do not fit `num_devices`; a mesh may use fewer."""
    sizes = [cfg.data, cfg.fsdp, cfg.tensor]
    fields = ", ".join(f"mesh.{a}={s}" for a, s in zip(AXES, sizes, strict=True))
    if sizes.count(-1) > 1 or any(s < 1 and s != -1 for s in sizes):
        raise UserError(f"{fields}: each must be positive, and at most one -1 (all devices left)")
    given = math.prod(s for s in sizes if s != -1)
    if -1 in sizes and num_devices % given:
        raise UserError(
            f"{fields} does not fit {num_devices} device(s), which is no multiple of {given}; "
            "lower mesh.fsdp or mesh.tensor, or use other devices"
        )
    if -1 in sizes:
        sizes[sizes.index(-1)] = num_devices // given
    if math.prod(sizes) > num_devices:
        raise UserError(f"{fields} does not fit {num_devices} device(s); set one of them to -1")
    return sizes[0], sizes[1], sizes[2]


def make_mesh(cfg: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """Lay `devices` (default: all, of all hosts) over the (data, fsdp, tensor) mesh.

    Raises UserError: a mesh that does not fit, or that leaves a host without work; one device where
    bits are to be those of several.
    """
    devices = list(devices) if devices is not None else jax.devices()
    shape = mesh_shape(cfg, len(devices))
    if cfg.reproducible and math.prod(shape) == 1:
        # One device's program is not partitioned, and goes through other passes of the compiler.
        raise UserError(
            f"mesh.reproducible={cfg.reproducible}, but XLA compiles a program of one device in "
            "another way, with bits of its own; take two, as JAX_NUM_CPU_DEVICES=2 makes of a CPU, "
            "or set mesh.reproducible=0"
        )
    if jax.process_count() > 1 and math.prod(shape) != len(devices):
        raise UserError(
            f"mesh {shape} must use all {len(devices)} devices of all processes; set mesh.data=-1"
        )
    grid = device_grid(shape, devices[: math.prod(shape)])
    # Auto: Linen's modules reject Explicit axes.
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * 3)


def device_grid(shape: tuple[int, int, int], devices: Sequence[Any]) -> np.ndarray:
    """Lay devices over the mesh so that the axes with most traffic stay on the fastest links.

    Within a TPU slice that is jax's own layout, which follows the torus and may separate a host's
    devices in a batch; v5e's compiler refuses the strided groups of blocks of hosts. Between slices
    only `data` crosses the network. GPUs and CPUs lie in the order of their processes, tensor
    first, then fsdp, so that a node's devices share its fast links.

    Raises:
        UserError: processes with unequal numbers of devices, or a mesh that slices cannot divide.
    """
    counts = collections.Counter(d.process_index for d in devices)
    if len(set(counts.values())) > 1:
        each = ", ".join(f"process {i} has {n}" for i, n in sorted(counts.items()))
        raise UserError(f"every process must have as many devices as the others, but {each}")
    slices = collections.defaultdict(list)
    for device in devices:
        on_tpu = device.platform == "tpu"
        slices[getattr(device, "slice_index", 0) if on_tpu else 0].append(device)
    count = len(slices)
    if shape[0] % count:
        raise UserError(f"mesh {shape}: only data crosses slices; make it a multiple of {count}")
    inside = (shape[0] // count, *shape[1:])
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
    divide (a Mixer's token count is odd, its token MLP's width even), or else copies. A leaf of
    another rank than its rule's is copied (Adafactor's factored moments).
    """
    lead = int(trees.is_stacked(name))
    for pattern, axes in RULES:
        if len(shape) - len(axes) == lead and re.search(pattern, name):
            return PartitionSpec(*[None] * lead, *_fit(axes, shape[lead:], axis_sizes))
    return PartitionSpec()


def _fit(
    axes: Sequence[str | None], shape: Sequence[int], axis_sizes: Mapping[str, int]
) -> list[str | tuple[str, ...] | None]:
    fitted: list[list[str]] = [[] for _ in shape]

    def fit(axis: str, dims: Sequence[int]) -> bool:
        for dim in dims:
            if shape[dim] % math.prod(axis_sizes[a] for a in (*fitted[dim], axis)) == 0:
                fitted[dim].append(axis)
                return True
        return False

    left = [axis for dim, axis in enumerate(axes) if axis and not fit(axis, [dim])]
    for axis in left:
        fit(axis, range(len(shape) - 1, -1, -1))
    return [tuple(on) if len(on) > 1 else on[0] if on else None for on in fitted]


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
    """Return the number of shards of a global batch."""
    return math.prod(mesh.shape[a] for a in BATCH_AXES)


@functools.lru_cache
def _own_shards(mesh: Mesh, process: int) -> tuple[int, ...]:
    """Return which shards of a batch lie on a process's devices, in ascending order.

    They need not be contiguous. Processes that share examples (a tensor axis that spans them) may
    have the same.
    """
    shards = mesh.devices.reshape(batch_shards(mesh), -1)
    return tuple(i for i, own in enumerate(shards) if any(d.process_index == process for d in own))


def own_share(mesh: Mesh) -> float:
    """Return the share of a batch that this process reads."""
    return len(_own_shards(mesh, jax.process_index())) / batch_shards(mesh)


def batch_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """Return which rows [b] of a global batch this process's devices hold, in ascending order."""
    count = batch_shards(mesh)
    if batch_size % count:
        raise UserError(f"a batch of {batch_size} cannot be divided evenly over {count} devices")
    return (
        np.arange(batch_size)
        .reshape(count, -1)[list(_own_shards(mesh, jax.process_index()))]
        .reshape(-1)
    )


def auto_mesh() -> AbstractMesh:
    """Return the mesh over which XLA divides the traced program; an empty one where none is.

    None is inside of `jax.shard_map`, whose program is that of one device.
    """
    mesh = jax.sharding.get_abstract_mesh()
    return AbstractMesh((), ()) if AxisType.Manual in mesh.axis_types else mesh


def constrain(x: jax.Array, *axes: str | tuple[str, ...] | None) -> jax.Array:
    """Pin an activation's leading dimensions to mesh axes; a no-op outside `jax.set_mesh`.

    An axis that does not divide its dimension is dropped (a prediction's batch of one).
    """
    mesh = auto_mesh()
    if mesh.empty:
        return x
    return jax.lax.with_sharding_constraint(x, fitted_spec(x.shape, axes, mesh))


def fitted_spec(
    shape: Sequence[int], axes: Sequence[str | tuple[str, ...] | None], mesh: Mesh | AbstractMesh
) -> PartitionSpec:
    """Split leading dimensions over mesh axes, except those that their axis does not divide."""
    names = [(axis,) if isinstance(axis, str) else axis or () for axis in axes]
    counts = [math.prod(mesh.shape[a] for a in group) for group in names]
    divided = zip(axes, shape, counts, strict=False)
    return PartitionSpec(*(axis if size % count == 0 else None for axis, size, count in divided))


def splits_parameters() -> bool:
    """Return whether the mesh of the traced program splits parameters over fsdp."""
    return auto_mesh().shape.get("fsdp", 1) > 1


def constrain_parameter(p: jax.Array, name: str) -> jax.Array:
    """Pin one layer's parameter, and so its gradient, to the sharding of the state.

    Each layer of an unrolled stack then gathers only its own weights, after the cast, and gradients
    are summed to shards (reduce-scatters), not to copies on every device. A no-op outside
    `jax.set_mesh` and on one device. `name` is "module/parameter", such as "qkv/kernel".
    """
    mesh = auto_mesh()
    if mesh.empty or mesh.size == 1:
        return p
    where = spec(name, p.shape, dict(mesh.shape))
    return jax.lax.with_sharding_constraint(p, where) if any(where) else p


def global_batch(batch: Mapping[str, Any], mesh: Mesh, *, batch_size: int) -> dict[str, jax.Array]:
    """Assemble the global batch from the `batch_rows` of every process (numpy, leading axis)."""
    sharding = batch_sharding(mesh)
    if jax.process_count() == 1:  # the same result in less host time
        return jax.device_put(dict(batch), sharding)
    size = batch_size // batch_shards(mesh)
    local = {
        shard * size: i * size for i, shard in enumerate(_own_shards(mesh, jax.process_index()))
    }

    def put(x: np.ndarray) -> jax.Array:
        def rows(index: Any) -> np.ndarray:
            first = local[index[0].start or 0]
            return x[first : first + size]

        return jax.make_array_from_callback((batch_size, *x.shape[1:]), sharding, rows)

    return {key: put(x) for key, x in batch.items()}


def place(variables: PyTree, abstract: PyTree) -> PyTree:
    """Place host variables in the shardings of `abstract`; each process holds all values."""

    def put(leaf: jax.ShapeDtypeStruct, value: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(
            leaf.shape, leaf.sharding, lambda at: value[at].astype(leaf.dtype)
        )

    return jax.tree.map(put, abstract, variables)


def apart(step: jax.Array, compute: Callable[..., PyTree], *args: Any) -> PyTree:
    """Compute in a program of its own, which XLA fuses with nothing around it.

    What is fused decides which products and sums become one operation, with one rounding less.
    """
    shapes = jax.eval_shape(compute, *args)

    def nothing(*_: Any) -> PyTree:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    # No compiler knows that a step is never negative.
    return jax.lax.cond(step >= 0, compute, nothing, *args)
