# SPDX-License-Identifier: Apache-2.0
"""An ONNX graph whose products of tokens and weights are of int8, by ONNX Runtime's own tool."""

import logging
import tempfile
from pathlib import Path
from typing import Any

from vit_jax.errors import UserError

_OPERATION = "MatMul"


def quantized(data: bytes) -> bytes:
    """Return the file of `onnx.serialize` with int8 weights, a scale for each channel.

    Tokens are rounded to 8 bits as they come, by their own range ("dynamic"), so that no images are
    needed to find it. Products of two activations, in attention, and convolutions stay float32.

    Raises UserError: a graph of convolutions alone, but for its head.
    """
    import onnx  # pyright: ignore[reportMissingImports]
    from onnxruntime.quantization import (  # pyright: ignore[reportMissingImports]
        QuantType,
        quantize_dynamic,
    )

    model: Any = onnx.load_from_string(data)
    weights = {each.name for each in model.graph.initializer}
    products = [n for n in model.graph.node if n.op_type == _OPERATION and n.input[1] in weights]
    if len(products) < 2:
        raise UserError(
            "--dtype=int8 of --format=onnx is of products with weights, and this network has "
            "convolutions; choose --dtype=float32, or --format=stablehlo, which stores them as int8"
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)  # that a graph be prepared; this one is
        try:
            quantize_dynamic(
                model,
                file,
                weight_type=QuantType.QInt8,
                per_channel=True,
                op_types_to_quantize=[_OPERATION],
            )
        finally:
            logging.disable(before)
        return file.read_bytes()
