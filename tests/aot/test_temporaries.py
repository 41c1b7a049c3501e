# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 (the compilers' lines are as long as they are)
"""The largest arrays of a compiled program and the layers that they come from."""

import pytest

from vit_jax.aot import hlo, temporaries

TEXT = """HloModule jit_step
ENTRY %main (p: f32[512,1024]) -> f32[512,1024] {
  %p = f32[512,1024]{1,0:T(8,128)} parameter(0)
  %a = bf16[4,512,1000]{2,1,0:T(8,128)(2,1)} fusion(%p), kind=kLoop, calls=%x, metadata={op_name="jit(train_step)/jvp(ViT)/ViT._blocks/while/body/closed_call/blocks/blocks._add_mlp/mlp/fc1/dot_general"}, backend_config={"estimated_cycles":"1500"}
  %b = bf16[4,512,1000]{2,1,0:T(8,128)(2,1)S(1)} fusion(%a), kind=kLoop, calls=%x
  %c = f32[16]{0:T(256)} fusion(%a), kind=kLoop, calls=%x
  %out = f32[512,1024]{1,0:T(8,128)} fusion(%b), kind=kLoop, calls=%x, backend_config={"estimated_cycles":"500"}
  ROOT %t = (f32[512,1024]{1,0:T(8,128)}) tuple(%out)
}
"""


def test_the_largest_are_listed_with_their_padding_and_layer() -> None:
    (found,) = temporaries.largest(hlo.parse(TEXT))
    assert str(found.array) == "bf16[4,512,1000]"
    assert found.num_bytes == 4 * 512 * 1024 * 2
    assert found.layer == "forward add_mlp/mlp/fc1/dot_general"


def test_cycles_are_summed_where_the_compiler_writes_them() -> None:
    assert temporaries.estimated_cycles(hlo.parse(TEXT)) == 2000
    without = hlo.parse(TEXT.replace("estimated_cycles", "other"))
    assert temporaries.estimated_cycles(without) is None


@pytest.mark.parametrize(
    "layout, padded",
    [
        ("{1,0:T(8,128)}", 16 * 128 * 4),  # rows to 8, columns to 128
        ("{0,1:T(8,128)}", 128 * 8 * 4),  # the first dimension is the minor one
        ("{1,0}", 10 * 7 * 4),
    ],
)
def test_tiles_pad_the_minor_dimensions(layout: str, padded: int) -> None:
    assert temporaries.padded_bytes(hlo.Array("f32", (10, 7), layout)) == padded


@pytest.mark.parametrize(
    "op_name, layer",
    [
        ("jit(train_step)/transpose(jvp(ViT))/head/dot_general", "backward head/dot_general"),
        ("jit(train_step)/jit(_one_hot)/eq", "eq"),
        ("state.params[\\'head\\']", "state.params['head']"),
        ("", ""),
    ],
)
def test_layers_are_named_shortly(op_name: str, layer: str) -> None:
    assert temporaries.layer(op_name) == layer
