# SPDX-License-Identifier: Apache-2.0
"""Files without a head, as DINO's and SigLIP's are, give features without a flag, no classes."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy

from tests.photos import write_folder
from tests.refusals import refused_by
from tests.unit.models.tiny import TINY
from tests.unit.weights.runs import make_state
from vit_jax import config as config_lib
from vit_jax import inference, models, trees, weights
from vit_jax.__main__ import main
from vit_jax.config.tree import Config
from vit_jax.data import DataConfig
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig
from vit_jax.train import build as build_lib
from vit_jax.train.initial_state import check, initial_state
from vit_jax.visual.saliency import make_inspection
from vit_jax.weights.config import InitConfig
from vit_jax.weights.names.timm import entries

VIT = dataclasses.replace(TINY["vit"], image_size=(8, 8), channels=3, patch=(4, 4))
# On the command line: what VIT changes of the variant.
FLAGS = ("--model=vit_mu16", "--model.image_size=8", "--model.patch=4", "--model.num_classes=3")
HEADS = ("head.", "head_dist.", "fc.")


def write(place: Path, cfg: ModelConfig, *, keep: str = "") -> dict:
    """Write a timm file of random weights without its head, but for what `keep` names."""
    state = make_state(cfg, 0)
    variables = {"params": state.params, **state.model_state}
    arrays, kept = dict(trees.named_leaves(jax.device_get(variables))), {}
    for entry in entries(cfg):  # not to_timm, which refuses sizes that timm could not build
        layers = arrays[entry.name] if entry.stacked else [arrays[entry.name]]
        for parts, layer in zip(entry.layers, layers, strict=True):
            assert entry.encode is not None
            for part, value in zip(parts, entry.encode(layer), strict=True):
                # timm has Hiera's norm, which files without a head hold, under the head's name.
                is_head = part.key.startswith(HEADS) and ".norm." not in part.key
                if not is_head or part.key == keep:
                    kept[part.key] = np.ascontiguousarray(value)
    safetensors.numpy.save_file(kept, place)
    return variables


@pytest.mark.parametrize("name", TINY)
def test_every_familys_file_may_lack_its_head(name: str, tmp_path: Path) -> None:
    cfg, place = TINY[name], tmp_path / "x.safetensors"
    variables = write(place, cfg)
    found = weights.read(f"timm:{place}", cfg, headless=True)
    expected = dict(trees.named_leaves(variables))
    missing = expected.keys() - found.keys()
    assert missing
    assert all(key.startswith(("params/head/", "params/head_dist/")) for key in missing)
    for key, value in found.items():
        np.testing.assert_array_equal(value, expected[key], err_msg=key)


def test_half_a_head_and_one_of_another_name_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "x.safetensors"
    write(place, VIT, keep="head.weight")
    with pytest.raises(UserError, match=r"lacks head.bias \[3\]"):
        weights.read(f"timm:{place}", VIT, headless=True)
    state = safetensors.numpy.load_file(place)
    state["classifier.weight"] = state.pop("head.weight")
    safetensors.numpy.save_file(state, place)
    with refused_by("weights.apply._check_keys") as caught:
        weights.read(f"timm:{place}", VIT, headless=True)
    assert "classifier.weight" in str(caught.value)


def test_features_need_no_head_and_classes_do(tmp_path: Path) -> None:
    place = tmp_path / "x.safetensors"
    variables = write(place, VIT)
    found = inference.load(str(place), model=VIT, headless=True)
    assert not found.has_head
    image = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
    whole = dataclasses.replace(found, variables=variables)
    np.testing.assert_array_equal(
        inference.make_forward(found)(image).features, inference.make_forward(whole)(image).features
    )
    with pytest.raises(UserError, match=r"holds a network without a head.*`probe`.*init.weights"):
        inference.load(str(place), model=VIT)


def test_a_run_starts_from_it_with_a_new_head(tmp_path: Path) -> None:
    place = tmp_path / "x.safetensors"
    variables = write(place, VIT)
    write_folder(tmp_path / "photos", {"train": 4}, ("china", "flower", "sky"))
    cfg = Config(model=VIT, duration="1 steps", mesh=MeshConfig(data=1), evals={})
    cfg.data = DataConfig(name=f"folder:{tmp_path}/photos", batch_size=4)
    cfg.init = InitConfig(weights=f"timm:{place}")
    config_lib.check(cfg)
    check(cfg)
    mesh = sharding.make_mesh(cfg.mesh)
    with jax.set_mesh(mesh):
        state, told = initial_state(cfg, build_lib.build(cfg, 12), mesh)
    assert told.endswith("started anew: params/head/bias, params/head/kernel")
    np.testing.assert_array_equal(state.params["pos_embed"], variables["params"]["pos_embed"])
    assert state.params["head"]["kernel"].shape == (VIT.dim, 3)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("headless")
    write_folder(root / "photos", {"train": 4, "val": 2}, ("china", "flower", "sky"))
    cfg = models.variant("vit_mu16", image_size=(8, 8), patch=(4, 4), num_classes=3)
    write(root / "x.safetensors", cfg)
    return root


def test_probe_and_visualize_take_it_without_a_flag(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = [f"--from={place}/x.safetensors", *FLAGS]
    photos = [f"--dataset=folder:{place}/photos", "--test_split=val", "--methods=knn", "--k=1"]
    out = f"--out={tmp_path}/r.json"
    assert main(["vit_jax", "probe", *start, *photos, out, f"--features={tmp_path}/f"]) == 0
    assert np.load(tmp_path / "f" / "features_train.npy").shape == (12, 32)
    assert json.loads((tmp_path / "r.json").read_text())["results"]
    images, sheets = str(place / "photos" / "val"), f"--out={tmp_path}"
    assert main(["vit_jax", "probe", *start, images, f"--features={tmp_path}/g"]) == 0
    assert main(["vit_jax", "visualize", "--attention", *start, images, sheets]) == 0
    assert main(["vit_jax", "visualize", "--weights", *start, sheets]) == 0
    assert list(tmp_path.glob("*_attention.png"))
    assert (tmp_path / "patch_filters.png").is_file()
    capsys.readouterr()
    assert main(["vit_jax", "predict", *start, images]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("images: 8x8, center 0.9")
    assert len(told) == 2
    assert "holds a network without a head" in told[1]
    assert "init.skip" not in told[1]


def test_without_a_head_there_is_no_class_activation_map(tmp_path: Path) -> None:
    cfg, place = TINY["resnet"], tmp_path / "x.safetensors"
    write(place, cfg)
    found = inference.load(str(place), model=cfg, headless=True)
    with pytest.raises(UserError, match="without a head, whose weights a class activation map"):
        make_inspection(found)
