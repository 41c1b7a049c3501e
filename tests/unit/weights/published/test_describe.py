# SPDX-License-Identifier: Apache-2.0
"""A folder's config.json says the network, how its images are prepared and its classes."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import refused_as, refused_by
from tests.unit.inference.exported import trained
from tests.unit.inference.test_trained import read
from tests.unit.models.tiny import TINY
from tests.unit.weights.names.test_hf import REGISTERS, SIGLIP
from tests.unit.weights.networks import SMALL, as_timm, as_transformers, changed, put
from vit_jax import inference, models
from vit_jax.data import Crop, CropRule, Resize, TransformConfig
from vit_jax.errors import UserError
from vit_jax.export import folder as export_folder
from vit_jax.export import model as export
from vit_jax.export.folder import Change
from vit_jax.export.model import Format
from vit_jax.export.quantize import WeightDType
from vit_jax.inference.trained import describe_input
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.losses import Loss
from vit_jax.weights.published import describe

VIT = dataclasses.replace(TINY["vit"], image_size=(8, 8), patch=(4, 4))
CENTER = TransformConfig(crop=Crop.CENTER, crop_ratio=0.875, crop_rule=CropRule.TORCH)
ARGS = {"embed_dim": 16, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0}


def timms(**about: Any) -> tuple[Any, dict[str, bytes]]:
    cfg = models.variant("vit_s14", gelu=Gelu.ERF, layer_scale=1e-5, num_classes=0, **SMALL)
    cfg = dataclasses.replace(cfg, image_size=(28, 28))
    return as_timm("vit_small_patch14_dinov2", cfg, ARGS, **about)


def test_timms_repository_needs_no_model(tmp_path: Path) -> None:
    model, files = timms()
    found, _ = read(f"--from=hub:{put(tmp_path / 'net', files)}")
    assert found.model == model.model
    assert (found.mean, found.std) == ((0.5, 0.4, 0.3), (0.25,) * 3)
    assert found.transform == dataclasses.replace(CENTER, crop_ratio=1.0, resize=Resize.BICUBIC)
    line = describe_input(found)
    assert line.endswith(f"from {tmp_path}/net/config.json")
    loaded = inference.load(f"hf:{tmp_path / 'net'}", headless=True)
    assert loaded.variables["params"].keys() == model.variables["params"].keys()


def test_transformers_folder_needs_no_model(tmp_path: Path) -> None:
    names = ("cat", "dog", "owl")
    _, files = as_transformers(VIT, class_names=names, transform=CENTER, loss=Loss.SIGMOID)
    found, _ = read(f"--from=hf:{put(tmp_path, files)}")
    free = ("init", "zero_head", "scan_unroll")
    assert dataclasses.replace(found.model, **{key: getattr(VIT, key) for key in free}) == VIT
    assert (found.class_names, found.loss) == (names, Loss.SIGMOID)
    assert found.transform.crop is Crop.CENTER
    assert found.source == found.ref == f"hf:{tmp_path}"
    smaller, _ = read(f"--from=hf:{tmp_path}", "--model.num_classes=2")
    assert smaller.class_names == ("class 0", "class 1")
    other, _ = read(f"--from=hf:{tmp_path}", "--model=deit_ti16")
    assert other.model == models.variant("deit_ti16")


def test_the_image_is_as_large_as_it_is_prepared(tmp_path: Path) -> None:
    _, files = as_transformers(VIT)
    sized = {"size": {"height": 16, "width": 16}, "do_center_crop": False}
    put(tmp_path, changed(files, "preprocessor_config.json", **sized))
    assert describe.network(f"hf:{tmp_path}").model.image_size == (16, 16)
    odd = {"size": {"height": 17, "width": 17}, "do_center_crop": False}
    put(tmp_path, changed(files, "preprocessor_config.json", **odd))
    assert describe.network(f"hf:{tmp_path}").model.image_size == (8, 8)


def test_without_a_preprocessing_it_is_a_guess_and_called_one(tmp_path: Path) -> None:
    _, files = as_transformers(SIGLIP)
    del files["preprocessor_config.json"]
    found, _ = read(f"--from=hf:{put(tmp_path, files)}")
    line = describe_input(found)
    assert "a guess by the family" in line
    assert "holds no preprocessor_config.json" in line


def test_registers_are_found_by_the_config(tmp_path: Path) -> None:
    _, files = as_transformers(REGISTERS)
    assert describe.network(f"hf:{put(tmp_path, files)}").model.num_registers == 2


@pytest.mark.parametrize("family", ["vit", "swin", "regnet"])
def test_an_export_needs_no_model(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Change(images="", count=0, largest=0.0, scale=0.0, same_top1=0)
    monkeypatch.setattr(export.export_folder, "compare", lambda *_: nothing)
    cfg = TINY[family]
    if family == "regnet":
        cfg = models.variant("regnety_200mf", num_classes=3, image_size=(32, 32))
    names = tuple(f"name {i}" for i in range(cfg.num_classes))
    model = trained(cfg, class_names=names, transform=CENTER, loss=Loss.SIGMOID)
    files, _ = export.make(model, Format.TIMM, WeightDType.FLOAT32, name="x")
    export_folder.write(tmp_path / "out", files)
    found = inference.load(f"hub:{tmp_path / 'out'}")
    assert found.model == cfg
    assert (found.class_names, found.loss, found.transform) == (names, Loss.SIGMOID, CENTER)
    assert (found.mean, found.std) == (model.mean, model.std)
    # The folder is named in no file that may be published.
    assert export._base_name(f"hub:{tmp_path / 'out'}") == "hub:out"
    assert export._base_name("hub:me/out") == "hub:me/out"


REFUSED = {
    "config": ({"config.json": None}, "holds no config.json, which says what network it is"),
    "no network": ({"architecture": None}, "names neither an architecture of timm's nor a model_t"),
    "architecture": ({"architecture": "vit_x"}, ("weights.published.timm_config.model", "")),
    "kind": (
        {"architecture": None, "model_type": "bert"},
        ("weights.names.hf_config.Facts.__init__", ""),
    ),
    "mean": ({"pretrained_cfg": {"mean": ["x"]}}, ("weights.published.table._as_timm", "")),
    "weights": ({"model.safetensors": None}, ("weights.readers.repository.Repository._index", "")),
    "heads": (
        {"model_args": {**ARGS, "num_heads": 3}},
        ("models.base.check_heads", "model.num_heads"),
    ),
    "depth": ({"model_args": {**ARGS, "depth": 3}}, ("weights.apply._check_keys", "")),
    "width": ({"model_args": {**ARGS, "mlp_ratio": 3}}, ("weights.apply._check_keys", "")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_folder_lacks_is_one_line(case: str, tmp_path: Path) -> None:
    values, message = REFUSED[case]
    files = timms()[1]
    for name in list(values):
        if name in files:
            del files[name]
            values = {key: value for key, value in values.items() if key != name}
    put(tmp_path, changed(files, "config.json", **values) if values else files)
    with refused_as(message) as error:
        inference.load(f"hub:{tmp_path}", headless=True)
    assert "\n" not in str(error.value)


HUGE = [
    {"depth": 10**9},
    {"img_size": [10**9, 14]},
    {"img_size": [2**14, 2**14], "patch_size": 1},
    {"img_size": [2**14, 2**14], "patch_size": 2},
]


@pytest.mark.parametrize("args", HUGE)
def test_sizes_of_no_network_are_refused(args: dict[str, Any], tmp_path: Path) -> None:
    files = changed(timms()[1], "config.json", model_args={**ARGS, **args})
    with pytest.raises(UserError, match=r"config\.json: .* are no network's; at most"):
        describe.network(f"hub:{put(tmp_path, files)}")


def test_a_number_without_end_is_refused(tmp_path: Path) -> None:
    _, files = as_transformers(VIT)
    deep = json.dumps({"model_type": "vit", "image_size": 10**400}).encode()
    put(tmp_path, {**files, "config.json": deep})
    with refused_by("weights.names.hf_config.Facts.wrong") as caught:
        describe.network(f"hf:{tmp_path}")
    assert "image_size=" in str(caught.value)


def test_a_repository_holds_no_average() -> None:
    with refused_by("inference.trained.describe"):
        inference.describe("hub:me/net", ema=True)
    with refused_by("weights.config.split"):
        inference.describe("hub:")
