# SPDX-License-Identifier: Apache-2.0
"""The functions of a model that ONNX has an operation for: norms, GELU, softmax, attention.

A traced program knows such a function by its gradient, which is its own, and by its name.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend import core

from vit_jax.export import onnx_delayed
from vit_jax.export.onnx_nodes import node, traced


def _layer_norm(operands: Sequence[Any], jaxpr: Any) -> Any:
    x, scale, bias = operands
    epsilon = _added(jaxpr)
    return node("LayerNormalization", x, scale, bias, shape=x.shape, axis=-1, epsilon=epsilon)


def _added(jaxpr: Any) -> float:
    """Return the one number that a program adds."""
    (found,) = [
        float(atom.val)
        for equation in jaxpr.eqns
        if equation.primitive.name == "add"
        for atom in equation.invars
        if isinstance(atom, core.Literal)
    ]
    return found


def _gelu(operands: Sequence[Any], jaxpr: Any, *, approximate: str) -> Any:
    (x,) = operands
    return node("Gelu", x, shape=x.shape, approximate=approximate)


def _relu(operands: Sequence[Any], jaxpr: Any) -> Any:
    (x,) = operands
    return node("Relu", x, shape=x.shape)


def _attention(operands: Sequence[Any], jaxpr: Any) -> Any:
    q, k, v, *bias = operands
    logits = jnp.matmul(q, jnp.swapaxes(k, -1, -2))
    if bias:
        logits = node("Add", logits, bias[0], shape=logits.shape)
    return jnp.matmul(node("Softmax", logits, shape=logits.shape, axis=-1), v)


def _softmax(operands: Sequence[Any], jaxpr: Any) -> Any:
    (x,) = operands
    axes = [e.params["axes"] for e in jaxpr.eqns if e.primitive.name == "reduce_max"]
    if axes != [(x.ndim - 1,)]:
        return None
    return node("Softmax", x, shape=x.shape, axis=-1)


# Functions with gradients of their own, by name and file; these see each row alone.
_BY_ROW: dict[tuple[str, str], Callable[[Sequence[Any], Any], Any]] = {
    ("normalize", "vit_jax/models/layers/norm.py"): _layer_norm,
    ("_gelu_tanh", "vit_jax/models/layers/mlp.py"): functools.partial(_gelu, approximate="tanh"),
    ("_gelu_erf", "vit_jax/models/layers/mlp.py"): functools.partial(_gelu, approximate="none"),
    ("_softmax", "jax/_src/nn/functions.py"): _softmax,
    ("relu", "jax/_src/nn/functions.py"): _relu,
}
_OTHERS = {("_keeping", "vit_jax/models/layers/attention.py"): _attention}


def function(jaxpr: Any) -> Callable[[Sequence[Any]], Any] | None:
    """Return what writes a function of the model as one or few nodes; None for other functions.

    It returns None itself where it does not fit the operands.
    """
    name, _, place = jaxpr.debug_info.func_src_info.partition(" at ")
    for (known, file), write in {**_BY_ROW, **_OTHERS}.items():
        if name == known and file in place.replace("\\", "/"):
            fitting = functools.partial(_fitting, write, jaxpr)
            if (known, file) in _BY_ROW:
                return functools.partial(onnx_delayed.by_row, fitting)
            return lambda operands: fitting([*map(onnx_delayed.whole, operands)])
    return None


def _fitting(
    write: Callable[[Sequence[Any], Any], Any], jaxpr: Any, operands: Sequence[Any]
) -> Any:
    if not traced(operands[0]):
        return None
    same = all(x.dtype == jnp.float32 for x in operands)
    return write(operands, jaxpr) if same and 0 not in operands[0].shape else None
