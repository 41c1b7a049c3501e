# SPDX-License-Identifier: Apache-2.0
"""From uint8 pixels on the host to logits there, by exported models: each side of a comparison.

Weights are random. A turn of each is asked for by the number of images that it takes at a time.
"""

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks import step_timm
from benchmarks.record import num_cores
from benchmarks.step_ours import random_batch, untrained
from benchmarks.turns import Turn, Work, calibrated
from vit_jax.models import ModelConfig

Made = tuple[dict[str, Any], Callable[[Any], Turn]]


def _served(
    answer: Callable[[np.ndarray], Any], model: ModelConfig, sizes: Sequence[int], seconds: float
) -> Made:
    def work(size: int) -> Work:
        images = random_batch(model, size)["image"]

        def run(count: int) -> None:
            for _ in range(count):
                np.asarray(answer(images))

        return run

    return {}, calibrated({size: (size, work(size)) for size in sizes}, seconds)


def trained(model: ModelConfig) -> Any:
    """Return a model of random weights as a run's are."""
    from vit_jax.process import startup

    startup.configure()
    import jax

    from vit_jax import models

    params, state = jax.jit(lambda key: models.init(models.create(model), model, key))(
        jax.random.key(0)
    )
    return untrained(model, jax.tree.map(np.asarray, {"params": params, **state}))


def stablehlo(model: ModelConfig, batch_sizes: Sequence[int], seconds: float) -> Made:
    """Run our StableHLO export by jax, as its model card does."""
    from vit_jax.export import stablehlo as export_stablehlo

    found = trained(model)
    program, weights = export_stablehlo.serialize(found, found.variables)
    run = export_stablehlo.runner(program, weights)
    return _served(run, model, batch_sizes, seconds)


def onnx(
    model: ModelConfig, batch_sizes: Sequence[int], seconds: float, int8: bool = False
) -> Made:
    """Run our ONNX export by ONNX Runtime."""
    from vit_jax.export import onnx as export_onnx
    from vit_jax.export import onnx_quantize

    data = export_onnx.serialize(trained(model))
    data = onnx_quantize.quantized(data) if int8 else data
    # Left to itself it starts a thread for each core of the machine, also where it may use one.
    return _served(export_onnx.runner(data, num_cores()), model, batch_sizes, seconds)


def timm_onnx(
    model: ModelConfig,
    batch_sizes: Sequence[int],
    seconds: float,
    name: str = "",
    dynamo: bool = False,
    int8: bool = False,
) -> Made:
    """Run timm's model by ONNX Runtime, for any batch, all of its optimisations on.

    Args:
        model, batch_sizes, seconds: as of the others.
        name: timm's, of a family other than ViT.
        dynamo: exported by `torch.export`, else traced as timm's own script does.
        int8: by the quantiser that our export is given to.
    """
    import onnxruntime  # pyright: ignore[reportMissingImports]

    from vit_jax.export import onnx_quantize

    torch, _ = step_timm.start(1, "passive")
    net, file = step_timm.create(model, name).eval(), io.BytesIO()
    images = torch.zeros(2, 3, *random_batch(model, 1)["image"].shape[1:3])
    names = {"input_names": ["images"], "output_names": ["logits"]}
    if dynamo:
        shapes = ({0: torch.export.Dim("batch")},)
        exported: Any = torch.onnx.export(net, (images,), **names, dynamic_shapes=shapes)
        data = exported.model_proto.SerializeToString()
    else:
        axes = {"images": {0: "batch"}}
        torch.onnx.export(net, (images,), file, **names, dynamic_axes=axes, dynamo=False)
        data = file.getvalue()
    data = onnx_quantize.quantized(data) if int8 else data
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_cores()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def answer(image: np.ndarray) -> Any:
        pixels = image.transpose(0, 3, 1, 2).astype(np.float32) / 127.5 - 1
        return session.run(None, {"images": pixels})[0]

    return _served(answer, model, batch_sizes, seconds)


def timm(
    model: ModelConfig,
    batch_sizes: Sequence[int],
    seconds: float,
    threads: int,
    wait_policy: str,
    name: str = "",
    compiled: bool = False,
    channels_last: bool = False,
    int8: bool = False,
    mkl: bool = False,
) -> Made:
    """Run timm's model by PyTorch; arguments are those of `step_timm.make`.

    With `int8` its linear layers have int8 weights, and tokens are rounded as they come.
    """
    torch, _ = step_timm.start(threads, wait_policy, mkl)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    net = step_timm.create(model, name).eval().to(memory_format=layout)
    if int8:
        net = torch.ao.quantization.quantize_dynamic(net, {torch.nn.Linear}, torch.qint8)
    net = step_timm.frozen(net) if compiled else net

    def answer(image: np.ndarray) -> Any:
        with torch.inference_mode():
            pixels = torch.from_numpy(image).permute(0, 3, 1, 2)
            return net(pixels.contiguous(memory_format=layout).float() / 127.5 - 1).numpy()

    return _served(answer, model, batch_sizes, seconds)
