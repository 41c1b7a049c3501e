# SPDX-License-Identifier: Apache-2.0
"""EoMT's published files: read, written back to the bit, added to a backbone, taken by a run."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.integration.models.dense.test_eomt import GOLDEN, folder
from tests.refusals import refused_by
from tests.unit.weights import google_writer
from vit_jax import models, trees, weights
from vit_jax.__main__ import main
from vit_jax.errors import UserError
from vit_jax.inference import dense, trained
from vit_jax.models.dense import eomt
from vit_jax.weights.layout import Own
from vit_jax.weights.names import eomt as names

KINDS = ("eomt", "eomt_dinov3")


@pytest.mark.parametrize("kind", KINDS)
def test_files_go_both_ways(kind: str, tmp_path: Path) -> None:
    found = trained.load(f"hub:{folder(kind, tmp_path)}")
    assert found.class_names == tuple(f"class {i}" for i in range(4))
    assert {"segmentation", "segments"} <= dense.predictors(found).keys()
    again = tmp_path / "again"
    assert main(["vit_jax", "convert", f"--from=hub:{tmp_path}", f"--to=hf:{again}"]) == 0
    written, there = (
        load_file(again / "model.safetensors"),
        load_file(GOLDEN / f"{kind}.safetensors"),
    )
    # A file of a network that is trained has annealed masks; this one is random.
    assert not written.pop("attn_mask_probs").any()
    assert there.pop("attn_mask_probs").shape == (2,)
    assert written.keys() == there.keys()
    for name, value in there.items():
        np.testing.assert_array_equal(written[name], value, err_msg=name)
    config = json.loads((again / "config.json").read_text())
    theirs = json.loads((GOLDEN / f"{kind}.config.json").read_text())
    own = {"id2label", "label2id"}
    assert {k: v for k, v in config.items() if k not in own} == {
        k: theirs[k] for k in config.keys() - own
    }
    read = trained.load(f"hub:{again}")
    assert (read.model, read.head) == (found.model, found.head)
    # An encoder alone is taken from it, without queries and heads.
    plain = weights.load(f"hub:{again}", found.model)
    np.testing.assert_array_equal(plain["params"]["norm"]["bias"], there["layernorm.bias"])
    assert not plain["params"].keys() & set(eomt.BESIDE)


def test_differences_need_their_backbone(tmp_path: Path) -> None:
    (whole := tmp_path / "whole").mkdir()
    found = trained.load(f"hub:{folder('eomt_dinov3', whole)}")
    params = found.variables["params"]
    encoder = {name: value for name, value in params.items() if name not in eomt.BESIDE}
    half = {name: value * np.float32(0.01) for name, value in trees.named_leaves(encoder)}
    backbone = {name: value - half[name] for name, value in trees.named_leaves(encoder)}
    beside = {name: params[name] for name in eomt.BESIDE}
    (changes := tmp_path / "changes").mkdir()
    state = names.state({"params": {**trees.nest(half), **beside}}, found.model, found.head)
    save_file(state, changes / "model.safetensors")
    (changes / "config.json").write_text((whole / "config.json").read_text())
    file = tmp_path / "backbone.safetensors"
    save_file(weights.to_timm({"params": trees.nest(backbone)}, found.model), file)
    with refused_by("weights.loading._check_whole", ""):
        trained.load(f"hub:{changes}")
    with refused_by("weights.loading._check_whole", ""):  # the encoder alone, too
        weights.load(f"hub:{changes}", found.model)
    summed = trained.load(f"hub:{changes}+timm:{file}")
    for name, value in trees.named_leaves(summed.variables["params"]):
        wanted = dict(trees.named_leaves(params))[name]
        np.testing.assert_allclose(value, wanted, rtol=1e-6, atol=1e-7, err_msg=name)


def test_the_authors_file_gives_encoder_and_heads(tmp_path: Path) -> None:
    found = trained.load(f"hub:{folder('eomt', tmp_path)}")
    params = found.variables["params"]
    encoder = {name: value for name, value in params.items() if name not in eomt.BESIDE}
    plain = weights.to_timm({"params": encoder}, found.model)
    state = {f"network.encoder.backbone.{key}": value for key, value in plain.items()}
    for entry in names.beside(params, "official"):
        assert entry.encode is not None
        value = np.asarray(dict(trees.named_leaves({"params": params}))[entry.name])
        state[f"network.{entry.layers[0][0].key}"] = np.ascontiguousarray(entry.encode(value)[0])
    assert "network.upscale.1.conv2.weight" in state
    assert "network.mask_head.4.bias" in state
    state["network.attn_mask_probs"] = np.zeros(2, np.float32)
    state["network.encoder.pixel_mean"] = np.zeros((1, 3, 1, 1), np.float32)
    state["criterion.empty_weight"] = np.ones(5, np.float32)
    file = tmp_path / "authors.safetensors"
    save_file(state, file)
    own = Own({name: params[name] for name in eomt.BESIDE})
    read = weights.read(f"timm:{file}", found.model, own=own)
    assert read.keys() == {name for name, _ in trees.named_leaves({"params": params})}
    for name, value in trees.named_leaves({"params": params}):
        np.testing.assert_array_equal(read[name], value, err_msg=name)


def test_a_giants_gate_and_value_may_lie_in_one_tensor(tmp_path: Path) -> None:
    sizes = {"image_size": (32, 32), "patch": (16, 16), "dim": 32, "depth": 2, "mlp_dim": 88}
    model = models.variant("vit_g14_dinov2_reg", num_classes=0, num_heads=2, **sizes)
    head = eomt.EomtHead(num_classes=3, queries=4, blocks=1)
    variables = google_writer.random_variables(eomt.abstract(model, head))
    state = names.state(variables, model, head)
    assert "layers.1.mlp.gate_proj.weight" in state
    for key in [key for key in state if ".gate_proj." in key]:  # as transformers 4 has them
        both = state.pop(key), state.pop(key.replace("gate", "up"))
        state[key.replace("gate_proj", "weights_in")] = np.concatenate(both)
        last = key.replace("gate", "down")
        state[last.replace("down_proj", "weights_out")] = state.pop(last)
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(names.config(model, head, ())))
    read = trained.load(f"hub:{tmp_path}").variables
    for name, value in trees.named_leaves(variables):
        np.testing.assert_array_equal(dict(trees.named_leaves(read))[name], value, err_msg=name)


def test_a_file_of_other_classes_gives_all_but_their_layer(tmp_path: Path) -> None:
    found = trained.load(f"hub:{folder('eomt', tmp_path)}")
    head = eomt.EomtHead(num_classes=7, queries=5, blocks=2, upscale=2)
    params = eomt.abstract(found.model, head)["params"]
    own = Own({name: params[name] for name in eomt.BESIDE})
    read = weights.read(f"hub:{tmp_path}", found.model, own=own)
    wanted = {name for name, _ in trees.named_leaves({"params": params})}
    assert wanted - read.keys() == {"params/eomt_class/kernel", "params/eomt_class/bias"}
    with refused_by("inference.trained.read_weights", ""):
        trained.read_weights(found)  # no class of an image


def test_what_is_not_an_eomt_is_refused(tmp_path: Path) -> None:
    tree = json.loads((GOLDEN / "eomt.config.json").read_text())
    with pytest.raises(UserError, match="class_predictor"):
        names.head(tree, {}, "config.json")
    with pytest.raises(UserError, match="num_queries=0"):
        names.head({**tree, "num_queries": 0}, {"class_predictor.weight": (5, 32)}, "config.json")
    with pytest.raises(UserError, match="pos_embed"):
        names.config(models.variant("vit_mu8"), eomt.EomtHead(num_classes=2), ())
