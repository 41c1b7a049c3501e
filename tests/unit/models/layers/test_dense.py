# SPDX-License-Identifier: Apache-2.0
"""Products of bfloat16 in float32: the same numbers, rounded once, where inference asks for it."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.unit.inference.exported import images, trained
from tests.unit.models.tiny import TINY
from vit_jax import models
from vit_jax.devices import hardware
from vit_jax.inference.forward import make_apply, make_predict
from vit_jax.models import DType
from vit_jax.models.layers import dense

X = jax.random.normal(jax.random.key(0), (3, 64)).astype(jnp.bfloat16)
KERNEL = jax.random.normal(jax.random.key(1), (64, 5))


@pytest.fixture(autouse=True)
def amd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_cpu_info", lambda: frozenset(("AuthenticAMD", "avx512_bf16")))


def narrow(program: object) -> list[str]:
    """Return the results in bfloat16 of products."""
    return re.findall(r"bf16\[[^\]]*\] = dot_general", str(program))


def test_products_are_float32_inside_alone_and_round_to_the_same() -> None:
    with dense.for_this_machine():
        found, program = (
            dense.matmul(X, KERNEL),
            jax.make_jaxpr(lambda *given: dense.matmul(*given))(X, KERNEL),
        )
    assert not narrow(program)
    assert narrow(jax.make_jaxpr(lambda *given: dense.matmul(*given))(X, KERNEL))
    assert found.dtype == jnp.bfloat16
    exact = np.asarray(X, np.float64) @ np.asarray(KERNEL.astype(jnp.bfloat16), np.float64)
    np.testing.assert_allclose(np.asarray(found, np.float64), exact, rtol=2**-8, atol=1e-6)


def test_a_cast_by_integers_has_the_bits_of_a_cast() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 1 << 16, dtype=np.uint32)
    ties = (bits & 0xFFFF0000) | 0x8000
    special = np.array([0, 1 << 31, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 1, 0x00400000], np.uint32)
    values = np.concatenate([bits, ties, special]).view(np.float32)
    values = values[~np.isnan(values)]
    quiet = np.array([0x7FC00000, 0xFFC00000], np.uint32).view(np.float32)  # as sums have it
    with dense.for_this_machine():
        found = dense.narrow(jnp.asarray(values), jnp.bfloat16)
        none = dense.narrow(jnp.asarray(quiet), jnp.bfloat16)
        program = str(jax.make_jaxpr(lambda x: dense.narrow(x, jnp.bfloat16))(jnp.asarray(values)))
    assert "shift_right_logical" in program
    assert found.dtype == jnp.bfloat16
    expected = values.astype(jnp.bfloat16)
    np.testing.assert_array_equal(np.asarray(found).view(np.uint16), expected.view(np.uint16))
    assert np.isnan(np.asarray(none, np.float32)).all()


def test_a_pass_of_this_machine_has_gradients() -> None:
    def gradient(x: jax.Array) -> jax.Array:
        return jax.grad(lambda x: dense.matmul(x, KERNEL).astype(jnp.float32).sum())(x)

    expected = np.asarray(gradient(X), np.float32)
    with dense.for_this_machine():
        found = np.asarray(gradient(X), np.float32)
    assert np.abs(expected).min() > 0
    np.testing.assert_allclose(found, expected, rtol=2**-7)


def test_float32_is_left_alone() -> None:
    wide = X.astype(jnp.float32)
    with dense.for_this_machine():
        program = jax.make_jaxpr(lambda *given: dense.matmul(*given))(wide, KERNEL)
    assert str(program) == str(jax.make_jaxpr(lambda *given: dense.matmul(*given))(wide, KERNEL))


def test_other_cpus_keep_narrow_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_cpu_info", lambda: frozenset(("GenuineIntel", "avx512_bf16")))
    with dense.for_this_machine():
        assert narrow(jax.make_jaxpr(lambda *given: dense.matmul(*given))(X, KERNEL))


def test_inference_here_asks_for_it_and_exports_and_training_do_not() -> None:
    model = trained(dataclasses.replace(TINY["vit"], dtype=DType.BFLOAT16))
    pixels = images(model)
    predict = make_predict(model)
    assert not narrow(jax.make_jaxpr(predict)(model.variables, {"image": pixels}))
    assert narrow(jax.make_jaxpr(make_apply(model))(model.variables, pixels))
    module = models.create(model.model)
    step = jax.make_jaxpr(module.apply)(model.variables, jnp.asarray(pixels, jnp.float32))
    assert narrow(step)
