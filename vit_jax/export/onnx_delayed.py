# SPDX-License-Identifier: Apache-2.0
"""Arrays whose nodes are not written yet, since those that read them may need fewer.

An elementwise operation broadcasts by itself and needs no broadcast before it. Where several
reshapes follow each other, the last one is enough. A product with weights takes up the constants
that scale and shift its channels, such as a BatchNorm's; ONNX Runtime then runs it as one
operation.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.export.onnx_nodes import node, traced


class Spread(NamedTuple):
    """A broadcast; `compact` has the rank of the result, with sizes of 1."""

    compact: Any
    shape: tuple[Any, ...]


class Reshaped(NamedTuple):
    """`source`, an array, in another shape."""

    source: Any
    shape: tuple[Any, ...]


class Product(NamedTuple):
    """A product of an array and weights, plus a bias.

    Attributes:
        x: tokens [T, I], or maps [B, H, W, I].
        kernel: [I, O], or [k, k, I / groups, O]; float64.
        bias: [O], or None.
        shape: of the result.
        conv: strides, padding and groups of a convolution; None of a matrix.
        scaled: channels have been scaled, as BatchNorms do.
    """

    x: Any
    kernel: np.ndarray
    bias: np.ndarray | None
    shape: tuple[Any, ...]
    conv: tuple[Any, ...] | None = None
    scaled: bool = False


class ProductColumns(NamedTuple):
    """A product with a matrix, its channels on several axes, such as of parts and heads.

    A part of them is a product with a part of the columns: q, k and v are never cut apart.

    Attributes:
        product: with its channels on one axis, the last.
        sizes: of the axes of channels.
        order: of the axes before these and of these, as in `jax.lax.transpose`.
    """

    product: Product
    sizes: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def shape(self) -> tuple[Any, ...]:
        axes = (*self.product.shape[:-1], *self.sizes)
        return tuple(axes[axis] for axis in self.order)


Delayed = (Spread, Reshaped, Product, ProductColumns)


def whole(x: Any) -> Any:
    """Return the array, its nodes written."""
    if isinstance(x, Spread):
        return jax.lax.broadcast_in_dim(x.compact, x.shape, range(len(x.shape)))
    x = settled(x)
    return _reshape(x.source, x.shape) if isinstance(x, Reshaped) else x


def settled(x: Any) -> Any:
    """Return the array or, its nodes written but for its shape, an array in another shape."""
    if isinstance(x, Spread):
        return whole(x)
    if isinstance(x, ProductColumns):
        lead, order = x.product.shape[:-1], range(len(x.order))
        found = reshape(_write(x.product), (*lead, *x.sizes))
        return found if x.order == tuple(order) else jnp.transpose(whole(found), x.order)
    return _write(x) if isinstance(x, Product) else x


def shared(x: Any, readers: Sequence[str]) -> Any:
    """Return an array for those that read it: a product for several is written once."""
    if len(readers) < 2 or not isinstance(x, Product | ProductColumns):
        return x
    return x if isinstance(x, ProductColumns) and {*readers} == {"slice"} else whole(x)


def shape_of(x: Any) -> tuple[Any, ...]:
    """Return the shape of an array, delayed or not."""
    return x.shape if isinstance(x, Delayed) else np.shape(x)


def broadcast(x: Any, shape: Sequence[Any], axes: Sequence[int]) -> Any:
    """Return `x`, whose axes are those of the result, yet to be broadcast."""
    sizes: list[Any] = [1] * len(shape)
    for axis, size in zip(axes, shape_of(x), strict=True):
        sizes[axis] = size
    return Spread(whole(reshape(x, sizes)), tuple(shape))


def reshape(x: Any, shape: Sequence[Any]) -> Any:
    """Return `x` in another shape, yet to be written."""
    shape = tuple(shape)
    if isinstance(x, Product) and x.conv is None and x.shape[-1:] == shape[-1:]:
        return x._replace(shape=shape)
    if isinstance(x, Product | ProductColumns) and (found := _columns(x, shape)) is not None:
        return found
    x = settled(x)
    if isinstance(x, Reshaped) and x.shape[-1:] == shape[-1:] != x.source.shape[-1:]:
        x = whole(x)  # so that what follows can see its rows
    source = x.source if isinstance(x, Reshaped) else x
    if np.shape(source) == shape:
        return source
    return Reshaped(source, shape) if traced(source) else np.reshape(source, shape)


def _columns(x: Any, shape: tuple[Any, ...]) -> ProductColumns | None:
    """Return a product with its channels on more axes, or without one that has a single one."""
    if isinstance(x, ProductColumns):
        left = [axis for axis, size in zip(x.order, x.shape, strict=True) if size != 1]
        if tuple(size for size in x.shape if size != 1) != shape:
            return None
        lead = len(x.product.shape) - 1
        if any(axis not in left for axis in range(lead)):
            return None
        order = tuple(sorted(left).index(axis) for axis in left)
        return ProductColumns(x.product, tuple(size for size in x.sizes if size != 1), order)
    lead, channels = x.shape[:-1], x.kernel.shape[-1]
    sizes = shape[len(lead) :]
    if x.conv is not None or shape[: len(lead)] != lead or math.prod(sizes) != channels:
        return None
    return ProductColumns(x, sizes, tuple(range(len(shape))))


def transpose(x: Any, order: Sequence[int]) -> Any:
    """Return a product with its axes in another order, or None."""
    if not isinstance(x, ProductColumns):
        return None
    return x._replace(order=tuple(x.order[axis] for axis in order))


def slice_of(x: Any, params: dict[str, Any]) -> Any:
    """Return some channels of a product, those of some columns of its matrix; or None."""
    if not isinstance(x, ProductColumns):
        return None
    product, lead = x.product, len(x.product.shape) - 1
    steps = params["strides"] or (1,) * len(x.order)
    cut = [slice(None)] * len(x.sizes)
    limits = zip(params["start_indices"], params["limit_indices"], steps, strict=True)
    for axis, size, (start, limit, step) in zip(x.order, x.shape, limits, strict=True):
        if axis >= lead:
            cut[axis - lead] = slice(start, limit, step)
        elif (start, limit, step) != (0, size, 1):
            return None
    kernel = product.kernel.reshape(-1, *x.sizes)[:, *cut]
    bias = None if product.bias is None else product.bias.reshape(x.sizes)[tuple(cut)].reshape(-1)
    sizes, kernel = kernel.shape[1:], kernel.reshape(len(kernel), -1)
    shape = (*product.shape[:-1], kernel.shape[1])
    return x._replace(product=product._replace(kernel=kernel, bias=bias, shape=shape), sizes=sizes)


def _reshape(x: Any, shape: tuple[Any, ...]) -> Any:
    x = whole(x)
    sizes = [size if isinstance(size, int) else -1 for size in shape]
    if sizes.count(-1) > 1 or 0 in sizes:
        return jax.lax.reshape(x, shape)
    return node("Reshape", x, shape=shape, numbers=[sizes])


def matmul(x: Any, kernel: Any, params: dict[str, Any]) -> Any:
    """Return the product of two matrices, or None where they are not two.

    ONNX Runtime joins it with its bias, and its quantiser knows it.
    """
    (left, right), plain = map(shape_of, (x, kernel)), (((1,), (0,)), ((), ()))
    if params["dimension_numbers"] != plain or len(left) != 2 or len(right) != 2:
        return None
    if isinstance(kernel, Delayed) or traced(kernel) or kernel.dtype != jnp.float32:
        return node("MatMul", whole(x), whole(kernel), shape=(left[0], right[1]))
    return Product(settled(x), np.asarray(kernel, np.float64), None, (left[0], right[1]))


def convolve(x: Any, kernel: Any, params: dict[str, Any], shape: tuple[Any, ...]) -> Any:
    """Return a convolution of maps [B, H, W, C] by weights, or None where it is another."""
    numbers = params["dimension_numbers"]
    layout = (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec)
    spread = set(params["lhs_dilation"]) | set(params["rhs_dilation"])
    if layout != ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2)) or spread != {1}:
        return None
    if isinstance(kernel, Delayed) or traced(kernel) or kernel.dtype != jnp.float32:
        return None
    if params["batch_group_count"] != 1:
        return None
    how = params["window_strides"], params["padding"], params["feature_group_count"]
    return Product(whole(x), np.asarray(kernel, np.float64), None, shape, how)


def by_row(write: Callable[[Sequence[Any]], Any], operands: Sequence[Any]) -> Any:
    """Return what `write` makes of each row of the first operand, in that one's own shape."""
    first, *others = map(settled, operands)
    others = [*map(whole, others)]
    if not isinstance(first, Reshaped) or first.shape[-1:] != first.source.shape[-1:]:
        return write([whole(first), *others])
    found = write([first.source, *others])
    return None if found is None else Reshaped(found, first.shape)


def elementwise(name: str, operands: Sequence[Any], shape: tuple[Any, ...]) -> Any:
    """Return the sum, difference, product or quotient of two, at least one of them delayed.

    None where it is another operation, or needs all that is delayed.
    """
    if name not in ELEMENTWISE or not any(isinstance(x, Delayed) for x in operands):
        return None
    for attempt in (_scaled, _joined, _in_one_shape, _broadcasting):
        if (found := attempt(name, *operands)) is not None and shape_of(found) == shape:
            return found
    return None


ELEMENTWISE = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div"}


def _joined(name: str, x: Any, y: Any) -> Product | None:
    """Return a product with weights that has taken up a constant of each channel, or None."""
    product, other = (x, y) if isinstance(x, Product) else (y, x)
    compact = other.compact if isinstance(other, Spread) else other
    if not isinstance(product, Product) or isinstance(compact, Delayed) or traced(compact):
        return None
    sizes = np.shape(compact)
    if any(size != 1 for size in sizes[:-1]) or len(sizes) > len(product.shape):
        return None
    channels = product.kernel.shape[-1]
    if np.size(compact) not in (1, channels) or (name == "div" and product is not x):
        return None
    value = np.broadcast_to(np.asarray(compact, np.float64).reshape(-1), channels)
    bias = np.zeros(channels) if product.bias is None else product.bias
    if name == "add":
        return product._replace(bias=bias + value)
    if name == "sub":
        if product is x:
            return product._replace(bias=bias - value)
        return product._replace(kernel=-product.kernel, bias=value - bias)
    factor = 1 / value if name == "div" else value
    kept = None if product.bias is None else bias * factor
    return product._replace(kernel=product.kernel * factor, bias=kept, scaled=True)


def _scaled(name: str, x: Any, y: Any) -> ProductColumns | None:
    """Return a product times a number, such as attention's scale of its queries."""
    if name != "mul" or not isinstance(x, ProductColumns) or isinstance(y, Delayed) or traced(y):
        return None
    if np.size(y) != 1:
        return None
    product, factor = x.product, float(np.reshape(y, ()))
    bias = None if product.bias is None else product.bias * factor
    return x._replace(product=product._replace(kernel=product.kernel * factor, bias=bias))


def _in_one_shape(name: str, x: Any, y: Any) -> Reshaped | None:
    """Return the node of two arrays in the same other shape, without their reshapes."""
    x, y = (each if isinstance(each, Spread) else settled(each) for each in (x, y))
    if isinstance(x, Reshaped) and isinstance(y, Reshaped):
        if x.shape != y.shape or x.source.shape != y.source.shape:
            return None
        return Reshaped(node(ELEMENTWISE[name], x.source, y.source, shape=x.source.shape), x.shape)
    return None


def _broadcasting(name: str, x: Any, y: Any) -> Any:
    """Return the node of two float32 arrays, which broadcasts them."""
    shape = max(shape_of(x), shape_of(y), key=len)
    parts = [each.compact if isinstance(each, Spread) else whole(each) for each in (x, y)]
    sizes = [np.shape(each) or (1,) * len(shape) for each in parts]
    floats = all(jnp.result_type(each) == jnp.float32 for each in parts)
    if not traced(*parts) or not floats or len(sizes[0]) != len(sizes[1]):
        return None
    joined = tuple(b if a == 1 else a for a, b in zip(*sizes, strict=True))
    return node(ELEMENTWISE[name], *parts, shape=joined)


def _write(product: Product) -> Any:
    kernel, bias = (
        None if x is None else jnp.asarray(x, jnp.float32) for x in (product.kernel, product.bias)
    )
    assert kernel is not None
    if product.conv is not None:
        return _convolution(product.x, kernel, bias, product.shape, *product.conv)
    if product.scaled and len(product.shape) == 4:
        # A 1x1 convolution between others, which need the channels first as well.
        maps = whole(reshape(product.x, (*product.shape[:3], kernel.shape[0])))
        pointwise = (1, 1), ((0, 0), (0, 0)), 1
        return _convolution(maps, kernel[None, None], bias, product.shape, *pointwise)
    x = _rows(product)
    shape = (*x.shape[:-1], kernel.shape[1])
    found = node("MatMul", x, kernel, shape=shape)
    if bias is not None:
        found = node("Add", found, bias, shape=shape)
    return reshape(found, product.shape)


def _rows(product: Product) -> Any:
    """Return the tokens with as many axes as their images have.

    ONNX Runtime runs a product of three axes in less time than one of two, to which it adds the
    bias in the same operation.
    """
    x, inputs = product.x, product.kernel.shape[0]
    if not isinstance(x, Reshaped):
        return x
    if len(product.shape) > 2:
        return whole(reshape(x, (*product.shape[:-1], inputs)))
    fits = x.source.shape[-1] == inputs and x.source.ndim > 2
    return x.source if fits else whole(x)


def _convolution(
    x: Any,
    kernel: jax.Array,
    bias: jax.Array | None,
    shape: tuple[Any, ...],
    strides: tuple[int, int],
    padding: Any,
    groups: int,
) -> Any:
    ((top, bottom), (left, right)) = padding
    batch, height, width, channels = shape
    found = node(
        "Conv",
        jnp.transpose(x, (0, 3, 1, 2)),
        jnp.transpose(kernel, (3, 2, 0, 1)),
        *([] if bias is None else [bias]),
        shape=(batch, channels, height, width),
        strides=tuple(strides),
        pads=(top, left, bottom, right),
        group=groups,
    )
    return jnp.transpose(found, (0, 2, 3, 1))
