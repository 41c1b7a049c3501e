# SPDX-License-Identifier: Apache-2.0
"""Training steps of small models, compiled for hardware that is not here."""

import dataclasses
import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.cost import hlo, topology
from vit_jax.data import DataConfig
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.models import DType
from vit_jax.objectives import ObjectiveConfig
from vit_jax.train import build as build_lib
from vit_jax.train.state import TrainState

# Two blocks, of which each has weights of over 1 MB on a device of a mesh of 4 x 4.
DIM, MLP = 512, 2048
_VIT: dict[str, Any] = {"dim": DIM, "num_heads": 8, "mlp_dim": MLP, "depth": 2, "scan_unroll": 1}
_SMALL: dict[str, Any] = {"image_size": (64, 64)}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("vit_b16", _VIT),  # 197 tokens: an odd number
    "swin": (
        "swin_t",
        {"dim": 64, "depths": (1, 1), "num_heads": (2, 4), "image_size": (112, 112)},
    ),
    "convit": ("convit_ti", {"depth": 2, "local_up_to_layer": 1, "scan_unroll": 1, **_SMALL}),
    "cait": ("cait_xxs24", {"depth": 2, "token_depth": 1, "scan_unroll": 1, **_SMALL}),
    "regnet": ("regnety_200mf", {"depth": 1, **_SMALL}),
}


@dataclasses.dataclass(frozen=True)
class Seen:
    """A compiled step, and what its text says."""

    mesh: jax.sharding.Mesh
    state: TrainState
    compiled: topology.Compiled
    text: str
    program: hlo.HloModule
    collectives: list[hlo.Collective]


def need(hardware: str) -> None:
    """Skip the test where the hardware's compiler is not installed."""
    gpu = hardware.startswith(("h100", "a100"))
    module, extra = ("jax_cuda13_plugin", "aot-gpu") if gpu else ("libtpu", "aot-tpu")
    if importlib.util.find_spec(module) is None:
        pytest.skip(f'{hardware} needs its compiler: pip install -e ".[{extra}]"')


def compile_gradient(
    cfg: models.ModelConfig, hardware: str, mesh_config: MeshConfig, batch_size: int
) -> str:
    """Compile the gradient of a model's logits alone, in a fraction of a step's time.

    Returns:
        The text of each device's program.
    """
    need(hardware)
    top = topology.describe(hardware)
    mesh = sharding.make_mesh(mesh_config, top.devices)
    with top.tracing(), jax.set_mesh(mesh):
        params, module = models.abstract(cfg)["params"], models.create(cfg)
        params = build_lib.placed(params, mesh)
        split = NamedSharding(mesh, PartitionSpec(sharding.BATCH_AXES))
        shape = (batch_size, *models.input_shape(cfg))
        image = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=split)
        outputs: Any = module.apply
        step = jax.jit(jax.grad(lambda p, x: outputs({"params": p}, x).logits.sum()))
        return step.lower(params, image).compile().as_text() or ""


def compile_step(
    model: str,
    hardware: str,
    shape: tuple[int, int, int],
    images: int = 4,
    objective: ObjectiveConfig | None = None,
) -> Seen:
    """Compile a model's training step in bfloat16 over a mesh of (data, fsdp, tensor).

    Args:
        model: of `MODELS`.
        hardware: as `--compile_for` takes it.
        shape: of the mesh.
        images: for each part of the batch.
        objective: of a run without labels; by default it learns classes.
    """
    need(hardware)
    name, fields = MODELS[model]
    top = topology.describe(hardware)
    sizes = dict(zip(sharding.AXES, shape, strict=True))
    cfg = Config(
        model=models.variant(name, dtype=DType.BFLOAT16, **fields),
        data=DataConfig(batch_size=images * shape[0] * shape[1]),
        mesh=MeshConfig(**sizes),
        duration="10 steps",
    )
    if objective is not None:
        fields = {"num_classes": 0, "dynamic_image_size": True, "image_size": (96, 96)}
        cfg.model, cfg.objective = models.with_fields(cfg.model, fields), objective
        cfg.ema_decay = 0.99 if objective.needs_average else 0.0
    mesh = sharding.make_mesh(cfg.mesh, top.devices)
    with top.tracing():
        parts = build_lib.build(cfg, 10 * cfg.data.batch_size)
        shapes = {name: (view.shape, "uint8") for name, view in parts.objective.views.items()}
        shapes |= dict.fromkeys(parts.objective.fields, ((), "int32"))
        batch = {
            name: jax.ShapeDtypeStruct((cfg.data.batch_size, *shape), dtype)
            for name, (shape, dtype) in shapes.items()
        }
        lowered = build_lib.lower_step(parts, mesh, batch)
        compiled = topology.compile_lowered(lowered, top.compiler_options)
    text = compiled.program.as_text()
    program = hlo.parse(text)
    return Seen(
        mesh=mesh,
        state=build_lib.abstract_state(parts, mesh),
        compiled=compiled,
        text=text,
        program=program,
        collectives=hlo.find(program, sizes),
    )
