# SPDX-License-Identifier: Apache-2.0
"""This project's own compiled training step, as one side of a comparison."""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.turns import Turn, calibrated
from vit_jax.models import ModelConfig


def random_batch(cfg: ModelConfig, size: int) -> dict[str, np.ndarray]:
    """Return image uint8 (B, H, W, C) and label int32 (B,), the same for every side."""
    from vit_jax import models

    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (size, *models.input_shape(cfg)), np.uint8)
    return {"image": image, "label": rng.integers(0, cfg.num_classes, size, np.int32)}


def config(model: ModelConfig, batch_size: int) -> Any:
    """Return the run whose step is timed."""
    from vit_jax.config.tree import Config
    from vit_jax.data import DataConfig
    from vit_jax.optim import OptimConfig

    optim = OptimConfig(lr=1e-3, weight_decay=0.05, clip_norm=0.0)
    data = DataConfig(batch_size=batch_size)
    return Config(model=model, data=data, optim=optim, duration="1_000_000 steps")


def untrained(model: ModelConfig, variables: Any) -> Any:
    """Return what `vit_jax.load` would of a run of these variables: the verbs' forward pass."""
    from vit_jax.data import TransformConfig
    from vit_jax.inference.trained import Trained

    return Trained(
        ref="random",
        source="random",
        model=model,
        variables=variables,
        mean=(0.5,),
        std=(0.5,),
        transform=TransformConfig(),
        class_names=(),
    )


def make(
    model: ModelConfig, batch_size: int, steps: int, seconds: float
) -> tuple[dict[str, Any], Callable[[str], Turn]]:
    """Build state and step as a run does; a turn is "train" or "forward", on a resident batch.

    Args:
        model: what to train.
        batch_size: over all devices.
        steps: a turn's least number of steps.
        seconds: about a turn's least length; it takes more steps than `steps` where those are done
            before.
    """
    from vit_jax import models
    from vit_jax.devices import sharding
    from vit_jax.process import startup

    startup.configure()
    import jax
    import jax.numpy as jnp

    from vit_jax.cost import flops, scale
    from vit_jax.inference.forward import make_forward
    from vit_jax.train import build

    cfg = config(model, batch_size)
    mesh = sharding.make_mesh(cfg.mesh)
    parts = build.build(cfg, num_examples=batch_size)
    height, width, channels = models.input_shape(model)
    forward_flops = flops.forward_flops(parts.objective.module, (height, width), channels)
    with jax.set_mesh(mesh):
        state = build.init_state(cfg, parts, mesh)
        train_step = build.compile_steps(parts, mesh)[0]
        # A copy, as a step takes the state's memory for its own.
        copies = jax.tree.map(jnp.copy, {"params": state.params, **state.model_state})
        predict = make_forward(untrained(model, copies))
        batch = sharding.global_batch(random_batch(model, batch_size), mesh, batch_size=batch_size)
        num_params = sum(leaf.size for leaf in jax.tree.leaves(state.params))

    def train(count: int) -> None:
        nonlocal state
        out = None
        with jax.set_mesh(mesh):
            for _ in range(count):
                state, out = train_step(state, {}, batch)
            jax.block_until_ready(out)

    def forward(count: int) -> None:
        out = None
        for _ in range(count):
            out = predict(batch["image"]).logits
        jax.block_until_ready(out)

    kind = mesh.devices.flat[0].device_kind
    peak = scale.peak_flops(kind, model.dtype.value)
    facts = {
        "num_params": num_params,
        "platform": mesh.devices.flat[0].platform,
        "peak_flops": peak * mesh.size if peak else None,
        "flops": {"train": flops.train_flops(forward_flops), "forward": forward_flops},
    }
    works = {"train": (batch_size, train), "forward": (batch_size, forward)}
    return facts, calibrated(works, seconds, steps)
