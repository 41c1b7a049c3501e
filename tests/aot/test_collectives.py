# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 (the compilers' lines are as long as they are)
"""Collectives of compiled programs: kind, axes, bytes, and what hides them."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax.cost import collectives, hlo
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig

SIZES = {"data": 2, "fsdp": 4, "tensor": 2}


@pytest.mark.parametrize(
    "text, first, axes",
    [
        ("replica_groups={{0,1},{2,3},{4,5},{6,7},{8,9}}", (0, 1), "tensor"),
        ("replica_groups=[8,2]<=[16]", (0, 1), "tensor"),
        ("replica_groups=[4,4]<=[8,2]T(1,0)", (0, 2, 4, 6), "fsdp"),
        ("replica_groups=[8,2]<=[2,4,2]T(2,1,0)", (0, 8), "data"),
        ("replica_groups=mesh['a'=8,'b'=2] {'b'}, x=1", (0, 1), "tensor"),
        (
            "replica_groups=mesh['a'=1,'b'=4,'c'=4], device_ids=([2,4,2]T(1,0,2)) {'b'}",
            (0, 2, 4, 6),
            "fsdp",
        ),
        ("replica_groups=mesh['a'=8,'b'=2] {'a'}", (0, 2, 4, 6, 8, 10, 12, 14), "data+fsdp"),
        ("replica_groups=mesh['a'=8,'b'=2] {'a':(1)2}", (0, 8), "data"),
        ("replica_groups=mesh['a'=8,'b'=2] {'a':(2)4}", (0, 2, 4, 6), "fsdp"),
        ("source_target_pairs={{0,2},{2,0}}", (0, 2), "2 of fsdp"),
        ("replica_groups={}", tuple(range(16)), "data+fsdp+tensor"),
        ("channel_id=1", None, ""),
    ],
)
def test_groups_are_read_in_every_form(text: str, first: tuple[int, ...], axes: str) -> None:
    groups = collectives.replica_groups(text, 16)
    assert (groups[0] if groups else None) == first
    assert collectives.axes_of(groups, SIZES) == axes


# A TPU's asynchronous gather, a fusion that runs beside it, and what awaits it.
ASYNC = """HloModule jit_step
%fused.1 (a: bf16[64,256]) -> (bf16[64,256], bf16[256,256]) {
  %a = bf16[64,256]{1,0} parameter(0)
  %gather.1 = bf16[256,256]{1,0} all-gather(%a), channel_id=7, replica_groups=[4,4]<=[8,2]T(1,0)
  ROOT %start = (bf16[64,256], bf16[256,256]) custom-call(%gather.1), custom_call_target="AsyncCollectiveStart"
}
%async_collective_fusion.2 (b: bf16[64,256]) -> bf16[64,256] {
  %b = bf16[64,256]{1,0} parameter(0)
  %gather.2 = bf16[256,256]{1,0} all-gather(%b), channel_id=7, replica_groups=[4,4]<=[8,2]T(1,0)
  ROOT %work = bf16[64,256] add(%b, %b)
}
%fused.3 (c: bf16[64,256]) -> bf16[256,256] {
  %c = bf16[64,256]{1,0} parameter(0)
  %gather.3 = bf16[256,256]{1,0} all-gather(%c), channel_id=7, replica_groups=[4,4]<=[8,2]T(1,0)
  ROOT %done = bf16[256,256] custom-call(%gather.3), custom_call_target="AsyncCollectiveDone"
}
%all-reduce-scatter.4 (d: f32[256,8]) -> f32[64,8] {
  %d = f32[256,8]{1,0} parameter(0)
  %sum = f32[256,8]{1,0} all-reduce(%d), channel_id=9, replica_groups=[4,4]<=[8,2]T(1,0)
  ROOT %part = f32[64,8]{1,0} dynamic-slice(%sum), dynamic_slice_sizes={64,8}
}
ENTRY %main (p: bf16[64,256]) -> bf16[256,256] {
  %p = bf16[64,256]{1,0} parameter(0)
  %async-start = (bf16[64,256], bf16[256,256]) fusion(%p), kind=kCustom, calls=%fused.1
  %beside = bf16[64,256] fusion(%p), kind=kOutput, calls=%async_collective_fusion.2
  %scatter = f32[64,8] fusion(%p), kind=kCustom, calls=%all-reduce-scatter.4
  ROOT %async-done = bf16[256,256] fusion(%async-start), kind=kCustom, calls=%fused.3
}
"""


def test_a_tpus_asynchronous_gather_counts_once() -> None:
    gather, scatter = collectives.find(hlo.parse(ASYNC), SIZES)
    assert (gather.kind, gather.axes, gather.num_bytes) == ("all-gather", "fsdp", 256 * 256 * 2)
    assert gather.hidden
    # An all-reduce of which a device keeps its part, in one fusion.
    assert (scatter.kind, scatter.axes, scatter.num_bytes) == ("reduce-scatter", "fsdp", 8192)
    assert not scatter.hidden


def test_a_gather_that_nothing_runs_beside_is_not_hidden() -> None:
    alone = [
        line for line in ASYNC.splitlines() if "%beside" not in line and "%scatter" not in line
    ]
    (gather,) = collectives.find(hlo.parse("\n".join(alone)), SIZES)
    assert not gather.hidden


# A GPU's, of several arrays at once; then work, then what awaits it.
GPU = """HloModule jit_step
ENTRY %main (p: f32[4,8], q: bf16[4]) -> f32[32,8] {
  %p = f32[4,8]{1,0} parameter(0)
  %q = bf16[4]{0} parameter(1)
  %start = ((f32[4,8]{1,0}, bf16[4]{0}), (f32[32,8]{1,0}, bf16[32]{0})) all-gather-start(%p, %q), channel_id=1, replica_groups=mesh['a'=8,'b'=1] {'a'}, backend_config={"collective_backend_config":{"is_sync":false}}
  %work = f32[4,8]{1,0} fusion(%p), kind=kLoop, calls=%none
  %done = (f32[32,8]{1,0}, bf16[32]{0}) all-gather-done(%start)
  %sum = ((f32[32,8]{1,0}), f32[4,8]{1,0}) reduce-scatter-start(%x), channel_id=2, replica_groups=[1,8]<=[8], backend_config={"collective_backend_config":{"is_sync":true}}
  %more = f32[4,8]{1,0} fusion(%p), kind=kLoop, calls=%none
  ROOT %end = f32[4,8]{1,0} reduce-scatter-done(%sum)
}
"""


def test_a_gpus_starts_count_their_results() -> None:
    gather, scatter = collectives.find(hlo.parse(GPU), {"data": 1, "fsdp": 8, "tensor": 1})
    assert (gather.axes, gather.num_bytes, gather.hidden) == ("fsdp", 32 * 8 * 4 + 32 * 2, True)
    assert (scatter.kind, scatter.num_bytes, scatter.hidden) == ("reduce-scatter", 1024, False)


@pytest.mark.parametrize(
    "result, operands, num_bytes",
    [
        ("f32[4,8]{1,0}", "%p", 128),  # JAX 0.10 and 0.11
        ("(f32[4,8]{1,0}, bf16[4]{0})", "%p, %q", 136),
        ("((f32[4,8]{1,0}), f32[4,8]{1,0})", "%p", 128),  # 0.12
        ("((f32[4,8]{1,0}, bf16[4]{0}), (f32[4,8]{1,0}, bf16[4]{0}))", "%p, %q", 136),
    ],
)
def test_an_all_reduces_start_counts_what_it_sums_once(
    result: str, operands: str, num_bytes: int
) -> None:
    text = f"HloModule m\nENTRY %main (p: f32[4,8]) -> f32[4,8] {{\n  %s = {result} all-reduce-start({operands}), replica_groups=[1,8]<=[8]\n}}\n"
    (found,) = collectives.find(hlo.parse(text), {"data": 8, "fsdp": 1, "tensor": 1})
    assert (found.kind, found.axes, found.num_bytes) == ("all-reduce", "data", num_bytes)


def test_a_gpus_start_without_work_behind_it_is_not_hidden() -> None:
    idle = "\n".join(line for line in GPU.splitlines() if "%work" not in line)
    gather, _ = collectives.find(hlo.parse(idle), {"data": 1, "fsdp": 8, "tensor": 1})
    assert not gather.hidden


def test_what_crosses_slices_is_named_so() -> None:
    send = (
        "(f32[16]{0}, u32[], token[]) send(%p, %t), channel_id=1, is_host_transfer=true, "
        'frontend_attributes={_xla_host_transfer_rendezvous="sum_0",'
        '_xla_megascale_transfer_type="ALL_REDUCE"}'
    )
    text = f"""HloModule m
ENTRY %main (p: f32[16]) -> f32[16] {{
  %p = f32[16]{{0}} parameter(0)
  %send = {send}
  %recv = {send.replace("send(", "recv(")}
  %work = f32[16]{{0}} fusion(%p), kind=kLoop, calls=%none
  ROOT %recv-done = f32[16]{{0}} recv-done(%recv), channel_id=2
}}
"""
    (found,) = collectives.find(hlo.parse(text), SIZES)
    assert (found.kind, found.axes, found.num_bytes, found.hidden) == (
        "all-reduce",
        collectives.SLICES,
        64,
        True,
    )


def test_those_of_a_real_program_are_found_in_its_loop() -> None:
    mesh = sharding.make_mesh(MeshConfig(data=1, fsdp=4, tensor=2))
    cut = NamedSharding(mesh, PartitionSpec(None, "fsdp"))
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=cut)
    w = jax.ShapeDtypeStruct(
        (5, 64, 64), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec())
    )

    def step(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, k: (jnp.sin(c @ k), None), x, w)[0]

    with jax.set_mesh(mesh):
        text = jax.jit(step, out_shardings=cut).lower(x, w).compile().as_text()
    found = collectives.find(hlo.parse(text), dict(mesh.shape))
    assert found
    assert {x.axes for x in found} == {"fsdp"}
    assert {x.times for x in found if x.loops} == {5}
