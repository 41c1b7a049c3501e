# SPDX-License-Identifier: Apache-2.0
"""XLA's attention: softmax(q k^T + bias) v and its gradients, in the form for TPUs too."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.devices import hardware
from vit_jax.models.layers import attention

CPU, TPU = hardware.Target("cpu"), hardware.Target("tpu", "TPU v5 lite")


def exact(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array | None) -> jax.Array:
    logits = q @ k.swapaxes(-1, -2)
    return jax.nn.softmax(logits if bias is None else logits + bias, axis=-1) @ v


def value_and_gradients(attend: Callable[..., jax.Array], args: Any) -> list[np.ndarray]:
    cotangent = jax.random.normal(jax.random.key(9), args[2].shape)[:, :, : args[0].shape[2]]

    def both(args: Any) -> Any:
        out, pull = jax.vjp(lambda args: attend(*args), args)
        return out, pull(cotangent.astype(out.dtype))

    return [np.asarray(x, np.float64) for x in jax.tree.leaves(jax.jit(both)(args))]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype, error", [(jnp.float32, 1e-5), (jnp.bfloat16, 0.02)])
def test_it_is_exact_to_rounding_on_every_target(dtype: Any, error: float, biased: bool) -> None:
    # Logits up to about 40 in size, which bfloat16 would round by 0.1.
    shapes = {"q": (2, 3, 65, 16), "k": (2, 3, 70, 16), "v": (2, 3, 70, 16)}
    keys = jax.random.split(jax.random.key(0), 4)
    args: list[Any] = [
        jax.random.normal(key, shape).astype(dtype) * (3 if name != "v" else 1)
        for (name, shape), key in zip(shapes.items(), keys, strict=False)
    ]
    args.append(jax.random.normal(keys[3], (1, 3, 65, 70)) if biased else None)
    wide = [None if x is None else x.astype(jnp.float32) for x in args]
    with jax.default_matmul_precision("highest"):
        wanted = value_and_gradients(exact, wide)
    for target in CPU, TPU:
        with hardware.tracing_for(target):
            found = value_and_gradients(attention.xla_attend, args)
        assert len(found) == len(wanted) == 4 + biased
        for got, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(got, want, atol=error * np.abs(want).max(), rtol=0)


def test_a_tpus_form_keeps_no_array_of_all_pairs_of_tokens() -> None:
    q = jax.ShapeDtypeStruct((2, 3, 33, 8), jnp.bfloat16)

    def kept(target: hardware.Target) -> set[tuple[int, ...]]:
        with hardware.tracing_for(target):
            _, pull = jax.eval_shape(
                lambda q: jax.vjp(lambda q: attention.xla_attend(q, q, q, None), q), q
            )
        return {x.shape for x in jax.tree.leaves(pull)}

    assert (2, 3, 33, 33) in kept(CPU)
    assert (2, 3, 33, 33) not in kept(TPU)
