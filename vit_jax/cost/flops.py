# SPDX-License-Identifier: Apache-2.0
"""Exact matmul and convolution FLOPs of a JAX function, read off its jaxpr on abstract values."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core

from vit_jax.devices import hardware
from vit_jax.models.resample import resized_map, resized_parameter
from vit_jax.trees import PyTree

_LEFT_OUT = (resized_parameter.__name__, resized_map.__name__)


class Work(NamedTuple):
    """What a program's matmuls, convolutions and fused attention ask of a device.

    Attributes:
        flops: a multiply-add counted as two.
        nbytes: of the operands and results, each read or written once.
        calls: how many there are.
    """

    flops: int = 0
    nbytes: int = 0
    calls: int = 0

    def plus(self, other: "Work", times: int = 1) -> "Work":
        """Return this work, then the other so many times."""
        return Work(*(a + times * b for a, b in zip(self, other, strict=True)))


def matmul(rows: int, inner: int, columns: int, itemsize: int, *, batch: int = 1) -> Work:
    """Return the work of `batch` products (rows, inner) @ (inner, columns)."""
    moved = batch * (rows * inner + inner * columns + rows * columns)
    return Work(2 * batch * rows * inner * columns, itemsize * moved, 1)


def work(fn: Callable[..., Any], *args: PyTree) -> Work:
    """Return the work of `fn(*args)`, counted as `count` counts; args may be abstract."""
    # The model's own, on any hardware: CPUs and TPUs have forms of layers that multiply more.
    with hardware.tracing_for(hardware.Target("gpu")):
        return _jaxpr_work(jax.make_jaxpr(fn)(*args).jaxpr)


def count(fn: Callable[..., Any], *args: PyTree) -> int:
    """Return the FLOPs of `fn(*args)`, a multiply-add counted as two; args may be abstract.

    Matmuls, convolutions and fused attention only, not norms, softmax or element-wise work, as in
    fvcore, `torch.utils.flop_counter` and the papers' tables. A scanned body counts once per
    iteration, `cond` as its dearest branch, and `while_loop` as a single iteration, since its trip
    count is not in the program. Rematerialised work counts as often as it runs: once forward.
    FlexiViT's resize of parameters, which the images of a batch share, is left out, and that of
    maps, of two products a number in any other form.
    """
    return work(fn, *args).flops


def forward_flops(module: Any, image_size: int | tuple[int, int], channels: int = 3) -> int:
    """Return the FLOPs of `module.apply(variables, image, train=False)`, allocating nothing.

    `image_size` is the side of the one image in pixels, or (height, width); `module` is of flax.
    """
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    image = jax.ShapeDtypeStruct((1, height, width, channels), jnp.float32)
    variables = jax.eval_shape(lambda x: module.init(jax.random.key(0), x), image)
    return count(lambda v, x: module.apply(v, x, train=False), variables, image)


def train_flops(forward: int) -> int:
    """Return the model FLOPs of a training step: two more matmuls, one for each operand.

    What rematerialisation repeats is left out: it is no model work (PaLM, appendix B).
    """
    return 3 * forward


def _jaxpr_work(jaxpr: Any) -> Work:
    total = Work()
    for eqn in jaxpr.eqns:
        total = total.plus(*_equation_work(eqn))
    return total


def _equation_work(eqn: Any) -> tuple[Work, int]:
    """Return an equation's work and how often it runs."""
    name = eqn.primitive.name
    if eqn.params.get("name") in _LEFT_OUT:
        return Work(), 1
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        lhs, rhs, out = (x.aval for x in (*eqn.invars, *eqn.outvars))
        flops = 2 * out.size * math.prod(lhs.shape[i] for i in contracted)
        return Work(flops, _nbytes(lhs, rhs, out), 1), 1
    if name == "conv_general_dilated":
        image, kernel, out = (x.aval for x in (*eqn.invars, *eqn.outvars))
        num_outputs = kernel.shape[eqn.params["dimension_numbers"].rhs_spec[0]]
        flops = 2 * out.size * (kernel.size // num_outputs)
        return Work(flops, _nbytes(image, kernel, out), 1), 1
    if name.startswith(("dot_product_attention_fwd", "dot_product_attention_bwd")):
        # cuDNN's kernels hide their matmuls, two and five: query (B, N, h, d), key (B, M, h, d).
        query, key = eqn.invars[0].aval, eqn.invars[1].aval
        matmuls = 2 if "_fwd" in name else 5
        flops = matmuls * 2 * math.prod(query.shape) * key.shape[1]
        return Work(flops, matmuls * _nbytes(query, key), 1), 1
    if name == "cond":
        each = [_jaxpr_work(branch.jaxpr) for branch in eqn.params["branches"]]
        return max(each), 1
    inner = Work()
    for jaxpr in sub_jaxprs(eqn.params):
        inner = inner.plus(_jaxpr_work(jaxpr))
    return inner, eqn.params["length"] if name == "scan" else 1


def _nbytes(*arrays: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in arrays)


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """Count a scan's constants and its carried values; its other operands are stacked."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()  # jax 0.11 and later group the operands
    return len(consts), len(carry)


def sub_jaxprs(params: dict[str, Any]) -> list[Any]:
    """List the programs an equation runs: of jit, scan, while, remat, custom_vjp and the like."""
    items = [x for v in params.values() for x in (v if isinstance(v, tuple) else (v,))]
    programs = [x.jaxpr if isinstance(x, core.ClosedJaxpr) else x for x in items]
    return [program for program in programs if isinstance(program, core.Jaxpr)]
