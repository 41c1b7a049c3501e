# SPDX-License-Identifier: Apache-2.0
"""Initial values in little time: what differs in shape alone is drawn by one small program.

XLA takes a quarter of a second for each array that a jitted initialisation draws, whatever its
size, and a network has dozens. But a random number depends on its key and its place alone
(threefry, as jax splits it over devices), and an initialiser changes each number by itself. So the
traced initialisation is read here, and each array drawn in pieces of one length, by a program that
all arrays of one distribution share. The values are those of the jitted whole, to the bit.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval

_PIECE = 1 << 16  # numbers drawn at once
_CALLS = {"jit", "pjit", "closed_call", "core_call"}
# Each number of the result is made of the numbers in its place.
_BY_NUMBER = {
    *("add", "sub", "mul", "div", "neg", "max", "min", "sqrt", "exp", "log", "erf", "erf_inv"),
    *("or", "and", "shift_right_logical", "bitcast_convert_type", "convert_element_type"),
    *("nextafter", "stop_gradient", "copy", "clamp", "integer_pow", "rsqrt", "abs", "sign"),
}
_SHAPES = {"reshape", "broadcast_in_dim", "squeeze", "expand_dims"}  # that keep numbers in order


class _Term(NamedTuple):
    """How a number is made: of constants, and at most once of the bits that are drawn for it.

    Equal `text`s mean equal terms.
    """

    text: str
    apply: Callable[[jax.Array], Any]


class _Array(NamedTuple):
    """An array of numbers that one term makes, with a key, or all alike without one."""

    term: _Term
    key: Any = None


_BITS = _Term("bits", lambda bits: bits)


def drawn(
    make: Callable[[jax.Array], Mapping[str, jax.Array]], key: jax.Array
) -> dict[str, np.ndarray]:
    """Return `jax.jit(make)(key)`, a dict of arrays, in less time.

    What is made in another way than described above is made by one program, as it stands.
    """
    closed, shapes = jax.make_jaxpr(make, return_shape=True)(key)
    names = sorted(shapes)  # as pytrees have them
    found: dict[str, np.ndarray] = {}
    config: Any = jax.config
    if jax.default_backend() == "cpu" and config.jax_threefry_partitionable:
        jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(names), instantiate=True)
        nodes = _read(jaxpr, closed.consts, [key])
        for name, node in zip(names, nodes, strict=True):
            value = _values(node, shapes[name].shape, shapes[name].dtype)
            if value is not None:
                found[name] = value
    if rest := [name for name in names if name not in found]:
        one = jax.jit(lambda key: {name: make(key)[name] for name in rest})
        found |= {name: np.asarray(value) for name, value in one(key).items()}
    return found


def _read(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Read a program: keys are computed, arrays of numbers become `_Array`s, others None.

    What a loop stacks is a list of what each turn makes.
    """
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def node(atom: Any) -> Any:
        if not isinstance(atom, jex.core.Literal):
            return known[atom]
        aval: Any = atom.aval
        value = np.asarray(atom.val, aval.dtype)
        return _Array(_Term(f"{value.dtype}:{value.tobytes().hex()}", lambda _: jnp.asarray(value)))

    for eqn in jaxpr.eqns:
        outs = _step(eqn, [node(atom) for atom in eqn.invars])
        known.update(zip(eqn.outvars, outs, strict=True))
    return [node(atom) for atom in jaxpr.outvars]


def _step(eqn: Any, args: list[Any]) -> list[Any]:
    """Read one equation."""
    name, params = eqn.primitive.name, eqn.params
    unknown = [None] * len(eqn.outvars)
    if name in _CALLS:
        inner = params.get("jaxpr") or params.get("call_jaxpr")
        return _read(inner.jaxpr, inner.consts, args)
    if name == "scan":
        return _scan(params, args) if not params["num_carry"] and not params["reverse"] else unknown
    if any(arg is None for arg in args):
        return unknown
    out = eqn.outvars[0].aval
    if name == "random_bits":
        is_plain = params["bit_width"] == 32 and isinstance(args[0], jax.Array) and not args[0].ndim
        return [_Array(_BITS, args[0])] if is_plain and math.prod(out.shape) < 2**32 else unknown
    if jnp.issubdtype(out.dtype, jax.dtypes.prng_key):
        keys = [_constant(arg) for arg in args]
        if any(arg is None for arg in keys):
            return unknown
        found = eqn.primitive.bind(*keys, **params)
        return list(found) if eqn.primitive.multiple_results else [found]
    sizes = [math.prod(getattr(atom.aval, "shape", ())) for atom in eqn.invars]
    return [_mapped(eqn, args, sizes, math.prod(out.shape))]


def _scan(params: Mapping[str, Any], args: list[Any]) -> list[Any]:
    """Read a loop whose turns do not know each other."""
    body, count = params["jaxpr"], params["num_consts"]
    turns = []
    for turn in range(params["length"]):
        each = []
        for arg in args[count:]:
            if isinstance(arg, list):
                each.append(arg[turn])
            else:
                each.append(arg[turn] if isinstance(arg, jax.Array | np.ndarray) else None)
        turns.append(_read(body.jaxpr, body.consts, [*args[:count], *each]))
    return [list(made) for made in zip(*turns, strict=True)]


def _mapped(eqn: Any, args: list[Any], sizes: list[int], size: int) -> Any:
    """Read an equation that makes each number by itself; None for others.

    What a loop has stacked is read no further: XLA does not fold constants across the loop's end.
    """
    name = eqn.primitive.name
    if not all(isinstance(arg, _Array) for arg in args):
        return None
    random = [arg.key for arg in args if arg.key is not None]
    if any(key is not random[0] for key in random):
        return None
    if any(n != size for arg, n in zip(args, sizes, strict=True) if arg.key is not None):
        return None  # which repeats, or takes a part
    key = random[0] if random else None
    if name in _SHAPES:
        return args[0]
    if name not in _BY_NUMBER:
        return None
    terms = [arg.term for arg in args]
    text = f"{name}{sorted(map(str, eqn.params.items()))}({', '.join(t.text for t in terms)})"
    return _Array(_Term(text, functools.partial(_apply, eqn, terms)), key)


def _apply(eqn: Any, terms: Sequence[_Term], bits: jax.Array) -> Any:
    values = [term.apply(bits) for term in terms]
    if any(value.ndim for value in values):
        values = [jnp.broadcast_to(value, bits.shape) for value in values]
    return eqn.primitive.bind(*values, **eqn.params)


def _constant(node: Any) -> Any:
    """Return a key, or the number that a constant is."""
    if isinstance(node, _Array):
        return None if node.key is not None else node.term.apply(jnp.zeros((), jnp.uint32))
    return None if isinstance(node, list) else node


def _values(node: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray | None:
    """Draw an array; None for one that is made in another way."""
    if isinstance(node, list):
        parts = [_values(each, shape[1:], dtype) for each in node]
        whole = [part for part in parts if part is not None]
        return np.stack(whole) if len(whole) == len(parts) else None
    if not isinstance(node, _Array):
        return None
    if node.key is None:
        if ":" not in node.term.text or "(" in node.term.text:
            return None  # computed of constants
        return np.full(shape, np.asarray(node.term.apply(jnp.zeros((), jnp.uint32))), dtype)
    size, data = math.prod(shape), jax.random.key_data(node.key)
    program, found = _program(node.term.text, node.term), np.empty(size, dtype)
    for start in range(0, size, _PIECE):
        piece = found[start : start + _PIECE]
        # Cut by numpy: jax would compile a cut for each length.
        piece[:] = np.asarray(program(_bits(data, np.uint32(start))))[: len(piece)]
    return found.reshape(shape)


@jax.jit
def _bits(key: jax.Array, start: jax.Array) -> jax.Array:
    """Return the random bits in the places from `start` on, of an array of less than 2^32."""
    places = start + jax.lax.iota(jnp.uint32, _PIECE)
    halves = jex.random.threefry_2x32(key, jnp.concatenate([jnp.zeros_like(places), places]))
    return halves[:_PIECE] ^ halves[_PIECE:]


_programs: dict[str, Callable[[jax.Array], jax.Array]] = {}


def _program(text: str, term: _Term) -> Callable[[jax.Array], jax.Array]:
    """Return the compiled term, which all arrays of this distribution share."""
    if text not in _programs:
        _programs[text] = jax.jit(lambda bits: term.apply(bits))
    return _programs[text]
