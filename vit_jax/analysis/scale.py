# SPDX-License-Identifier: Apache-2.0
"""Predicted time and communication of a training step on many chips, from bytes and FLOPs alone.

What moves is counted from the parameters' shardings and agrees with the collectives that XLA
compiles (tests/analysis/test_scale.py). The seconds rest on data sheets and on two assumptions that
nothing here measures: the share of a chip's peak that the matmuls reach, and that what FSDP and
data parallelism move hides behind them. The formulas are in docs/scale.md.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

from vit_jax import sharding, trees
from vit_jax.analysis.peaks import peak_flops

PyTree = Any
# Of the peak, what a good ViT step reaches: an assumption.
EFFICIENCY = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """A device, and what it receives per second; `fast` within `group` devices, `slow` beyond.

    Attributes:
        kind: `jax.Device.device_kind`, by which the peak is found.
        memory: bytes.
        group: devices joined by the fast links: a TPU pod, a GPU node.
        fast: bytes/s into one device around a ring of fast links, both ways used. On a TPU that
            is one axis of the torus.
        slow: bytes/s into one device from another group.
    """

    kind: str
    memory: float
    group: int
    fast: float
    slow: float


# docs.cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e}: memory (v5p 95 GiB); the chip's bidirectional ICI
# bandwidth B over its p ports gives a ring 2 ports * B / p / 2 directions: v4 600 GB/s over 6, v5e
# 400 over 4, v5p 1200 over 6, v6e 800 over 4. Data center network: v5p 50 Gb/s a chip, v5e 6.4 and
# v6e 25.6 Tb/s a pod of 256 chips; v4's is not given, and not used: its pod holds 4096. H100 SXM:
# NVLink 900 GB/s in both directions (NVIDIA's data sheet), and in a DGX H100 a 400 Gb/s port of
# InfiniBand for each GPU.
CHIPS = {
    "v4": Chip(kind="TPU v4", memory=32e9, group=4096, fast=100e9, slow=6.25e9),
    "v5e": Chip(kind="TPU v5 lite", memory=16e9, group=256, fast=100e9, slow=3.125e9),
    "v5p": Chip(kind="TPU v5p", memory=102e9, group=6144, fast=200e9, slow=6.25e9),
    "v6e": Chip(kind="TPU v6 lite", memory=32e9, group=256, fast=200e9, slow=12.5e9),
    "H100": Chip(kind="NVIDIA H100 SXM", memory=80e9, group=8, fast=450e9, slow=50e9),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes of the arrays that one device's collectives work on in a step, by kind and axis.

    Attributes:
        gather: parameters made whole from their fsdp parts, forward and backward.
        scatter: gradients summed over fsdp, each device keeping its part.
        reduce: gradients summed over data: parts of those that fsdp cuts.
        reduce_copies: gradients of parameters that every device holds, summed over data and fsdp.
        tensor: activations and their gradients summed over tensor.
    """

    gather: float
    scatter: float
    reduce: float
    reduce_copies: float
    tensor: float


def traffic(
    params: PyTree,
    axis_sizes: Mapping[str, int],
    *,
    activation: float = 0.0,
    num_sums: int = 0,
    num_passes: int = 2,
) -> Traffic:
    """Count what the sharding rules make a step move.

    Args:
        params: the parameters, arrays or ShapeDtypeStructs.
        axis_sizes: of the mesh, by axis.
        activation: bytes of one block's output on one device, batch/(data*fsdp) x tokens x width.
        num_sums: matmuls whose sum runs over the tensor axis: in a transformer 4 for each block,
            after proj and fc2 and, in the backward pass, before qkv and fc1.
        num_passes: how often a weight is gathered: forward and backward. The embeddings need no
            gradient of their input, and are gathered once.
    """
    data, fsdp = axis_sizes["data"], axis_sizes["fsdp"]
    gather = scatter = reduce = copies = 0.0
    for name, leaf in trees.named_leaves(params):
        spec = sharding.spec(name, leaf.shape, axis_sizes)
        axes = {axis for part in spec if part for axis in ((part,) if part in axis_sizes else part)}
        size = leaf.size * leaf.dtype.itemsize / (axis_sizes["tensor"] if "tensor" in axes else 1)
        if fsdp > 1 and "fsdp" in axes:
            gather += size * (1 if re.search(r"(patch|pos)_embed", name) else num_passes)
            scatter += size
            reduce += size / fsdp if data > 1 else 0
        elif data * fsdp > 1:
            copies += size
    tensor = activation * num_sums if axis_sizes["tensor"] > 1 else 0.0
    return Traffic(
        gather=gather, scatter=scatter, reduce=reduce, reduce_copies=copies, tensor=tensor
    )


def gather_seconds(nbytes: float, size: int, inner: int, chip: Chip) -> float:
    """Predict an all-gather of `nbytes` in all over `size` devices; a reduce-scatter takes as long.

    Rings: over n devices each receives (n - 1) / n of the result. Where the devices lie in several
    groups, each first fetches its share from the other groups, then its group shares them out.

    Args:
        nbytes: of the whole result.
        size: of the mesh axis.
        inner: product of the axes inside this one, the stride of its devices.
        chip: the device.
    """
    near = math.gcd(size, max(chip.group // inner, 1))
    far = size // near
    return nbytes * (near - 1) / near / chip.fast + nbytes / near * (far - 1) / far / chip.slow


def compute_seconds(flops: float, chip: Chip, efficiency: float = EFFICIENCY) -> float:
    """Predict the time of a device's matmuls in bfloat16."""
    peak = peak_flops(chip.kind)
    assert peak is not None, chip.kind
    return flops / (peak * efficiency)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """A predicted step, in seconds; `total` hides the shorter of compute and weights."""

    compute: float
    weights: float
    tensor: float

    @property
    def total(self) -> float:
        """Time of the step: nothing hides the sums over tensor, which the next matmul waits for."""
        return max(self.compute, self.weights) + self.tensor


def predict(flops: float, moved: Traffic, axis_sizes: Mapping[str, int], chip: Chip) -> Step:
    """Predict a step of `flops` per device (recomputation included) that moves `moved`."""
    data, fsdp, tensor = (axis_sizes[axis] for axis in sharding.AXES)
    weights = gather_seconds(moved.gather + moved.scatter, fsdp, tensor, chip)
    # An all-reduce is a reduce-scatter and an all-gather.
    weights += 2 * gather_seconds(moved.reduce, data, tensor * fsdp, chip)
    weights += 2 * gather_seconds(moved.reduce_copies, data * fsdp, tensor, chip)
    return Step(
        compute=compute_seconds(flops, chip),
        weights=weights,
        tensor=2 * gather_seconds(moved.tensor, tensor, 1, chip),
    )
