# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime gives the model's logits, for every family."""

import collections
import dataclasses
import importlib.util
import logging

import numpy as np
import pytest

from tests.unit.inference.exported import assert_close, images, of_family, trained
from tests.unit.models.tiny import TINY
from vit_jax.errors import UserError
from vit_jax.export import onnx as export_onnx
from vit_jax.export import onnx_quantize
from vit_jax.inference.forward import make_forward
from vit_jax.models import DType, ModelConfig, ViTConfig

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


def _operations(cfg: ModelConfig) -> collections.Counter[str]:
    import onnx

    data = export_onnx.serialize(trained(cfg))
    return collections.Counter(n.op_type for n in onnx.load_from_string(data).graph.node)


@needs_onnx
def test_norms_gelu_and_softmax_are_one_node_each() -> None:
    cfg = TINY["vit"]
    assert isinstance(cfg, ViTConfig)
    found = _operations(cfg)
    expected = {"LayerNormalization": 2 * cfg.depth + 1, "Gelu": cfg.depth, "Softmax": cfg.depth}
    assert {op: found[op] for op in expected} == expected
    # Nothing of what they are made of is left, and one shape is computed: that of the class token.
    assert not found.keys() & {"ReduceSum", "Sqrt", "Erf", "Exp", "ReduceMax"}
    assert found["Shape"] <= 1
    # Each block has eight: q, k, v, two inside attention, its output, two in the MLP. The others
    # are those of the patches and of the head.
    assert found["MatMul"] == cfg.depth * 8 + 2
    assert not found["Slice"], "q, k and v are not cut apart"


@needs_onnx
def test_batch_norms_are_in_their_convolutions_and_groups_are_ones() -> None:
    import onnx

    found = _operations(TINY["resnet"])
    assert found["Sub"] <= 1, "the images' mean alone"
    assert found["Mul"] == 0
    assert found["Conv"] > 5
    regnet = onnx.load_from_string(export_onnx.serialize(trained(TINY["regnet"])))
    groups = [
        attribute.i
        for node in regnet.graph.node
        if node.op_type == "Conv"
        for attribute in node.attribute
        if attribute.name == "group"
    ]
    assert max(groups) > 1


@needs_onnx
def test_no_constant_is_unread() -> None:
    import onnx

    graph = onnx.load_from_string(export_onnx.serialize(trained(TINY["vit"]))).graph
    read = {name for node in graph.node for name in node.input}
    assert {each.name for each in graph.initializer} <= read


@needs_onnx
def test_int8_products_change_little_and_take_a_quarter() -> None:
    import onnx

    cfg = dataclasses.replace(TINY["vit"], dim=64, mlp_dim=256)
    model = trained(cfg)
    whole = export_onnx.serialize(model)
    data = onnx_quantize.quantized(whole)
    found = collections.Counter(n.op_type for n in onnx.load_from_string(data).graph.node)
    assert found["MatMulInteger"] == cfg.depth * 6 + 2
    assert found["MatMul"] == cfg.depth * 2, "attention's own stay float32"
    before, after = (export_onnx.runner(each)(images(model)) for each in (whole, data))
    assert 0 < np.abs(after - before).max() < 0.1 * np.abs(before).max()


@needs_onnx
def test_int8_of_convolutions_alone_is_refused() -> None:
    data = export_onnx.serialize(trained(TINY["resnet"]))
    with pytest.raises(UserError, match="this network has convolutions; choose --dtype=float32"):
        onnx_quantize.quantized(data)
