# SPDX-License-Identifier: Apache-2.0
"""Operations that a step on a CPU is made of, XLA's beside PyTorch's: where the compiler decides.

    taskset --cpu-list 0 python -m benchmarks.cpu_operations

On one core neither side waits for a thread, so that CPU seconds are comparable under any load.
Needs torch.
"""

import argparse
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import record, step_timm
from benchmarks.train_step import make_row
from benchmarks.turns import Side, Turn, Work, alternate, calibrated, installed

PEER = "PyTorch"


class Product(NamedTuple):
    """Tokens times weights; `of` is the result or the gradient of one of the two."""

    tokens: int
    inputs: int
    outputs: int
    of: str
    dtype: str = "float32"


class Convolution(NamedTuple):
    """Stride 1, on NHWC maps; `of` as for a product."""

    batch: int
    side: int
    channels: int
    groups: int
    of: str
    size: int = 3
    dtype: str = "float32"


# A ViT-S of 16 images, and the forward pass of one of 8 in bfloat16; stages of ResNet-50,
# ConvNeXt-T and RegNetY-400MF of 8.
CASES: dict[str, Product | Convolution] = {
    "dense 3152x384 to 1536": Product(3152, 384, 1536, "result"),
    "dense 3152x384 to 1536, gradient of tokens": Product(3152, 384, 1536, "x"),
    "dense 3152x384 to 1536, gradient of weights": Product(3152, 384, 1536, "w"),
    "dense 3152x1536 to 384": Product(3152, 1536, 384, "result"),
    "dense 3152x1536 to 384, gradient of tokens": Product(3152, 1536, 384, "x"),
    "dense 3152x1536 to 384, gradient of weights": Product(3152, 1536, 384, "w"),
    "dense 1576x384 to 1536": Product(1576, 384, 1536, "result", "bfloat16"),
    "dense 1576x1536 to 384": Product(1576, 1536, 384, "result", "bfloat16"),
    "3x3 on 56x56x64": Convolution(8, 56, 64, 1, "result"),
    "3x3 on 56x56x64, gradient of maps": Convolution(8, 56, 64, 1, "x"),
    "3x3 on 56x56x64, gradient of weights": Convolution(8, 56, 64, 1, "w"),
    "7x7 on 56x56x96, 96 groups": Convolution(8, 56, 96, 96, "result", 7),
    "7x7 on 56x56x96, 96 groups, gradient of maps": Convolution(8, 56, 96, 96, "x", 7),
    "7x7 on 56x56x96, 96 groups, gradient of weights": Convolution(8, 56, 96, 96, "w", 7),
    "3x3 on 14x14x208, 26 groups": Convolution(8, 14, 208, 26, "result"),
    "3x3 on 14x14x208, 26 groups, gradient of weights": Convolution(8, 14, 208, 26, "w"),
}


def flops(case: Product | Convolution) -> int:
    """Return the floating point operations of a case, a multiplication with its addition as two."""
    if isinstance(case, Product):
        return 2 * case.tokens * case.inputs * case.outputs
    fan_in = case.size**2 * case.channels // case.groups
    return 2 * case.batch * case.side**2 * fan_in * case.channels


def arrays(case: Product | Convolution) -> dict[str, np.ndarray]:
    """Return x, w (in JAX's layout) and dy of a case, float32."""
    if isinstance(case, Product):
        shapes = {
            "x": (case.tokens, case.inputs),
            "w": (case.inputs, case.outputs),
            "dy": (case.tokens, case.outputs),
        }
    else:
        maps = (case.batch, case.side, case.side, case.channels)
        kernel = (case.size, case.size, case.channels // case.groups, case.channels)
        shapes = {"x": maps, "w": kernel, "dy": maps}
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def make_ours(seconds: float) -> tuple[dict[str, Any], Callable[[str], Turn]]:
    """Compile every case as the models compute it, by a step's options; a turn is a case's name."""
    from vit_jax.devices import sharding
    from vit_jax.process import startup

    startup.configure()
    import jax

    from vit_jax.devices.hardware import compiler_options
    from vit_jax.models.layers import dense

    options = compiler_options(sharding.make_mesh(sharding.MeshConfig()), False)
    works: dict[str, tuple[int, Work]] = {}
    for name, case in CASES.items():
        given = {key: jax.numpy.asarray(x, case.dtype) for key, x in arrays(case).items()}
        is_step = case.dtype == "float32"  # bfloat16 is for forward passes alone on a CPU
        step, forward = dense.summing_in(dense.ReduceDType.FLOAT32), dense.for_this_machine()
        with step if is_step else forward:
            compiled = jax.jit(ours(case)).lower(**given).compile(compiler_options=options)

        def compute(compiled: Any = compiled, given: Any = given) -> None:
            jax.block_until_ready(compiled(**given))

        works[name] = (1, functools.partial(_times, compute))
    return {"platform": "cpu", "peak_flops": None, "flops": {}}, calibrated(works, seconds)


def ours(case: Product | Convolution) -> Callable[..., Any]:
    """Return the case as a function of x, w and dy."""
    import jax

    from vit_jax.models.conv.conv import conv2d
    from vit_jax.models.layers.dense import matmul

    apply: Callable[..., Any] = matmul
    if isinstance(case, Convolution):
        apply = functools.partial(conv2d, groups=case.groups)
    if case.of == "result":
        return lambda x, w, dy: apply(x, w)
    if case.of == "x":
        return lambda x, w, dy: jax.vjp(lambda x: apply(x, w), x)[1](dy)[0]
    return lambda x, w, dy: jax.vjp(lambda w: apply(x, w), w)[1](dy)[0]


def make_theirs(seconds: float) -> tuple[dict[str, Any], Callable[[str], Turn]]:
    """Prepare the same cases in PyTorch, maps channels-last: its faster layout."""
    mkl = step_timm.has_slow_mkl()
    torch, _ = step_timm.start(record.num_cores(), "passive", mkl)
    works = {
        name: (1, functools.partial(_times, theirs(torch, case))) for name, case in CASES.items()
    }
    return {}, calibrated(works, seconds)


def _times(compute: Callable[[], Any], count: int) -> None:
    for _ in range(count):
        compute()


def theirs(torch: Any, case: Product | Convolution) -> Callable[[], Any]:
    """Return the case on its own arrays, in PyTorch's layout."""
    dtype = getattr(torch, case.dtype)
    x, w, dy = (torch.from_numpy(array).to(dtype) for array in arrays(case).values())
    if isinstance(case, Product):
        w = w.T.contiguous()  # as torch.nn.Linear holds it
        linear = functools.partial(torch.nn.functional.linear, x, w)
        return {"result": linear, "x": lambda: dy @ w, "w": lambda: dy.T @ x}[case.of]
    x, dy = (maps.permute(0, 3, 1, 2) for maps in (x, dy))
    w = w.permute(3, 2, 0, 1).contiguous()
    if case.of == "result":
        return lambda: torch.nn.functional.conv2d(x, w, padding=case.size // 2, groups=case.groups)
    wanted = [case.of == "x", case.of == "w", False]
    padding = [case.size // 2] * 2
    sides = ([1, 1], padding, [1, 1], False, [0, 0])  # stride, padding, dilation, not transposed
    backward = torch.ops.aten.convolution_backward
    return lambda: backward(dy, x, w, None, *sides, case.groups, wanted)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_operations")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="about a turn's length")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    args = parser.parse_args(argv)
    settings = {"seconds": args.seconds}
    rows = []
    with Side(make_ours, **settings) as mine, Side(make_theirs, **settings) as its:
        for name, case in CASES.items():
            load = os.getloadavg()[0]
            done = alternate([mine, its], args.rounds, name)
            row = make_row(f"{name} {case.dtype}", name, mine.facts, done, "", load, PEER)
            rows.append(dataclasses.replace(row, unit="1/s"))
    record.report(rows, args.out, installed("torch"))


if __name__ == "__main__":
    main()
