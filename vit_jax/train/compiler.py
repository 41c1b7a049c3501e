# SPDX-License-Identifier: Apache-2.0
"""Which of XLA's options a step is compiled with."""

import os

import jax
from jax.sharding import Mesh

from vit_jax.devices import hardware

# On a CPU, XLA gives some work to a library, YNNPACK. Its weight gradient of a 3x3 convolution is
# four times as slow as XLA's own, a sixth of a ResNet's step: convolutions are left out. Its sums
# of products are written out before they are summed: BatchNorm's cost a quarter of a step.
_YNNPACK = "xla_cpu_experimental_ynn_fusion_type"
_ON_CPU = {_YNNPACK: "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"}
_BATCH_NORM_ON_CPU = {_YNNPACK: "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}

# Overlaps the collectives of a loop over layers with the computation of the neighbouring layers;
# by default XLA for GPUs waits for each. JAX 0.12 has other names, and refuses the old ones.
_OVERLAP: tuple[str, bool | str] = ("xla_gpu_enable_pipelined_", True)
if jax.__version_info__ >= (0, 12):
    _OVERLAP = ("xla_gpu_pipeline_", "COLLECTIVE_PIPELINING_MODE_ON")
_OVERLAP_ON_GPUS = {
    f"{_OVERLAP[0]}{collective}": _OVERLAP[1]
    for collective in ("all_gather", "reduce_scatter", "all_reduce")
}


# No kernel whose sums run in any order, and none chosen by how long it took this time.
_REPRODUCIBLE_ON_GPU = {"xla_gpu_deterministic_ops": True}


def compiler_options(
    mesh: Mesh, has_batch_norm: bool, *, reproducible: bool = False
) -> dict[str, bool | str]:
    """Return XLA's options for the mesh's devices, except those that XLA_FLAGS sets."""
    options: dict[str, bool | str] = {}
    if mesh.devices.flat[0].platform == "cpu":
        options = dict(_BATCH_NORM_ON_CPU if has_batch_norm else _ON_CPU)
    elif hardware.target().capability > (0, 0):  # NVIDIA's GPUs
        options |= _OVERLAP_ON_GPUS if mesh.size > 1 else {}
        options |= _REPRODUCIBLE_ON_GPU if reproducible else {}
    given = {flag.split("=")[0] for flag in os.environ.get("XLA_FLAGS", "").split()}
    return {name: value for name, value in options.items() if f"--{name}" not in given}
