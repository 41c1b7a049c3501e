# SPDX-License-Identifier: Apache-2.0
"""What the parts of `benchmarks.first_gpu` run compiles for an H100 and for a TPU v5e.

Sizes are those of the parts, but for the number of blocks: a block is compiled once, or a few
times, where its network has many of the same shapes.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from benchmarks import first_gpu, step_ours, train_step
from tests.aot.programs import need
from vit_jax import models
from vit_jax.cli.compile_for import compile_for
from vit_jax.cli.parsing import flags
from vit_jax.cost import memory, topology
from vit_jax.devices import sharding
from vit_jax.models.layers.attention import AttentionImpl
from vit_jax.train import build as build_lib

GPU, TPU = "h100:1", "v5e:1x1"
# A compiler each, the quicker one: XLA for GPUs takes a minute for a hybrid's convolutions.
BOTH, ON_TPU = ("vit_ti16",), ("bit_r50x1", "r26_vit_s32", "swin_t")
PARITY = [(family, GPU) for family in first_gpu.FAMILIES if family not in ON_TPU]
PARITY += [(family, TPU) for family in (*BOTH, *ON_TPU)]
# How many blocks a stage keeps of networks whose blocks are no loop.
FEW = {"depths": 2, "backbone_depths": 1}
REGNET_BLOCKS = 4


def few_blocks(cfg: models.ModelConfig) -> models.ModelConfig:
    """Return a network of the same widths whose blocks are a loop, or few."""
    fields = {
        name: tuple(min(depth, count) for depth in getattr(cfg, name))
        for name, count in FEW.items()
        if hasattr(cfg, name)
    }
    if isinstance(cfg, models.RegNetConfig):
        fields["depth"] = REGNET_BLOCKS
    return models.looped(dataclasses.replace(cfg, **fields))


def compiled(top: topology.Topology, work: Any, *shapes: Any) -> Any:
    """Compile a function of arrays of the first device, and check that its plan fits there."""
    where = SingleDeviceSharding(top.devices[0])
    args = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), shapes)
    with top.tracing():
        lowered = jax.jit(work).lower(*args)
    program = lowered.compile(compiler_options=top.compiler_options)
    assert 0 < memory.planned(program) < top.memory
    return program


@pytest.mark.slow
@pytest.mark.parametrize("family, chip", PARITY)
def test_parity(family: str, chip: str) -> None:
    need(chip)
    top = topology.describe(chip)
    cfg = few_blocks(models.variant(family, num_classes=first_gpu.CLASSES))
    module = models.create(cfg)
    state = models.abstract(cfg)
    params = state.pop("params")
    image = jax.ShapeDtypeStruct((first_gpu.IMAGES, *models.input_shape(cfg)), jnp.float32)
    works = first_gpu.parity_works(module)
    assert set(works) == {"forward", "gradient", "step"}
    platform = {"gpu": "cuda"}.get(top.target.platform, top.target.platform)
    with jax.default_matmul_precision(first_gpu.PRECISION):
        # The step takes the gradient and the forward pass of what it makes.
        program = compiled(top, works["step"], params, state, image)
        with top.tracing():
            forward = jax.jit(works["forward"])
            exported = jax.export.export(forward, platforms=[platform])(params, state, image)
    assert "tf32" not in program.as_text().lower()
    assert exported.out_avals[0].shape == (first_gpu.IMAGES, first_gpu.CLASSES)


@pytest.mark.parametrize("chip", [GPU, TPU])
def test_attention(chip: str) -> None:
    need(chip)
    top = topology.describe(chip)
    texts: dict[AttentionImpl, str] = {}
    with top.tracing():
        kernels = first_gpu.kernels()
    for shape in (first_gpu.SHAPES[-1], first_gpu.LONG):  # of an odd number of tokens, and even
        x = jax.ShapeDtypeStruct(shape, first_gpu.DTYPE)
        for impl in kernels[1:]:  # `auto`, the first, is one of them
            program = compiled(top, first_gpu.attention_gradient(impl), x, x, x)
            texts[impl] = program.as_text()
    own = AttentionImpl.CUDNN if chip == GPU else AttentionImpl.PALLAS
    assert set(kernels) == {AttentionImpl.AUTO, AttentionImpl.XLA, own}
    call = {AttentionImpl.CUDNN: "__cudnn$fmha", AttentionImpl.PALLAS: "tpu_custom_call"}[own]
    assert call in texts[own]
    assert call not in texts[AttentionImpl.XLA]


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant, chip", [*((name, GPU) for name, _ in first_gpu.STEPS), ("vit_s16", TPU)]
)
def test_mfu(variant: str, chip: str) -> None:
    need(chip)
    top = topology.describe(chip)
    images = dict(first_gpu.steps_of(top.target.kind))[variant]
    model = models.looped(train_step.model_config(variant, first_gpu.DTYPE))
    cfg = step_ours.config(model, images)
    mesh = sharding.make_mesh(cfg.mesh, top.devices)
    batch = {
        name: jax.ShapeDtypeStruct(x.shape, x.dtype)
        for name, x in step_ours.random_batch(model, images).items()
    }
    with top.tracing():
        lowered = build_lib.lower_step(build_lib.build(cfg, images), mesh, batch)
    program = topology.compile_lowered(lowered, top.compiler_options).program
    assert ("__cudnn$fmha" in program.as_text()) == (chip == GPU)
    assert 0 < memory.planned(program) < top.memory


@pytest.mark.parametrize("chip, cut", [(GPU, 1), (TPU, 4)])
def test_batches_are_of_the_chips_memory(chip: str, cut: int) -> None:
    need(chip)
    found = first_gpu.steps_of(topology.describe(chip).target.kind)
    assert found == [(name, batch // cut) for name, batch in first_gpu.STEPS]


@pytest.mark.slow
@pytest.mark.parametrize("part, chip", [("resume", TPU), ("resume", GPU), ("cifar10", GPU)])
def test_runs(part: str, chip: str) -> None:
    need(chip)
    words = {"resume": first_gpu.resume_flags(first_gpu.RESUMED), "cifar10": first_gpu.CIFAR10}
    cfg = flags.read_config(["main.py", *words[part]])
    cfg.model = models.looped(cfg.model)
    report, unfit = compile_for(cfg, chip)
    assert f"COMPILED for {chip}" in report
    assert f"step: batch {cfg.data.batch_size:,}" in report
    assert "evaluation: batch" in report
    assert unfit is None
