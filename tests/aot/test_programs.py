# SPDX-License-Identifier: Apache-2.0
"""What the compilers of TPUs and GPUs make of training steps over meshes of them."""

import math
import re

import pytest

from tests.aot.programs import DIM, MLP, Seen, compile_step
from vit_jax.cli.compile_for import undivided
from vit_jax.cost import hlo
from vit_jax.devices import sharding

# Values in the kernels of a block of the ViT, which has two blocks.
BLOCK = {DIM * 3 * DIM, DIM * DIM, DIM * MLP}
LARGE = 2**20
# Matmuls of fewer values an operand may be anything: the class token's row, squeeze-and-excite.
SMALL_MATMUL = 2**16

# The eight GPUs of one host are the families' below, and their gathers test_cost.py's.
VITS = [
    ("v6e:8x8", (4, 8, 2)),
    ("v4:4x4x4", (16, 1, 4)),
    ("2xv5e:4x4", (4, 8, 1)),
    ("h100:8x8", (8, 4, 2)),
]
# One compiler each: the program that both compilers get says what an axis divides and what is
# bfloat16; what each makes of such a program the ViT's cases show, a Mixer's matmuls too.
FAMILIES = [
    ("swin", "h100:8"),
    ("convit", "h100:8"),
    ("cait", "v5e:4x4"),
    ("regnet", "h100:8"),
]


@pytest.mark.slow
@pytest.mark.parametrize("hardware, shape", VITS, ids=lambda x: str(x).replace(", ", "-"))
def test_vit_compiles_as_it_is_meant(hardware: str, shape: tuple[int, int, int]) -> None:
    seen = compile_step("vit", hardware, shape)
    check_every_program(seen)
    check_gathers_are_of_one_layer(seen, fsdp=shape[1], tensor=shape[2])
    check_tensor_sums(seen, shape[2])
    if hardware.startswith("2x"):
        check_only_sums_cross_slices(seen, per_slice=16)
    attention = re.findall(r'custom_call_target="(__cudnn\$fmha\w*)"', seen.text)
    if hardware.startswith("h100"):
        assert {"__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"} <= set(attention)
    else:
        assert not attention


@pytest.mark.slow
@pytest.mark.parametrize("family, hardware", FAMILIES)
def test_family_compiles_as_it_is_meant(family: str, hardware: str) -> None:
    shape = (4, 4, 1) if hardware == "v5e:4x4" else (2, 4, 1)
    seen = compile_step(family, hardware, shape)
    check_every_program(seen)
    # ConViT's second block attends as a ViT's; the others' attention has a bias or mixed heads.
    by_cudnn = family == "convit" and hardware == "h100:8"
    assert ("__cudnn$fmha" in seen.text) == by_cudnn


def check_every_program(seen: Seen) -> None:
    """Nothing is made whole that an axis divides, and matmuls have bfloat16 operands."""
    assert seen.compiled.num_rematerialized == 0
    sizes = dict(seen.mesh.shape)
    for tree in (seen.state.params, seen.state.opt_state):
        assert undivided(tree, "fsdp", sizes)[0] == []
    wide = [x for x in seen.collectives if x.kind == "all-gather" and "data" in x.axes]
    assert [x for x in wide if x.num_bytes >= LARGE] == []
    assert wide_matmuls(seen.program) == []


def check_gathers_are_of_one_layer(seen: Seen, fsdp: int, tensor: int) -> None:
    """ZeRO-3: each block's weights are gathered where they are used, in bfloat16, and no stack."""
    gathers = [x for x in seen.collectives if x.kind == "all-gather"]
    arrays = [(math.prod(a.shape), a.dtype, x) for x in gathers for a in x.arrays]
    kernels = {n // tensor for n in BLOCK}
    assert [x for size, _, x in arrays if size in {2 * n for n in kernels}] == []
    weights = [(size, dtype, x) for size, dtype, x in arrays if size in kernels]
    if fsdp == 1:
        assert weights == []
        return
    assert {dtype for _, dtype, _ in weights} == {"bf16"}
    # Two blocks, forward and backward, whether or not the compiler has unrolled a loop of two.
    gathered = sum(size * x.times for size, _, x in weights)
    assert gathered >= 4 * (4 * DIM * DIM + 2 * DIM * MLP) // tensor
    assert any(x.loops for _, _, x in weights), "no gather is in a loop"


def check_tensor_sums(seen: Seen, tensor: int) -> None:
    """Activations are summed over `tensor` in both passes of both blocks, where there is one."""
    sums = [x for x in seen.collectives if x.kind == "all-reduce" and x.axes == "tensor"]
    wide = [x for x in sums if max(math.prod(a.shape) for a in x.arrays) >= 197 * DIM]
    assert sum(x.times for x in wide) == (8 if tensor > 1 else 0)


def check_only_sums_cross_slices(seen: Seen, per_slice: int) -> None:
    """Between slices goes one sum of the gradients' parts, and nothing else."""
    crossing = [x for x in seen.collectives if x.axes == hlo.SLICES]
    assert crossing
    assert {x.kind for x in crossing} == {"all-reduce"}
    for x in seen.collectives:
        assert all(len({device // per_slice for device in group}) == 1 for group in x.groups), x
    params = sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape))
        for _, leaf in sharding.trees.named_leaves(seen.state.params)
    )
    # The slice's own sum over `data` comes first: each of its two devices sends half of its part.
    sent = sum(math.prod(x.arrays[0].shape) * x.times for x in crossing)
    assert sent <= 1.25 * params


def wide_matmuls(program: hlo.HloModule) -> list[str]:
    """List the large matmuls and convolutions with float32 operands, but for the head's."""
    found = []
    for body in program.computations.values():
        types = {x.name: x.arrays for x in body}
        for x in body:
            gemm = x.opcode == "custom-call" and re.search(r"cublas|cudnn\$conv", x.rest)
            if not (x.opcode in ("dot", "convolution") or gemm):
                continue
            operands = [types[name][0] for name in x.operands[:2] if types.get(name)]
            small = min((math.prod(a.shape) for a in operands), default=0) < SMALL_MATMUL
            if not small and "/head" not in x.op_name and any(a.dtype == "f32" for a in operands):
                found.append(f"{' x '.join(map(str, operands))}: {x.op_name}")
    return found
