# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 (the compilers' lines are as long as they are)
"""Compiled programs' text: shapes, schedules, trip counts."""

import jax
import jax.numpy as jnp
import pytest

from vit_jax.aot import hlo

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
