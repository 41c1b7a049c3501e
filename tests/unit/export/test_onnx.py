# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime gives the model's logits, for every family."""

import functools
import sys

import jax
import jax.numpy as jnp
import pytest

from vit_jax.errors import UserError
from vit_jax.export import onnx as export_onnx


def test_a_missing_converter_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    with pytest.raises(UserError, match=r"needs jax2onnx; install it: .*jax2onnx==0.17.1"):
        export_onnx.require()


def test_a_scan_is_laid_out_from_its_first_layer_or_not_at_all() -> None:
    def stack(x: jax.Array, *, reverse: bool) -> jax.Array:
        return jax.lax.scan(lambda x, w: (x * w + w, None), x, jnp.arange(3.0), reverse=reverse)[0]

    def laid_out(*, reverse: bool) -> list[jax.Array]:
        traced = jax.make_jaxpr(functools.partial(stack, reverse=reverse))(1.0)
        return export_onnx._evaluate(traced.jaxpr, traced.consts, [jnp.float32(1)])

    assert laid_out(reverse=False) == [stack(jnp.float32(1), reverse=False)]
    with pytest.raises(NotImplementedError, match="from the last layer"):
        laid_out(reverse=True)
