# SPDX-License-Identifier: Apache-2.0
"""Operations of a model that one ONNX node does, and how the converter writes them.

The converter knows lax operations, of which a LayerNorm is eleven, and it computes each shape with
a batch in it by operations of the graph. Here such an operation becomes one node, and a shape an
array of numbers with one -1. `node` is a primitive of jax that stands for any node.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend import core

_node = core.Primitive("vit_jax_onnx_node")


@_node.def_abstract_eval
def _result(*operands: Any, shape: tuple[Any, ...], **_: Any) -> Any:
    return operands[0].update(shape=shape)


def node(
    op: str,
    *operands: Any,
    shape: Sequence[Any],
    numbers: Sequence[Sequence[int]] = (),
    **attributes: Any,
) -> Any:
    """Return what the node `op` makes of the operands: of that shape, in the first one's dtype.

    Args:
        op: its name in ONNX.
        operands: its first inputs.
        shape: of the result; a size may be symbolic.
        numbers: its last inputs, constants of int64.
        attributes: hashable.
    """
    return _node.bind(
        *operands,
        op=op,
        shape=tuple(shape),
        numbers=tuple(tuple(map(int, each)) for each in numbers),
        attributes=tuple(attributes.items()),
    )


@functools.cache
def register() -> None:
    """Teach the converter what to write for the primitive of `node`; the first call does it."""
    from jax2onnx.plugins import plugin_system  # pyright: ignore[reportMissingImports]

    class Node(plugin_system.PrimitiveLeafPlugin):
        def lower(self, ctx: Any, eqn: Any) -> None:
            params, (out,) = eqn.params, eqn.outvars
            inputs = [ctx.get_value_for_var(x, name_hint=ctx.fresh_name("in")) for x in eqn.invars]
            for each in params["numbers"]:
                name = ctx.fresh_name("numbers")
                array = np.asarray(each, np.int64)
                inputs.append(ctx.builder.add_initializer_from_array(name=name, array=array))
            expected = ctx.get_value_for_var(out, name_hint=ctx.fresh_name("out"))
            attributes = {
                name: [*value] if isinstance(value, tuple) else value
                for name, value in params["attributes"]
            }
            write = getattr(ctx.builder, params["op"])
            value = write(*inputs, **attributes, _outputs=[expected.name])
            value.type, value.shape = expected.type, expected.shape
            ctx.bind_value_for_var(out, value)

    plugin_system.register_primitive(jaxpr_primitive=_node.name)(Node)


def traced(*operands: Any) -> bool:
    """Return whether an operand depends on the images; all else is computed at once."""
    return any(isinstance(x, Tracer) for x in operands)


def slice_of(x: Any, params: dict[str, Any]) -> Any:
    """Cut axes of known sizes; those that are not cut need none."""
    steps = params["strides"] or (1,) * x.ndim
    limits = zip(params["start_indices"], params["limit_indices"], steps, x.shape, strict=True)
    cut = [(axis, *each[:3]) for axis, each in enumerate(limits) if each[:3] != (0, each[3], 1)]
    if not all(isinstance(number, int) for each in cut for number in each):
        return None
    shape = list(x.shape)
    for axis, start, limit, step in cut:
        shape[axis] = max(-(-(limit - start) // step), 0)
    axes, starts, ends, by = zip(*cut, strict=True) if cut else ((), (), (), ())
    return node("Slice", x, shape=shape, numbers=[starts, ends, axes, by]) if cut else x


def max_pool(x: Any, params: dict[str, Any]) -> Any:
    """Pool the two middle axes of images.

    The converter's own has a window over batch and channels too, which ONNX Runtime refuses.

    Raises NotImplementedError: other axes are pooled, or windows have gaps.
    """
    window, strides, padding = (
        params[name] for name in ("window_dimensions", "window_strides", "padding")
    )
    dilated = set(params["base_dilation"]) | set(params["window_dilation"]) != {1}
    outer = [(window[axis], strides[axis], *padding[axis]) for axis in (0, -1)]
    if x.ndim != 4 or dilated or outer != [(1, 1, 0, 0)] * 2:
        raise NotImplementedError("max-pooling of other axes than an image's, or dilated")
    height, width = (
        (x.shape[axis] + sum(padding[axis]) - window[axis]) // strides[axis] + 1 for axis in (1, 2)
    )
    (top, bottom), (left, right) = padding[1:3]
    pooled = node(
        "MaxPool",
        jnp.transpose(x, (0, 3, 1, 2)),
        shape=(x.shape[0], x.shape[3], height, width),
        kernel_shape=tuple(window[1:3]),
        strides=tuple(strides[1:3]),
        pads=(top, left, bottom, right),
    )
    return jnp.transpose(pooled, (0, 2, 3, 1))
