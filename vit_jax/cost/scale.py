# SPDX-License-Identifier: Apache-2.0
"""Predicted time and communication of a training step on many chips, from bytes and FLOPs alone.

What moves is counted from the parameters' shardings and agrees with the collectives that XLA
compiles (tests/integration/cost/test_scale.py, tests/aot). The seconds are a range: of data sheets,
and of constants that public measurements were fitted to (benchmarks/calibrate_prices.py).
docs/scale.md has the formulas. The peaks of vendors' data sheets are also what MFU divides by.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from vit_jax import trees
from vit_jax.cost.flops import Work
from vit_jax.devices import sharding
from vit_jax.trees import PyTree

# GHz of the TensorCores: of v2, v3 and v4 from arXiv:2304.01433 table 4; those of v5e and v5p give
# the peaks of peaks.tsv with four matrix units of 128 x 128 a core.
_TPU_CLOCKS = {"TPU v2": 0.7, "TPU v3": 0.94, "TPU v4": 1.05, "TPU v5 lite": 1.5, "TPU v5": 1.75}


@functools.cache
def rows(name: str) -> list[list[str]]:
    """Read the rows of a .tsv file beside this one; those that begin with # are comments."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines if not line.startswith("#")]


def peak_flops(device_kind: str, dtype: str = "bfloat16") -> float | None:
    """Return the peak matmul FLOP/s of one device, or None where it is not known, as for CPUs.

    `device_kind` is jax's, such as "TPU v4" or "NVIDIA H200"; the operands' `dtype` is "bfloat16"
    (float16 alike) or "float32".
    """
    for pattern, bf16, f32 in rows("peaks.tsv"):
        if re.search(pattern, device_kind):
            return 1e12 * float(f32 if dtype == "float32" else bf16)
    return None


def clock(device_kind: str) -> float | None:
    """Return the cycles per second of a TPU's cores, or None where they are not known."""
    ghz = _TPU_CLOCKS.get(device_kind)
    return None if ghz is None else 1e9 * ghz


# What `benchmarks.calibrate_prices` fitted to public measurements (docs/scale.md#predictions): the
# share of the peak at which matmuls run, by chip; the bytes that a compiled step moves to and from
# memory for each that its matmuls read or write. SPREAD: quantiles .1 and .9 of measured over
# predicted time, of the runs that the fit has not seen.
SHARES = {"A100": 0.801, "H100": 0.746, "v4": 0.842, "v5e": 0.896, "v5p": 0.86, "v6e": 0.738}
TRAFFIC = 3.034
SPREAD = (0.8, 1.43)
# The share of the peak, or of a matmul's speed, on devices that are not in chips.tsv, such as CPUs:
# published runs reached 0.27 (S/16 on v3-8) to 0.43 (L/16).
MFU = (0.27, 0.45)
# AdamW reads a parameter, its gradient and two moments in float32, and writes three of them.
UPDATE = 28.0
# No step takes less than these seconds. The host's work for one was measured with a CPU
# (docs/benchmarks.md, digits host overhead per step). Launches: the digits step that XLA compiled
# for an H100 has 361 kernels, and 78 matmuls are counted in it. One launch took 5 us on a B200 of
# others (dogacel.github.io, "Four counter-intuitive lessons"), which is assumed of every GPU. A TPU
# starts a program once: 1 us an operation is an assumption.
_HOST = 0.7e-3
_KERNELS = 361 / 78
_LAUNCH = {"gpu": 5e-6, "tpu": 1e-6}


@dataclasses.dataclass(frozen=True)
class Chip:
    """A device, and what it receives per second; `fast` within `group` devices, `slow` beyond.

    Attributes:
        kind: `jax.Device.device_kind`, by which the peak is found.
        group: devices joined by the fast links: a TPU pod, a GPU node.
        fast: bytes/s into one device around a ring of fast links, both ways used. On a TPU that
            is one axis of the torus.
        slow: bytes/s into one device from another group.
        hbm: bytes/s to and from its memory.
        hides_reduce: whether the compiler lets matmuls run while gradients are summed over `data`.
    """

    kind: str
    memory: float
    group: int
    fast: float
    slow: float
    hbm: float
    hides_reduce: bool = False


CHIPS = {
    name: Chip(kind, float(memory), int(group), *map(float, rates), hides_reduce=hides == "1")
    for name, kind, memory, group, *rates, hides in rows("chips.tsv")
}


def chip(device_kind: str) -> Chip | None:
    """Return what is known of a `jax.Device.device_kind`, or None."""
    if device_kind == "TPU v5":  # as jax names the v5p
        return CHIPS["v5p"]
    for name, found in CHIPS.items():
        if device_kind == found.kind or re.search(rf"\b{name}\b.*(SXM|HBM3)", device_kind):
            return found
    return None


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes of the arrays that one device's collectives work on in a step, by kind and axis.

    Attributes:
        gather: parameters made whole from their fsdp parts, forward and backward.
        scatter: gradients summed over fsdp, each device keeping its part.
        reduce: gradients summed over data: parts of those that fsdp cuts.
        reduce_copies: gradients of parameters that every device holds, summed over data and fsdp.
        tensor: activations and their gradients summed over tensor.
        passed: what a contrastive loss sends round data and fsdp (models/contrastive.py).
    """

    gather: float
    scatter: float
    reduce: float
    reduce_copies: float
    tensor: float
    passed: float = 0.0


def traffic(
    params: PyTree,
    axis_sizes: Mapping[str, int],
    *,
    compute_bytes: int = 4,
    reduce_bytes: int = 4,
    activation: float = 0.0,
    num_sums: int = 0,
    num_passes: int = 2,
) -> Traffic:
    """Count what the sharding rules make a step move.

    Args:
        params: arrays or ShapeDtypeStructs.
        compute_bytes: of a value that the model computes with, in which its weights are gathered,
            those of the head in float32.
        reduce_bytes: of a value in which gradients are summed.
        activation: bytes of one block's output on one device, batch/(data*fsdp) x tokens x width.
        num_sums: matmuls whose sum runs over the tensor axis: `tensor_sums`.
        num_passes: how often a weight is gathered: forward and backward. The embeddings need no
            gradient of their input, and are gathered once.
    """
    data, fsdp = axis_sizes["data"], axis_sizes["fsdp"]
    gather = scatter = reduce = copies = 0.0
    for name, leaf in trees.named_leaves(params):
        spec = sharding.spec(name, leaf.shape, axis_sizes)
        axes = {axis for part in spec if part for axis in ((part,) if part in axis_sizes else part)}
        count = leaf.size / (axis_sizes["tensor"] if "tensor" in axes else 1)
        if fsdp > 1 and "fsdp" in axes:
            in_float32 = re.search(r"(^|/)(head|head_dist|pre_logits)/", name)
            once = re.search(r"(patch|pos)_embed", name)
            size = count * (leaf.dtype.itemsize if in_float32 else compute_bytes)
            gather += size * (1 if once else num_passes)
            scatter += count * reduce_bytes
            reduce += count * reduce_bytes / fsdp if data > 1 else 0
        elif data * fsdp > 1:
            copies += count * reduce_bytes
    tensor = activation * num_sums if axis_sizes["tensor"] > 1 else 0.0
    return Traffic(gather, scatter, reduce, copies, tensor)


def tensor_sums(depth: int, *, recomputed: bool) -> int:
    """Count the sums over the tensor axis in a stack of transformer blocks.

    After proj and fc2 and, in the backward pass, before qkv and fc1. Blocks that are computed again
    sum proj's output once more, for what follows; fc2's nothing asks for.
    """
    return depth * (5 if recomputed else 4)


def gather_seconds(nbytes: float, size: int, inner: int, chip: Chip) -> float:
    """Predict an all-gather of `nbytes` in all over `size` devices; a reduce-scatter takes as long.

    Rings: over n devices each receives (n - 1) / n of the result. Where the devices lie in several
    groups, each first fetches its share from the other groups, then its group shares them out.
    `inner` is the product of the mesh axes inside this one, the stride of its devices.
    """
    near = math.gcd(size, max(chip.group // inner, 1))
    far = size // near
    return nbytes * (near - 1) / near / chip.fast + nbytes / near * (far - 1) / far / chip.slow


def passing_seconds(nbytes: float, size: int, chip: Chip) -> float:
    """Predict `nbytes` that each of `size` devices passes on to the next, one way round.

    All wait for the slowest hop: between groups, where the devices lie in several.
    """
    return nbytes / (chip.fast / 2 if size <= chip.group else chip.slow) if size > 1 else 0.0


class Effort(NamedTuple):
    """What a step asks of one device beside its transfers.

    Attributes:
        work: of all passes over all pieces of the batch.
        parameters: those that the device updates.
        dtype: of matmuls' operands, "bfloat16" or "float32".
    """

    work: Work
    parameters: float
    dtype: str = "bfloat16"


def effort(
    image: Work,
    flops: float,
    *,
    images: float,
    weights: float,
    updated: float,
    pieces: int = 1,
    dtype: str = "bfloat16",
) -> Effort:
    """Return the effort of a step of `flops` on one device.

    All of its passes are taken to move as many bytes and to start as many kernels for a FLOP as the
    forward pass does.

    Args:
        image: a forward pass of one image.
        images: of all pieces.
        weights: parameters of the forward pass.
        updated: parameters that the device updates.
        pieces: of the batch, each of which reads the parameters.
    """
    held = weights * (4 if dtype == "float32" else 2)
    passes = flops / max(image.flops * images, 1)
    nbytes = images * max(image.nbytes - held, 0) + pieces * held
    work = Work(int(flops), math.ceil(passes * nbytes), math.ceil(passes * pieces * image.calls))
    return Effort(work, updated, dtype)


def family(chip: Chip) -> str:
    """Return what a chip is, "gpu" or "tpu"."""
    return "tpu" if chip.kind.startswith("TPU") else "gpu"


def floor_seconds(calls: int, chip: Chip) -> float:
    """Return the seconds of a step of so many matmuls below which none falls on a chip."""
    return max(_KERNELS * calls * _LAUNCH[family(chip)], _HOST)


def step_seconds(effort: Effort, chip: Chip) -> float:
    """Predict the seconds of a step on one device, its transfers aside.

    The matmuls' time, then that of the bytes that they and what lies between them move; no less
    than the launches and the host's work.

    What is left out: images that are not there yet (docs/data.md), evaluations and checkpoints.
    """
    peak = peak_flops(chip.kind, effort.dtype)
    assert peak is not None, chip.kind
    share = next(SHARES[name] for name, known in CHIPS.items() if known.kind == chip.kind)
    work = effort.work
    matmuls = work.flops / (peak * share)
    moved = (TRAFFIC * work.nbytes + UPDATE * effort.parameters) / chip.hbm
    return max(matmuls + moved, floor_seconds(work.calls, chip))


def step_range(effort: Effort, chip: Chip) -> tuple[float, float]:
    """Return the least and the most of `step_seconds`, between which 8 in 10 public runs lay."""
    seconds = step_seconds(effort, chip)
    return seconds * SPREAD[0], seconds * SPREAD[1]


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Seconds of a predicted step: compute (least, most), hidden and exposed moves."""

    compute: tuple[float, float]
    hidden: float
    exposed: float

    @property
    def range(self) -> tuple[float, float]:
        """Time of the whole step, least and most; the longer hides the shorter where it can."""
        least, most = self.compute
        return max(least, self.hidden) + self.exposed, max(most, self.hidden) + self.exposed


def transfers(moved: Traffic, axis_sizes: Mapping[str, int], chip: Chip) -> tuple[float, float]:
    """Return the seconds of a step's transfers: those beside its matmuls, those that they wait for.

    As compiled: the next layer's weights come, and the last one's gradients leave, while a layer is
    computed; a sum over tensor is what the next matmul waits for, and texts that are passed on what
    the next logits do; `chip` says how it is with the sum over data.
    """
    data, fsdp, tensor = (axis_sizes[axis] for axis in sharding.AXES)
    weights = gather_seconds(moved.gather + moved.scatter, fsdp, tensor, chip)
    # An all-reduce is a reduce-scatter and an all-gather.
    summed = 2 * gather_seconds(moved.reduce, data, tensor * fsdp, chip)
    summed += 2 * gather_seconds(moved.reduce_copies, data * fsdp, tensor, chip)
    waited = 2 * gather_seconds(moved.tensor, tensor, 1, chip)
    waited += passing_seconds(moved.passed, math.prod(axis_sizes.values()), chip)
    return (weights + summed, waited) if chip.hides_reduce else (weights, waited + summed)


def predict(effort: Effort, moved: Traffic, axis_sizes: Mapping[str, int], chip: Chip) -> StepTime:
    """Predict a step of such effort on each device, recomputation included, that moves `moved`."""
    return StepTime(step_range(effort, chip), *transfers(moved, axis_sizes, chip))
