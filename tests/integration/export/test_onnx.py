# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime gives the model's logits, for every family."""

import dataclasses
import importlib.util
import logging

import numpy as np
import pytest

from tests.unit.inference.exported import assert_close, images, of_family, trained
from tests.unit.models.tiny import TINY
from vit_jax.errors import UserError
from vit_jax.export import onnx as export_onnx
from vit_jax.inference.forward import make_forward
from vit_jax.models import DType

needs_onnx = pytest.mark.skipif(
    importlib.util.find_spec("jax2onnx") is None, reason="needs locks/onnx.txt"
)


@needs_onnx
@pytest.mark.parametrize("family", TINY)
def test_every_family_at_two_batch_sizes(
    family: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    model, batch, expected = of_family(family)
    run = export_onnx.runner(export_onnx.serialize(model))
    found = run(batch)
    assert found.dtype == np.float32
    assert_close(found, expected)
    assert_close(run(batch[:1]), expected[:1])
    assert capfd.readouterr() == ("", ""), "what the converter says of itself"
    assert not caplog.records
    assert logging.root.manager.disable == logging.NOTSET


@needs_onnx
def test_a_bfloat16_model_computes_in_float32() -> None:
    model = trained(dataclasses.replace(TINY["vit"], dtype=DType.BFLOAT16))
    run = export_onnx.runner(export_onnx.serialize(model))
    wide = dataclasses.replace(model, model=TINY["vit"])
    assert_close(run(images(model)), np.asarray(make_forward(wide)(images(model)).logits))


@needs_onnx
def test_the_graph_says_what_it_takes() -> None:
    import onnx

    model, batch, _ = of_family("mixer")
    graph = onnx.load_from_string(export_onnx.serialize(model))
    onnx.checker.check_model(graph, full_check=True)
    (image,), (logits,) = graph.graph.input, graph.graph.output
    assert (image.name, logits.name) == ("images", "logits")
    shape = image.type.tensor_type.shape.dim
    assert [dim.dim_param or dim.dim_value for dim in shape] == ["batch", *batch.shape[1:]]
    assert image.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert [(entry.domain, entry.version) for entry in graph.opset_import] == [("", 21)]


@needs_onnx
def test_more_than_a_file_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_onnx, "MAX_BYTES", 1000)
    with pytest.raises(UserError, match="bytes; one ONNX file holds 1,000"):
        export_onnx.serialize(of_family("vit")[0])
