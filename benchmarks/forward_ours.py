# SPDX-License-Identifier: Apache-2.0
"""This project's inference at several batch sizes, as one side of a comparison."""

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.step_ours import random_batch, untrained
from benchmarks.turns import Turn, Work, calibrated
from vit_jax.models import ModelConfig


def make(
    model: ModelConfig, batch_sizes: Sequence[int], seconds: float
) -> tuple[dict[str, Any], Callable[[int], Turn]]:
    """Build the forward pass of the verbs over random weights; a turn is a batch size.

    Weights are stored in the model's dtype, as `export --dtype=bfloat16` stores them; the other
    verbs hold float32 and cast in the pass.

    Args:
        model: whose forward pass.
        batch_sizes: of the resident uint8 batches; each is compiled.
        seconds: about a turn's least length.
    """
    from vit_jax import models
    from vit_jax.process import startup

    startup.configure()
    import jax

    from vit_jax.cost import flops, scale
    from vit_jax.inference.forward import make_forward

    module, device = models.create(model), jax.devices()[0]
    params, state = jax.jit(lambda key: models.init(module, model, key))(jax.random.key(0))
    num_params = sum(leaf.size for leaf in jax.tree.leaves(params))
    params = jax.tree.map(lambda leaf: leaf.astype(model.dtype.value), params)
    forward = make_forward(untrained(model, {"params": params, **state}))

    def work(batch_size: int) -> Work:
        image = jax.device_put(random_batch(model, batch_size)["image"])

        def run(count: int) -> None:
            out = None
            for _ in range(count):
                out = forward(image).logits
            jax.block_until_ready(out)

        return run

    height, width, channels = models.input_shape(model)
    facts = {
        "num_params": num_params,
        "platform": device.platform,
        "peak_flops": scale.peak_flops(device.device_kind, model.dtype.value),
        "flops": {"forward": flops.forward_flops(module, (height, width), channels)},
    }
    return facts, calibrated({size: (size, work(size)) for size in batch_sizes}, seconds)
