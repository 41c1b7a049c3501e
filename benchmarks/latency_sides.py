# SPDX-License-Identifier: Apache-2.0
"""One image at a time, from uint8 pixels on the host to logits there: each side of a comparison.

Weights are random. A turn of each is asked for by `None`.
"""

import io
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import step_timm
from benchmarks.step_ours import random_batch
from benchmarks.turns import Turn, calibrated
from vit_jax.models import ModelConfig

Made = tuple[dict[str, Any], Callable[[Any], Turn]]


def _served(answer: Callable[[np.ndarray], Any], model: ModelConfig, seconds: float) -> Made:
    image = random_batch(model, 1)["image"]

    def run(count: int) -> None:
        for _ in range(count):
            np.asarray(answer(image))

    return {}, calibrated({None: (1, run)}, seconds)


def _trained(model: ModelConfig) -> Any:
    from vit_jax.process import startup

    startup.configure()
    import jax

    from vit_jax import models
    from vit_jax.data import TransformConfig
    from vit_jax.inference.trained import Trained

    params, state = jax.jit(lambda key: models.init(models.create(model), model, key))(
        jax.random.key(0)
    )
    return Trained(
        ref="random",
        source="random",
        model=model,
        variables=jax.tree.map(np.asarray, {"params": params, **state}),
        mean=(0.5,),
        std=(0.5,),
        transform=TransformConfig(),
        class_names=(),
    )


def stablehlo(model: ModelConfig, seconds: float) -> Made:
    """Run our StableHLO export by jax, as its model card does."""
    from vit_jax.export import stablehlo as export_stablehlo

    trained = _trained(model)
    program, weights = export_stablehlo.serialize(trained, trained.variables)
    return _served(export_stablehlo.runner(program, weights), model, seconds)


def onnx(model: ModelConfig, seconds: float) -> Made:
    """Run our ONNX export by ONNX Runtime."""
    from vit_jax.export import onnx as export_onnx

    return _served(export_onnx.runner(export_onnx.serialize(_trained(model))), model, seconds)


def timm_onnx(model: ModelConfig, seconds: float) -> Made:
    """Run timm's model by ONNX Runtime, exported as timm's own script does."""
    import onnxruntime  # pyright: ignore[reportMissingImports]

    torch, _ = step_timm.start(1, "passive")
    net, file = step_timm.create(model, "").eval(), io.BytesIO()
    images = torch.zeros(1, 3, *random_batch(model, 1)["image"].shape[1:3])
    torch.onnx.export(net, (images,), file, input_names=["images"], dynamo=False)
    session = onnxruntime.InferenceSession(file.getvalue())

    def answer(image: np.ndarray) -> Any:
        pixels = image.transpose(0, 3, 1, 2).astype(np.float32) / 127.5 - 1
        return session.run(None, {"images": pixels})[0]

    return _served(answer, model, seconds)


def timm(
    model: ModelConfig,
    seconds: float,
    threads: int,
    wait_policy: str,
    mkl: bool = False,
    compiled: bool = False,
) -> Made:
    """Run timm's model by PyTorch; arguments are those of `step_timm.make`."""
    torch, _ = step_timm.start(threads, wait_policy, mkl)
    net = step_timm.create(model, "").eval()
    net = torch.compile(net) if compiled else net

    def answer(image: np.ndarray) -> Any:
        with torch.inference_mode():
            pixels = torch.from_numpy(image).permute(0, 3, 1, 2).contiguous().float()
            return net(pixels / 127.5 - 1).numpy()

    return _served(answer, model, seconds)
