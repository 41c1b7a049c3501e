# SPDX-License-Identifier: Apache-2.0
"""transformers 5.23's DPT and Depth Anything: their outputs and files (tests/golden/next3)."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from vit_jax import models, trees, weights
from vit_jax.errors import UserError
from vit_jax.export import dense
from vit_jax.inference import dense as pixels
from vit_jax.models.dense import dpt
from vit_jax.storage import files
from vit_jax.weights.layout import Own
from vit_jax.weights.names import hf, hf_depth
from vit_jax.weights.published import describe, hf_images

GOLDEN = Path(__file__).parents[3] / "golden/next3"
TOLERANCE = {"dpt_dinov2": 5e-5, "depth_anything": 2e-5}  # of the largest number


def folder(name: str, path: Path, **changed: Any) -> str:
    shutil.copy(GOLDEN / f"{name}.safetensors", path / "model.safetensors")
    tree = json.loads((GOLDEN / f"{name}.config.json").read_text())
    (path / "config.json").write_text(json.dumps({**tree, **changed}))
    return f"hf:{path}"


def read(ref: str, size: tuple[int, int] | None = None) -> tuple[Any, dpt.DptConfig, Any]:
    """Return the encoder's config, the head's, and the variables of both."""
    model = describe.network(ref).model
    tree = json.loads((Path(ref.removeprefix("hf:")) / "config.json").read_text())
    head = hf_depth.config(tree, model, "config.json")
    model = models.with_fields(model, {"image_size": size} if size else {})
    own = Own(hf_depth.abstract(head, model)["params"])
    return model, head, trees.nest(dict(weights.read(ref, model, own=own)))


@pytest.mark.parametrize("name", TOLERANCE)
def test_outputs_and_gradients_are_transformers(name: str, tmp_path: Path) -> None:
    stored = np.load(GOLDEN / f"{name}.npz")
    image = jnp.asarray(stored["in_pixel_values"].transpose(0, 2, 3, 1))
    model, head, variables = read(folder(name, tmp_path), (image.shape[1], image.shape[2]))
    own = variables["params"].pop(hf_depth.HEAD)

    def run(image: jax.Array) -> tuple[jax.Array, Any]:
        layers = dpt.tapped(head, model, variables, image)
        how: Any = {"mutable": ["intermediates"]}
        out: Any = dpt.create(head, model).apply({"params": own}, layers, **how)
        depth, state = out
        joined = [jnp.concatenate([each.prefix, each.tokens], axis=1) for each in layers]
        fused = [x.transpose(0, 3, 1, 2) for x in state["intermediates"]["fused"]]
        loss = (depth * stored["ct_depth"]).sum()
        return loss, {"depth": depth, "feature": joined, "fused": fused}

    with jax.default_matmul_precision("highest"):
        (_, found), gradient = jax.jit(jax.value_and_grad(run, has_aux=True))(image)
    pairs = [(found["depth"], "out_depth"), (gradient.transpose(0, 3, 1, 2), "grad_pixel_values")]
    pairs += [(x, f"out_feature{i}") for i, x in enumerate(found["feature"])]
    pairs += [(x, f"out_fused{i}") for i, x in enumerate(found["fused"][:3])]
    for ours, key in pairs:
        theirs = stored[key]
        bound = TOLERANCE[name] * np.abs(theirs).max()
        np.testing.assert_allclose(ours, theirs, atol=bound, rtol=0, err_msg=key)


@pytest.mark.parametrize("name", TOLERANCE)
def test_files_go_both_ways(name: str, tmp_path: Path) -> None:
    model, head, variables = read(folder(name, tmp_path))
    state = hf_depth.state(variables, model, head, hf.LAYOUTS["dinov2"])
    stored = load_file(GOLDEN / f"{name}.safetensors")
    assert stored.keys() - state.keys() == {"backbone.embeddings.mask_token"}
    for key, value in state.items():
        np.testing.assert_array_equal(value, stored[key], err_msg=key)
    theirs = json.loads((GOLDEN / f"{name}.config.json").read_text())
    written = hf_depth.written(head, model, theirs["backbone_config"])
    same = {key: value for key, value in written.items() if key != "use_bias_in_fusion_residual"}
    assert {key: theirs[key] for key in same} == same
    assert hf_depth.config(written, model, "config.json") == head


def test_an_encoder_alone_leaves_the_head_behind(tmp_path: Path) -> None:
    ref = folder("depth_anything", tmp_path)
    model = describe.network(ref).model
    plain = weights.load(ref, model)
    assert hf_depth.HEAD not in plain["params"]
    other = dpt.DptConfig(taps=(0, 1, 2, 3), dim=8)  # no head of this file
    own = Own(hf_depth.abstract(other, model)["params"])
    assert not any(hf_depth.HEAD in name for name in weights.read(ref, model, own=own))


def test_batch_norm_and_readouts_go_both_ways(tmp_path: Path) -> None:
    """What no stored file has: the statistics of fusion, the other readouts, a projection."""
    ref = folder("dpt_dinov2", tmp_path)
    model, _, variables = read(ref)
    tree = json.loads((tmp_path / "config.json").read_text())
    changed = {
        "use_batch_norm_in_fusion_residual": True,
        "add_projection": True,
        "readout_type": "add",
        "head_in_index": 3,
    }
    other = hf_depth.config({**tree, **changed}, model, "config.json")
    assert (other.residual_norm, other.residual_bias, other.project) == (True, False, True)
    shapes = hf_depth.abstract(other, model)
    own = jax.tree.map(lambda leaf: np.random.default_rng(1).random(leaf.shape, "f"), shapes)
    params = {**variables["params"], hf_depth.HEAD: own["params"][hf_depth.HEAD]}
    whole = {**own, "params": params}
    state = hf_depth.state(whole, model, other, hf.LAYOUTS["dinov2"])
    key = "neck.fusion_stage.layers.1.residual_layer2.batch_norm1"
    assert state[f"{key}.num_batches_tracked"].dtype == np.int64
    np.testing.assert_array_equal(
        state[f"{key}.running_var"],
        own["batch_stats"][hf_depth.HEAD]["fuse1"]["res2"]["norm1"]["var"],
    )
    assert not any("readout" in key for key in state)
    floats = {key: value for key, value in state.items() if value.dtype == np.float32}
    save_file(floats, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({**tree, **changed}))
    _, _, again = read(ref)
    jax.tree.map(np.testing.assert_array_equal, again, whole)


def test_configs_that_cannot_be(tmp_path: Path) -> None:
    model = describe.network(folder("depth_anything", tmp_path)).model
    tree = json.loads((tmp_path / "config.json").read_text())
    backbone = tree["backbone_config"]
    wrong = {
        "depth_estimation_type": {"depth_estimation_type": "absolute"},
        "max_depth": {"max_depth": -1},
        "neck_hidden_sizes": {"neck_hidden_sizes": [8, 8]},
        "fusion_hidden_size": {"fusion_hidden_size": 2**40},
        "head_in_index": {"head_in_index": 0},
        "out_indices": {"backbone_config": {**backbone, "out_indices": [1, 2, 3, 9]}},
    }
    for key, changed in wrong.items():
        with pytest.raises(UserError, match=key):
            hf_depth.config({**tree, **changed}, model, "config.json")
    other = {"model_type": "dpt", "backbone_config": {"model_type": "bit"}}
    with pytest.raises(UserError, match="dpt of backbone_config bit is not known here"):
        describe.hf_config.Facts(other, "config.json")
    odd = dpt.DptConfig(to_next=True, project=True)
    with pytest.raises(UserError, match="depth_anything has no such"):
        hf_depth.written(odd, model, backbone)


def test_a_folder_is_written_and_read_again(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    found = pixels.load(folder("depth_anything", tmp_path / "theirs"))
    dense.check(found)
    files.write_folder(tmp_path / "ours", dense.make(found))
    again = pixels.load(f"hf:{tmp_path / 'ours'}")
    assert (again.head, again.model) == (found.head, found.model)
    jax.tree.map(np.testing.assert_array_equal, again.variables, found.variables)
    images = json.loads((tmp_path / "ours" / hf_images.FILE).read_text())
    assert (images["keep_aspect_ratio"], images["ensure_multiple_of"]) == (True, 7)
    plain = dataclasses.replace(found.model, layer_scale=0.0)
    with pytest.raises(UserError, match="a vit to transformers, and this head is written on"):
        dense.check(dataclasses.replace(found, model=plain))


def test_the_papers_own_has_a_plain_vit(tmp_path: Path) -> None:
    (tmp_path / "golden").mkdir()
    found = pixels.load(folder("dpt_dinov2", tmp_path / "golden"))
    params = dict(found.variables["params"])
    params["blocks"] = {k: v for k, v in params["blocks"].items() if k not in ("ls1", "ls2")}
    model = dataclasses.replace(found.model, layer_scale=0.0)
    head = dataclasses.replace(found.head, norm=False, taps=(0, 1, 2, 3))
    plain = dataclasses.replace(found, model=model, head=head, variables={"params": params})
    dense.check(plain)
    files.write_folder(tmp_path / "plain", dense.make(plain))
    keys = load_file(tmp_path / "plain/model.safetensors").keys()
    assert "dpt.encoder.layer.3.layernorm_before.weight" in keys
    assert "neck.reassemble_stage.readout_projects.0.0.weight" in keys
    tree = json.loads((tmp_path / "plain/config.json").read_text())
    assert (tree["model_type"], tree["backbone_out_indices"]) == ("dpt", [0, 1, 2, 3])
    assert "backbone_config" not in tree
    again = pixels.load(f"hf:{tmp_path / 'plain'}")
    assert (again.head, again.model.layer_scale) == (head, 0.0)
    jax.tree.map(np.testing.assert_array_equal, again.variables, plain.variables)
    with pytest.raises(UserError, match="dpt of backbone_config none is not known here"):
        describe.hf_config.Facts({**tree, "is_hybrid": True}, "config.json")
