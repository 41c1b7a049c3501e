# SPDX-License-Identifier: Apache-2.0
"""The order of examples and the random generator of each, both functions of the seed.

Both use Philox (Salmon et al. 2011), a counter-based generator with random access to its stream.
"""

import dataclasses
import functools
import threading
from typing import Any

import numpy as np
from jaxtyping import Float64, Int, Int32, UInt64

# Where the words of an epoch's order start in Philox's counter, far from those of the examples.
_ORDER = 1 << 192

# Philox-4x64-10's multipliers of words 0 and 2, and what its key grows by every round, here for
# (word 1 of the key, word 0).
_FACTORS = np.array([[0xD2E7470EE14C6C93], [0xCA5A826395121157]], np.uint64)
_GROWTH = np.array([[0xBB67AE8584CAA73B], [0x9E3779B97F4A7C15]], np.uint64)
_ROUNDS = 10
_LOW, _HALF = np.uint64(2**32 - 1), np.uint64(32)

# With lru_cache alone, threads that miss at the same time would all compute the order.
_order_lock = threading.Lock()


@dataclasses.dataclass(frozen=True, eq=False)  # equal by identity: a key of the cache below
class ClassBalance:
    """Classes that are drawn in proportion to (number of their examples)^(1 - power).

    Power 0 is as often as they occur, 0.5 the square-root sampling of arXiv:1805.00932, 1 all
    classes alike.
    """

    labels: Int32[np.ndarray, " M"]  # class id of each example
    power: float


def epoch_order(
    num_examples: int, seed: int, epoch: int, balance: ClassBalance | None = None
) -> Int32[np.ndarray, " num_examples"]:
    """Return the order of one epoch, a permutation that depends on (seed, epoch) alone.

    It sorts raw Philox words, whose values NumPy guarantees (NEP 19), and is uniform.
    Grain's own index shuffle is not: at 50,000 examples, neighbours correlate at 8 to 27 standard
    errors, and epoch e + 1 of seed s is epoch e of seed s + 1. With `balance` it is as long, but
    holds examples of rare classes several times, and those of others not at all.
    """
    with _order_lock:
        return _compute_order(num_examples, seed, epoch, balance)


@functools.lru_cache(maxsize=4)
def _compute_order(
    num_examples: int, seed: int, epoch: int, balance: ClassBalance | None
) -> Int32[np.ndarray, " num_examples"]:
    words = np.random.Philox(key=_key(seed, epoch), counter=_ORDER)
    order = np.argsort(words.random_raw(num_examples), kind="stable").astype(np.int32)
    if balance is None:
        return order
    chosen = _balanced(order, balance)
    return chosen[np.argsort(words.random_raw(num_examples), kind="stable")]


def _balanced(order: Int32[np.ndarray, " M"], balance: ClassBalance) -> Int32[np.ndarray, " M"]:
    """Choose as many examples class by class, those of a class in turn by `order`."""
    counts = np.bincount(balance.labels)
    weights = np.where(counts > 0, np.maximum(counts, 1) ** (1.0 - balance.power), 0.0)
    # The ends are rounded, not the lengths, so that these add up.
    ends = np.rint(np.cumsum(weights) / weights.sum() * len(order)).astype(int)
    wanted = np.diff(ends, prepend=0)
    by_class = order[np.argsort(balance.labels[order], kind="stable")]
    ids = np.repeat(np.arange(len(counts)), wanted)
    turn = np.arange(len(order)) - (ends - wanted)[ids]
    return by_class[(np.cumsum(counts) - counts)[ids] + turn % counts[ids]]


def stream_indices(
    positions: Int[np.ndarray, " n"],
    num_examples: int,
    seed: int | None,
    repeats: int = 1,
    balance: ClassBalance | None = None,
) -> Int32[np.ndarray, " n"]:
    """Return which example is at each position (in ascending order) of the stream.

    With `repeats` each example of an epoch's order comes that often in a row. The length of an
    epoch stays, so that it has only the order's first 1 / repeats (the published RASampler).
    With `seed` None the stream is one pass in the stored order, and -1 beyond its end.
    """
    if seed is None:
        return np.where(positions < num_examples, positions, -1).astype(np.int32)
    epochs, offsets = positions // num_examples, positions % num_examples
    orders = [
        epoch_order(num_examples, seed, epoch, balance)[offsets[epochs == epoch] // repeats]
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1)
    ]
    return np.concatenate(orders)


def _key(seed: int, index: int) -> UInt64[np.ndarray, "2"]:
    return np.array([seed % 2**64, index], np.uint64)


class ExampleRng:
    """Gives `Generator(Philox(key=(seed, index)))` for one index after another.

    The generators of another `view` are independent of those of view 0: their counters start at
    view * 2**128, and no example draws that much.

    Setting the state of one generator takes a tenth of the time that making one takes. The
    generator of an index is valid until the next is requested.
    """

    def __init__(self, seed: int, view: int = 0) -> None:
        self._bits = np.random.Philox(key=_key(seed, 0), counter=view << 128)
        self._state: Any = self._bits.state
        self._generator = np.random.Generator(self._bits)

    def __call__(self, index: int) -> np.random.Generator:
        """Return the generator at the start of an index's stream."""
        self._state["state"]["key"][1] = index
        self._bits.state = self._state
        return self._generator


def uniforms(
    seed: int, positions: Int[np.ndarray, " n"], count: int, view: int = 0
) -> Float64[np.ndarray, "n count"]:
    """Return `ExampleRng(seed, view)(position).random(count)` for all positions at once.

    To the bit, in a quarter of the time: Philox-4x64-10 (Salmon et al. 2011, sec. 4.3), of whose
    words NumPy takes the high 53 bits.
    """
    blocks = -(-count // 4)
    counter = np.tile(np.arange(1, blocks + 1, dtype=np.uint64), len(positions))
    even = np.stack([counter, np.full_like(counter, view)])  # words 0 and 2 of four
    odd = np.zeros_like(even)  # words 1 and 3
    key = np.empty_like(even)
    key[0], key[1] = np.repeat(positions.astype(np.uint64), blocks), np.uint64(seed % 2**64)
    for _ in range(_ROUNDS):
        high, low = _multiply(even)
        even, odd = high[::-1] ^ odd ^ key[::-1], low[::-1]
        key += _GROWTH
    words = np.stack([even[0], odd[0], even[1], odd[1]], axis=1).reshape(len(positions), -1)
    return (words[:, :count] >> np.uint64(11)) * 2.0**-53


def _multiply(
    words: UInt64[np.ndarray, "2 n"],
) -> tuple[UInt64[np.ndarray, "2 n"], UInt64[np.ndarray, "2 n"]]:
    """Return the high and the low 64 bits of the products with Philox's multipliers."""
    low, high = words & _LOW, words >> _HALF
    factor_low, factor_high = _FACTORS & _LOW, _FACTORS >> _HALF
    first = factor_high * low + (factor_low * low >> _HALF)
    second = factor_low * high + (first & _LOW)
    return factor_high * high + (first >> _HALF) + (second >> _HALF), _FACTORS * words
