# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 (the compilers' lines are as long as they are)
"""Compiled programs' text: shapes, schedules, trip counts, the largest arrays and their layers."""

import jax
import jax.numpy as jnp
import pytest

from vit_jax.cost import hlo

# As libtpu writes a loop: no trip count, but a condition that compares with a constant.
TEXT = """HloModule jit_step, is_scheduled=true

%fused (a: f32[8]) -> f32[8] {
  %a = f32[8]{0:T(256)} parameter(0)
  ROOT %double = f32[8]{0:T(256)} add(%a, %a)
}

%body (state: (s32[], f32[8])) -> (s32[], f32[8]) {
  %state = (s32[]{:T(128)}, /*index=1*/f32[8]{0:T(256)S(1)}) parameter(0)
  %x = f32[8]{0:T(256)S(1)} get-tuple-element(%state), index=1
  %i = s32[]{:T(128)} get-tuple-element(%state), index=0
  %inner = f32[8]{0:T(256)} while(%x), condition=%limit, body=%again
  ROOT %out = (s32[]{:T(128)}, f32[8]{0:T(256)}) tuple(%i, %inner)
}

%again (y: f32[8]) -> f32[8] {
  %y = f32[8]{0} parameter(0)
  ROOT %fusion.1 = f32[8]{0} fusion(%y), kind=kLoop, calls=%fused, metadata={op_name="jit(step)/jvp(ViT)/head/dot \\"x\\"" stack_frame_id=1}, backend_config={"window_config":{"estimated_cycles":"10"}}
}

%limit (z: f32[8]) -> pred[] {
  %z = f32[8]{0} parameter(0)
  %three = s32[]{:T(128)} constant(3)
  %i.1 = s32[] get-tuple-element(%z), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i.1, %three), direction=LT
}

%never (z: f32[8]) -> pred[] {
  %z = f32[8]{0} parameter(0)
  ROOT %so = pred[] custom-call(%z), custom_call_target="Ask"
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0:T(256)} parameter(0), metadata={op_name="state.params[\\'head\\']"}
  %start = (s32[], f32[8]{0}) tuple(%p)
  %loop = (s32[], f32[8]{0}) while(%start), condition=%never, body=%body, backend_config={"known_trip_count":{"n":"12"}}
  ROOT %result = f32[8]{0} get-tuple-element(%loop), index=1
}
"""


def test_a_line_is_read_with_its_type_operands_and_attributes() -> None:
    program = hlo.parse(TEXT)
    assert program.entry == "main"
    fusion = program.computations["again"][1]
    assert (fusion.name, fusion.opcode, fusion.operands) == ("fusion.1", "fusion", ("y",))
    assert fusion.called == {"calls": "fused"}
    assert fusion.op_name == r"jit(step)/jvp(ViT)/head/dot \"x\""
    state = program.computations["body"][0]
    assert [(str(x), x.on_chip, x.num_bytes) for x in state.arrays] == [
        ("s32[]", False, 4),
        ("f32[8]", True, 32),
    ]
    assert program.computations["limit"][1].rest.startswith("(3)")


def test_schedules_multiply_the_trips_of_nested_loops() -> None:
    visits = list(hlo.schedules(hlo.parse(TEXT)))
    assert visits == [
        hlo.Visit("main", 1, 0),
        hlo.Visit("body", 12, 1),
        hlo.Visit("again", 36, 2),
    ]


def test_a_loop_without_a_known_end_counts_once() -> None:
    program = hlo.parse(TEXT.replace('"known_trip_count":{"n":"12"}', ""))
    assert [x.times for x in hlo.schedules(program)] == [1, 1, 3]


@pytest.mark.parametrize(
    "text, num_bytes",
    [("bf16[2,3]{1,0}", 12), ("pred[]", 1), ("u8[4,0]", 0), ("f8e4m3fn[8]", 8), ("token[]", 0)],
)
def test_bytes_of_an_array(text: str, num_bytes: int) -> None:
    assert [x.num_bytes for x in hlo.arrays(text)] == [num_bytes]


def test_the_loop_of_a_real_program_is_walked() -> None:
    def step(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, _: (jnp.sin(c @ c), None), x, length=7)[0]

    program = hlo.parse(jax.jit(step).lower(jnp.ones((64, 64))).compile().as_text())
    assert sorted({x.times for x in hlo.schedules(program)}) == [1, 7]


ARRAYS = """HloModule jit_step
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
    (found,) = hlo.largest(hlo.parse(ARRAYS))
    assert str(found.array) == "bf16[4,512,1000]"
    assert found.num_bytes == 4 * 512 * 1024 * 2
    assert found.layer == "forward add_mlp/mlp/fc1/dot_general"


def test_cycles_are_summed_where_the_compiler_writes_them() -> None:
    assert hlo.estimated_cycles(hlo.parse(ARRAYS)) == 2000
    without = hlo.parse(ARRAYS.replace("estimated_cycles", "other"))
    assert hlo.estimated_cycles(without) is None


@pytest.mark.parametrize(
    "layout, padded",
    [
        ("{1,0:T(8,128)}", 16 * 128 * 4),  # rows to 8, columns to 128
        ("{0,1:T(8,128)}", 128 * 8 * 4),  # the first dimension is the minor one
        ("{1,0}", 10 * 7 * 4),
    ],
)
def test_tiles_pad_the_minor_dimensions(layout: str, padded: int) -> None:
    assert hlo.padded_bytes(hlo.Array("f32", (10, 7), layout)) == padded


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
    assert hlo.layer(op_name) == layer
