# SPDX-License-Identifier: Apache-2.0
"""A trained model as an ONNX graph, by jax2onnx.

The converter is handed a program of plain lax operations. By itself it takes the library functions
that it knows out of the middle of a model, and of our ten families it then converts one.
"""

import collections
import contextlib
import dataclasses
import importlib.util
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.extend import core
from jaxtyping import Num

from vit_jax import trees
from vit_jax.cost.flops import scan_counts
from vit_jax.devices import hardware
from vit_jax.errors import UserError, install
from vit_jax.export import onnx_delayed, onnx_functions, onnx_nodes, outputs
from vit_jax.export.stablehlo import portable
from vit_jax.inference.trained import Trained
from vit_jax.models import DType

INPUT = "images"  # what comes out is named by `outputs.meanings`
OPSET = 21
MAX_BYTES = 2**31 - 2**26  # a protocol buffer; 64 MiB of its 2 GiB are left for the graph itself


def require() -> None:
    """Check that what writes and runs ONNX is installed.

    Raises UserError: saying how to install it.
    """
    for name in ("jax2onnx", "onnxruntime"):
        if importlib.util.find_spec(name) is None:
            alone = f"{sys.executable} -m pip install --no-deps jax2onnx==0.17.1"
            raise UserError(
                f"--format=onnx needs {name}; install it: {install('onnx')} && {alone} "
                "(its own requirements would bring an older Orbax)"
            )


def serialize(trained: Trained) -> bytes:
    """Return the ONNX file of images -> logits, weights and normalisation inside, in float32.

    It takes uint8 [batch, H, W, C], of bands in the data's dtype, cropped and resized, for any
    batch, and returns float32 [batch, K]. A model that computes in bfloat16 computes in float32
    here: few of ONNX Runtime's kernels take bfloat16. A model without a head returns its features,
    [batch, D].

    Raises UserError: jax2onnx is missing, weights of 2 GiB or more, or an operation that it lacks.
    """
    require()
    size = trees.num_bytes(trained.variables)
    if size > MAX_BYTES:
        raise UserError(f"the weights are {size:,} bytes; one ONNX file holds {MAX_BYTES:,}")
    model = dataclasses.replace(trained.model, dtype=DType.FLOAT32)
    apply = outputs.make(portable(dataclasses.replace(trained, model=model)))
    (batch,) = export.symbolic_shape("batch")
    images = jax.ShapeDtypeStruct((batch, *trained.image_size, trained.channels), trained.dtype)
    # Traced before the converter runs, since it traces with its own versions of jax's functions.
    # A CPU's program has no groups of convolutions, which XLA lacks there; ONNX Runtime has them.
    with hardware.tracing_for(hardware.Target("gpu")):
        traced = jax.make_jaxpr(lambda image: apply(trained.variables, image))(images)

    def plain(image: jax.Array) -> Any:
        found = [*map(onnx_delayed.whole, _evaluate(traced.jaxpr, traced.consts, [image]))]
        return tuple(found) if len(found) > 1 else found[0]

    with _quiet():
        from jax2onnx import to_onnx  # pyright: ignore[reportMissingImports]

        onnx_nodes.register()

        try:
            graph: Any = to_onnx(
                plain,
                [images],
                model_name="vit_jax",
                opset=OPSET,
                input_names=[INPUT],
                output_names=[*outputs.meanings(trained)],
            )
        except NotImplementedError as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"jax2onnx has no counterpart of this model: {reason}; choose --format=stablehlo"
            ) from error
    _drop_unread(graph.graph)
    return graph.SerializeToString()


def runner(data: bytes, threads: int = 0) -> Callable[[Num[np.ndarray, "B H W C"]], Any]:
    """Return images -> logits, or a tuple of outputs, as ONNX Runtime computes on the CPU.

    `threads` is how many compute; 0 leaves it to ONNX Runtime.
    """
    import onnxruntime  # pyright: ignore[reportMissingImports]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def run(images: Num[np.ndarray, "B H W C"]) -> Any:
        found = tuple(map(np.asarray, session.run(None, {INPUT: np.asarray(images)})))
        (first, *others) = found
        return found if others else first

    return run


def _drop_unread(graph: Any) -> None:
    """Drop constants that no node reads: ONNX Runtime warns of each."""
    read = {name for each in graph.node for name in each.input}
    kept = [each for each in graph.initializer if each.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the converter's messages about its own examples and passes."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _evaluate(jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """Run a program operation by operation: inline calls, unroll loops, split some operations.

    What depends on weights alone is computed now, and so becomes one array of the graph.
    """
    readers = collections.defaultdict(list)
    for reader, atoms in [*((e.primitive.name, e.invars) for e in jaxpr.eqns), ("", jaxpr.outvars)]:
        for atom in atoms:
            if isinstance(atom, core.Var):
                readers[atom].append(reader)
    values: dict[Any, Any] = {}

    def keep(variables: Sequence[Any], found: Sequence[Any]) -> None:
        for variable, x in zip(variables, found, strict=True):
            values[variable] = onnx_delayed.shared(x, readers[variable])

    def value(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    keep(jaxpr.constvars, consts)
    keep(jaxpr.invars, inputs)
    for equation in jaxpr.eqns:
        keep(equation.outvars, _apply(equation, [value(atom) for atom in equation.invars]))
    return [value(atom) for atom in jaxpr.outvars]


def _apply(equation: Any, operands: list[Any]) -> list[Any]:
    name, params = equation.primitive.name, equation.params
    shapes = [x.aval.shape for x in equation.outvars]
    custom = name in ("custom_jvp_call", "custom_vjp_call")
    if custom or name == "jit":
        inner = params["call_jaxpr" if custom else "jaxpr"]
        write = onnx_functions.function(inner.jaxpr) if custom and operands else None
        if write is not None:
            found = write(operands)
            if found is not None:
                return [found]
        return _evaluate(inner.jaxpr, inner.consts, operands)
    if name == "scan":
        return _laid_out(params, [*map(onnx_delayed.whole, operands)])
    if name in ("stop_gradient", "copy"):
        return operands
    found = _delayed(name, operands, params, shapes[0])
    if found is not None:
        return [found]
    operands = [*map(onnx_delayed.whole, operands)]
    if name == "pad":
        return [_pad(operands[0], operands[1], params["padding_config"])]
    if name == "reduce_window_max":
        return [onnx_nodes.max_pool(operands[0], params)]
    if name == "slice" and onnx_nodes.traced(*operands):
        found = onnx_nodes.slice_of(operands[0], params)
        if found is not None:
            return [found]
    known = all(isinstance(size, int) for shape in shapes for size in shape)
    now = known and not onnx_nodes.traced(*operands)
    with jax.ensure_compile_time_eval() if now else contextlib.nullcontext():
        results = equation.primitive.bind(*operands, **params)
    return list(results) if equation.primitive.multiple_results else [results]


def _delayed(name: str, operands: list[Any], params: dict[str, Any], shape: Any) -> Any:
    """Return what need not be written at once, or None."""
    if name == "broadcast_in_dim" and len(operands) == 1:
        return onnx_delayed.broadcast(operands[0], shape, params["broadcast_dimensions"])
    if name in onnx_delayed.ELEMENTWISE:
        return onnx_delayed.elementwise(name, operands, shape)
    if not any(isinstance(x, onnx_delayed.Delayed) or onnx_nodes.traced(x) for x in operands):
        return None
    if name in ("reshape", "squeeze", "expand_dims"):
        return onnx_delayed.reshape(operands[0], shape)
    if name == "transpose":
        return onnx_delayed.transpose(operands[0], params["permutation"])
    if name == "slice":
        return onnx_delayed.slice_of(operands[0], params)
    if name == "dot_general":
        return onnx_delayed.matmul(operands[0], operands[1], params)
    if name == "conv_general_dilated":
        return onnx_delayed.convolve(operands[0], operands[1], params, shape)
    return None


def _laid_out(params: dict[str, Any], operands: list[Any]) -> list[Any]:
    """Run a scan from the first layer to the last, as a stack of blocks is one."""
    if params["reverse"]:
        raise NotImplementedError("a scan from the last layer to the first")
    num_consts, num_carry = scan_counts(params)
    first = num_consts + num_carry
    consts, carry = operands[:num_consts], operands[num_consts:first]
    body = params["jaxpr"]
    kept: list[list[Any]] = []
    for i in range(params["length"]):
        per_layer = [stacked[i] for stacked in operands[first:]]
        found = _evaluate(body.jaxpr, body.consts, [*consts, *carry, *per_layer])
        carry = found[:num_carry]
        outputs_of_layer = map(onnx_delayed.whole, found[num_carry:])
        kept.append([jax.lax.expand_dims(x, (0,)) for x in outputs_of_layer])
    return [*carry, *(jax.lax.concatenate(each, 0) for each in zip(*kept, strict=True))]


def _pad(x: jax.Array, fill: Any, config: Sequence[tuple[Any, ...]]) -> jax.Array:
    # The converter's own padding wants a batch that is a number.
    for axis, (before, after, between) in enumerate(config):
        if min(before, after) < 0 or between:
            raise NotImplementedError("padding that cuts or spreads")
        x = _extended(x, axis, int(before), int(after), fill)
    return x


def _extended(x: jax.Array, axis: int, before: int, after: int, fill: Any) -> jax.Array:
    def border(size: int) -> list[jax.Array]:
        shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        return [jax.lax.broadcast_in_dim(jnp.asarray(fill, x.dtype), shape, ())] if size else []

    if not before and not after:
        return x
    return jax.lax.concatenate([*border(before), x, *border(after)], axis)
