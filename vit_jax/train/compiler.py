# SPDX-License-Identifier: Apache-2.0
"""XLA's options for a training step, by the hardware that it is compiled for."""

import os

from jax.sharding import Mesh

from vit_jax import hardware

# XLA hands sums on a CPU to a library that first multiplies into memory of its own. Of BatchNorm's
# long sums that is a quarter of a ResNet's step; those of other layers are quicker there.
_BATCH_NORM_ON_CPU = {
    "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,"
    "LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION"
}

# What a loop over layers gathers and sums moves while the next layer computes, or the one before.
# By default XLA for GPUs waits for each.
_OVERLAP_ON_GPUS = {
    "xla_gpu_enable_pipelined_all_gather": True,
    "xla_gpu_enable_pipelined_reduce_scatter": True,
    "xla_gpu_enable_pipelined_all_reduce": True,
}


def compiler_options(mesh: Mesh, *, has_batch_norm: bool) -> dict[str, bool | str]:
    """Choose options for the mesh's devices; one that the user's XLA_FLAGS name is theirs."""
    options: dict[str, bool | str] = {}
    if mesh.devices.flat[0].platform == "cpu" and has_batch_norm:
        options = dict(_BATCH_NORM_ON_CPU)
    elif mesh.size > 1 and hardware.target().capability > (0, 0):  # of NVIDIA's GPUs alone
        options = dict(_OVERLAP_ON_GPUS)
    given = {flag.split("=")[0] for flag in os.environ.get("XLA_FLAGS", "").split()}
    return {name: value for name, value in options.items() if f"--{name}" not in given}
