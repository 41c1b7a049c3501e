# SPDX-License-Identifier: Apache-2.0
"""The predictions: what moves against XLA's collectives, times by hand, the page's table."""

import dataclasses

import jax
import pytest

from benchmarks import compile as matrix
from benchmarks import scale as page
from tests.unit.train.test_step import tiny
from vit_jax.cost import scale
from vit_jax.cost.flops import Work
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.models import DType
from vit_jax.train import build as build_lib

B, DIM, TOKENS, DEPTH = 16, 64, 5, 2


def compiled(mesh_config: MeshConfig, dtype: DType):
    """Compile the real step of a small ViT on 8 devices; returns it, its run and its mesh."""
    cfg = tiny(mesh=mesh_config)
    cfg.model = dataclasses.replace(
        cfg.model,
        dtype=dtype,
        dim=DIM,
        mlp_dim=4 * DIM,
        num_heads=2,
        depth=DEPTH,
        dropout_rate=0.0,
        drop_path_rate=0.0,
        scan_unroll=0,  # the text of a loop has its collectives once
    )
    mesh = sharding.make_mesh(cfg.mesh)
    parts = build_lib.build(cfg, 1000)
    batch = {
        "image": jax.ShapeDtypeStruct((B, 16, 16, 3), "uint8"),
        "label": jax.ShapeDtypeStruct((B,), "int32"),
    }
    with jax.set_mesh(mesh):
        step = build_lib.compile_steps(parts, mesh)[0]
        program = step.lower(build_lib.abstract_state(parts, mesh), {}, batch).compile()
    return program, cfg, parts, mesh


def test_rings_within_a_group_and_across() -> None:
    chip = scale.Chip(kind="TPU v4", memory=1.0, group=8, fast=100.0, slow=10.0, hbm=50.0)
    assert scale.gather_seconds(800.0, 1, 1, chip) == 0
    assert scale.gather_seconds(800.0, 8, 1, chip) == pytest.approx(800 * 7 / 8 / 100)
    # 4 groups: the eighth of the result that each device fetches, then shares.
    near, far = 800 * 7 / 8 / 100, 100 * 3 / 4 / 10
    assert scale.gather_seconds(800.0, 32, 1, chip) == pytest.approx(near + far)
    # 12 devices in groups of 8 make 3 whole groups of 4.
    near, far = 1200 * 3 / 4 / 100, 1200 / 4 * 2 / 3 / 10
    assert scale.gather_seconds(1200.0, 12, 1, chip) == pytest.approx(near + far)
    # An axis outside one that fills the group crosses at every hop.
    assert scale.gather_seconds(800.0, 4, 8, chip) == pytest.approx(800 * 3 / 4 / 10)


def test_what_is_passed_on_goes_one_way_and_waits_for_the_slowest_hop() -> None:
    chip = scale.Chip(kind="TPU v4", memory=1.0, group=8, fast=100.0, slow=10.0, hbm=50.0)
    assert scale.passing_seconds(800.0, 1, chip) == 0
    assert scale.passing_seconds(800.0, 8, chip) == pytest.approx(800 / 50)
    assert scale.passing_seconds(800.0, 16, chip) == pytest.approx(800 / 10)
    sizes, still = {"data": 4, "fsdp": 2, "tensor": 1}, scale.Traffic(0.0, 0.0, 0.0, 0.0, 0.0)
    asked = scale.Effort(Work(10**12), 0)
    step = scale.predict(asked, dataclasses.replace(still, passed=800.0), sizes, chip)
    assert (step.hidden, step.exposed) == (0, pytest.approx(800 / 50))
    assert scale.predict(asked, still, sizes, chip).exposed == 0


def test_a_step_hides_weights_but_not_activations() -> None:
    chip = dataclasses.replace(scale.CHIPS["v4"], group=8, fast=100.0, slow=10.0, hbm=50.0)
    sizes = {"data": 2, "fsdp": 2, "tensor": 2}
    moved = scale.Traffic(gather=200.0, scatter=100.0, reduce=50.0, reduce_copies=8.0, tensor=30.0)
    asked = scale.Effort(Work(int(2750e12)), 0)
    step = scale.predict(asked, moved, sizes, chip)
    least, most = step.compute
    assert (least, most) == pytest.approx([10 * each / scale.SHARES["v4"] for each in scale.SPREAD])
    weights, summed = 300 / 2 / 100, (2 * 50 / 2 + 2 * 8 * 3 / 4) / 100
    assert step.hidden == pytest.approx(weights)
    assert step.exposed == pytest.approx(2 * 30 / 2 / 100 + summed)  # a TPU waits for sums
    assert step.range == pytest.approx((least + step.exposed, most + step.exposed))
    assert dataclasses.replace(step, hidden=99.0).range == (99 + step.exposed, 99 + step.exposed)
    gpu = scale.predict(asked, moved, sizes, dataclasses.replace(chip, hides_reduce=True))
    assert gpu.hidden == pytest.approx(weights + summed)
    assert gpu.exposed == pytest.approx(2 * 30 / 2 / 100)


def test_a_step_is_matmuls_then_bytes_and_no_less_than_launches_and_the_host() -> None:
    chip, peak = scale.CHIPS["H100"], 989.4e12
    large = Work(flops=10**15, nbytes=10**12, calls=10)
    whole = scale.step_seconds(scale.Effort(large, 10**9), chip)
    matmuls, moved = 1e15 / (peak * scale.SHARES["H100"]), (scale.TRAFFIC * 1e12 + 28e9) / 3350e9
    assert whole == pytest.approx(matmuls + moved)
    # TF32 multiplies at half of the rate.
    wide = scale.step_seconds(scale.Effort(large, 10**9, "float32"), chip)
    assert wide == pytest.approx(2 * matmuls + moved, rel=1e-3)
    tiny = scale.Effort(Work(10**6, 10**6, calls=1000), 0)
    assert scale.step_seconds(tiny, chip) == pytest.approx(1000 * 361 / 78 * 5e-6)
    assert scale.step_seconds(tiny._replace(work=Work(10**6, 10**6, 1)), chip) == 0.7e-3
    assert scale.step_seconds(tiny, scale.CHIPS["v4"]) < scale.step_seconds(tiny, chip)
    middle = scale.step_seconds(tiny, chip)
    assert scale.step_range(tiny, chip) == pytest.approx([middle * x for x in scale.SPREAD])


def test_pieces_read_the_weights_and_start_the_kernels_again() -> None:
    image = Work(flops=1000, nbytes=500, calls=4)  # of which 200 are 100 parameters in bfloat16
    once = scale.effort(image, 24e3, images=8.0, weights=100.0, updated=100.0)
    assert once == scale.Effort(Work(24000, 3 * (8 * 300 + 200), 12), 100)
    twice = scale.effort(image, 24e3, images=8.0, weights=100.0, updated=50.0, pieces=2)
    assert twice == scale.Effort(Work(24000, 3 * (8 * 300 + 400), 24), 50)
    again = scale.effort(image, 32e3, images=8.0, weights=100.0, updated=100.0)
    assert again.work == Work(32000, 4 * 2600, 16)  # blocks that are computed again


def test_every_chip_has_a_peak_and_is_found_by_jaxs_name() -> None:
    assert all(scale.peak_flops(chip.kind) for chip in scale.CHIPS.values())
    assert set(scale.SHARES) == set(scale.CHIPS)
    kinds = {"TPU v5 lite": "v5e", "TPU v5": "v5p", "NVIDIA H100 80GB HBM3": "H100"}
    kinds |= {"NVIDIA A100-SXM4-80GB": "A100", "TPU v4": "v4", "TPU v6 lite": "v6e"}
    assert all(scale.chip(kind) is scale.CHIPS[name] for kind, name in kinds.items())
    assert scale.chip("TPU v3") is None
    assert scale.chip("NVIDIA H100 PCIe") is None  # of other links


def test_the_pages_matrix_is_what_was_compiled() -> None:
    written = page.between(page.PAGE.read_text(), page.COMPILED_MARKS)
    assert written == page.compiled_table(matrix.read())


def test_a_row_of_the_matrix_says_what_it_holds_or_why_not() -> None:
    what = {"model": "vit_b16", "hardware": "h100:8", "mesh": [4, 2, 1], "images": 8}
    moved = [
        {"kind": "all-gather", "axes": "fsdp", "hidden": True, "bytes": 3e9, "count": 2},
        {"kind": "all-reduce", "axes": "data", "hidden": False, "bytes": 1e9, "count": 1},
    ]
    done = {"compiled": True, "plan": 2.5e9, "ratio": 0.956, "compile_s": 61.2}
    done |= {"step_ms": [1, 2], "static_ms": 3.4}
    content = {"rows": {"a": {**what, **done, "remat": "full", "collectives": moved}}}
    content["rows"]["b"] = {**what, "remat": "none", "compiled": False, "reason": "no program"}
    first, second = page.compiled_rows(content)
    assert first[:4] == ["vit_b16", "h100:8", "4 x 2", "8, remat"]
    assert first[4:] == ["2.50", "0.96", "61", "4.00", "75%", "1-2", "3"]
    assert second[3:5] == ["8", "does not compile: no program"]
