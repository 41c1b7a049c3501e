# SPDX-License-Identifier: Apache-2.0
"""The most temporary memory a program holds at once, by its jaxpr alone: no compiler, no device.

A compiler runs element-wise work inside the operations that read it, so that only what a product,
a convolution, a loop or a reduction makes or reads has memory of its own, from where it is made to
where it is last read. The order is the program's. What XLA's scheduler makes of it differs.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core

PyTree = Any
Bytes = Callable[[Any], int]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Computed where they are read. A dear one that several operations read is stored instead.
_DEAR = _names("""
    cos sin tan tanh exp exp2 log log1p expm1 erf erf_inv logistic pow sqrt cbrt rsqrt div rem
    atan2 stack
""")
_CHEAP = _names("""
    add add_any sub mul neg max min abs sign floor ceil round integer_pow square is_finite and or
    not xor eq ne lt le gt ge select_n clamp convert_element_type broadcast_in_dim transpose slice
    dynamic_slice pad concatenate rev iota copy real nextafter shift_left shift_right_logical
    shift_right_arithmetic bitcast_convert_type reduce_precision split
""")
_SAME_BUFFER = _names("""
    reshape squeeze expand_dims sharding_constraint optimization_barrier layout_constraint name
    stop_gradient copy_p random_wrap random_unwrap
""")
_FUSED = _DEAR | _CHEAP | _SAME_BUFFER
_REDUCTIONS = ("reduce_", "arg")


@dataclasses.dataclass
class _Op:
    name: str
    reads: list[int]
    makes: list[int]
    inside: int = 0  # temporary memory of a loop's body


class _Program:
    """A jaxpr laid flat: values are numbers, calls are inlined, unrolled loops are laid out."""

    def __init__(self, bytes_of: Bytes) -> None:
        self.bytes_of = bytes_of
        self.sizes: list[int] = []
        self.ops: list[_Op] = []
        self.stacks: dict[int, list[int]] = {}  # what an unrolled loop made, one value a turn

    def value(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def run(self, jaxpr: Any, args: Sequence[int]) -> list[int]:
        """Append the jaxpr's operations on these values; return its outputs."""
        env: dict[Any, int] = dict(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> int:
            if isinstance(atom, core.Literal):
                return self.value(0)
            if atom not in env:  # a constant of the program
                env[atom] = self.value(0)
            return env[atom]

        for eqn in jaxpr.eqns:
            made = self._equation(eqn, [read(atom) for atom in eqn.invars])
            env.update(zip(eqn.outvars, made, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: Any, reads: list[int]) -> list[int]:
        if eqn.primitive.name == "scan":
            if eqn.params["unroll"] >= eqn.params["length"]:
                return self._unrolled(eqn, reads)
            return self._loop(eqn, reads, [eqn.params["jaxpr"].jaxpr])
        inner = _called(eqn)
        if inner is not None and len(inner.invars) == len(reads):
            return self.run(inner, reads)
        branches = [sub for sub in _bodies(eqn.params) if eqn.primitive.name in ("cond", "while")]
        return self._loop(eqn, reads, branches)

    def _loop(self, eqn: Any, reads: list[int], bodies: list[Any]) -> list[int]:
        makes = [self.value(self.bytes_of(var.aval)) for var in eqn.outvars]
        inside = max((peak_of(body, self.bytes_of) for body in bodies), default=0)
        self.ops.append(_Op(eqn.primitive.name, reads, makes, inside))
        return makes

    def _unrolled(self, eqn: Any, reads: list[int]) -> list[int]:
        body, length = eqn.params["jaxpr"].jaxpr, eqn.params["length"]
        num_consts, num_carry = eqn.params["num_consts"], eqn.params["num_carry"]
        consts, carry = reads[:num_consts], reads[num_consts : num_consts + num_carry]
        stacked = reads[num_consts + num_carry :]
        turns: list[list[int]] = [[] for _ in eqn.outvars[num_carry:]]
        order = range(length)
        for i in reversed(order) if eqn.params["reverse"] else order:
            each = [self._slice(x, i, length) for x in stacked]
            out = self.run(body, [*consts, *carry, *each])
            carry = out[:num_carry]
            for values, new in zip(turns, out[num_carry:], strict=True):
                values.append(new)
        made = []
        for var, values in zip(eqn.outvars[num_carry:], turns, strict=True):
            values = values[::-1] if eqn.params["reverse"] else values
            whole = self.value(self.bytes_of(var.aval))
            self.stacks[whole] = values
            self.ops.append(_Op("stack", values, [whole]))
            made.append(whole)
        return [*carry, *made]

    def _slice(self, whole: int, i: int, length: int) -> int:
        if whole in self.stacks:
            return self.stacks[whole][i]
        part = self.value(self.sizes[whole] // length)
        self.ops.append(_Op("slice", [whole], [part]))
        return part


def peak_of(jaxpr: Any, bytes_of: Bytes) -> int:
    """Return the bytes of the most temporary memory at once, without inputs and outputs.

    Args:
        jaxpr: the program.
        bytes_of: aval -> bytes of an array on one device.
    """
    program = _Program(bytes_of)
    inputs = [program.value(0) for _ in jaxpr.invars]
    outputs = set(program.run(jaxpr, inputs))
    ops = _needed(program.ops, outputs)
    readers: dict[int, list[str]] = {}
    for op in ops:
        for value in op.reads:
            readers.setdefault(value, []).append(op.name)

    def stored(op: _Op, value: int) -> bool:
        if op.name not in _FUSED or value in outputs:
            return True
        names = readers.get(value, [])
        if any(name not in _FUSED and not name.startswith(_REDUCTIONS) for name in names):
            return True
        return op.name in _DEAR and len(names) > 1

    # What memory each value is read from: its own, or that of what it is computed from.
    sources: dict[int, frozenset[int]] = {value: frozenset((value,)) for value in inputs}
    born: dict[int, int] = {}
    last: dict[int, int] = {}
    for time, op in enumerate(ops):
        reads = frozenset().union(*(sources.get(value, frozenset()) for value in op.reads))
        alias = op.name in _SAME_BUFFER and op.reads and op.reads[0] in born
        for value in op.makes:
            if stored(op, value) and not alias:
                sources[value] = frozenset((value,))
                born[value] = time
                for source in reads:
                    last[source] = time
            else:
                sources[value] = reads
        if op.name not in _FUSED:
            for source in reads:
                last[source] = time
    return _most(ops, program.sizes, born, last, outputs)


def _most(
    ops: list[_Op],
    sizes: list[int],
    born: dict[int, int],
    last: dict[int, int],
    outputs: set[int],
) -> int:
    """Sweep over time; what a fused operation reads for the last time makes room for its result."""
    change = [0] * (len(ops) + 1)
    for value, start in born.items():
        if value in outputs:
            continue  # counted where the program is run
        change[start] += sizes[value]
        end = last.get(value, start)
        change[min(end + (ops[end].name not in _FUSED), len(ops))] -= sizes[value]
    held = most = 0
    for op, step in zip(ops, change, strict=False):
        held += step
        most = max(most, held + op.inside)
    return most


def _needed(ops: list[_Op], outputs: set[int]) -> list[_Op]:
    """Leave out what nobody reads."""
    wanted, kept = set(outputs), []
    for op in reversed(ops):
        if wanted.intersection(op.makes):
            wanted.update(op.reads)
            kept.append(op)
    return kept[::-1]


def _called(eqn: Any) -> Any:
    """Return the jaxpr that an equation calls once, or None."""
    if eqn.primitive.name in ("while", "cond", "scan"):
        return None
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        found = eqn.params.get(name)
        if found is not None:
            return found.jaxpr if isinstance(found, core.ClosedJaxpr) else found
    return None


def _bodies(params: dict[str, Any]) -> list[Any]:
    found = []
    for value in params.values():
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, core.ClosedJaxpr):
                found.append(item.jaxpr)
    return found


def array_bytes(aval: Any) -> int:
    """Return the bytes of an array by its aval; a typed PRNG key counts as 8."""
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return 8 * math.prod(aval.shape)
    return math.prod(aval.shape) * aval.dtype.itemsize
