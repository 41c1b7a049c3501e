# SPDX-License-Identifier: Apache-2.0
"""Published networks by name: each line of docs/models.md, and what stands where weights do."""

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vit_jax
from tests.refusals import refused_by
from tests.unit.inference.exported import trained
from tests.unit.models.tiny import TINY
from tests.unit.weights import hub_server
from tests.unit.weights.hub_server import Hub, serving
from tests.unit.weights.names.test_hf import AIMV2, CLIP, DINOV3, REGISTERS, SCALED, SIGLIP, VIT
from tests.unit.weights.networks import as_timm, as_transformers, changed
from vit_jax import models, trees, weights
from vit_jax.__main__ import main as verb_main
from vit_jax.export import model as export
from vit_jax.export.folder import Change
from vit_jax.export.model import Format
from vit_jax.export.quantize import WeightDType
from vit_jax.inference.trained import Trained
from vit_jax.weights.published import table, timm_config

ROOT = Path(__file__).parents[4]
pytest.importorskip("huggingface_hub", reason="needs the extra [hub]")


def documented() -> list[str]:
    section = (ROOT / "docs" / "models.md").read_text().split("## Published networks by name")[1]
    return re.findall(r"\| `(vit_jax\..*)` \|$", section.split("\n## ")[0], re.MULTILINE)


LINES = documented()
# timm's folders say the sizes of ViTs alone: another family's small network has no config.json.
LARGE = [line for line in LINES if "hub:timm/convnext" in line]
SMALL = [line for line in LINES if line not in LARGE]
NAMES = sorted({name for line in SMALL for name in re.findall(r'"(?:hub|hf):([^"@]+)', line)})
Files = dict[str, bytes]


def of_timm(name: str) -> tuple[Trained, Files]:
    """Return what timm has of a name, but small."""
    architecture = name.split("/")[1].partition(".")[0]
    variant, fields = timm_config.architectures()[architecture]
    cfg: Any = models.variant(variant, **fields)
    side = 2 * models.pair(cfg.patch, "patch")[0]
    small = {"dim": 16, "depth": 1, "num_heads": 2, "mlp_dim": 32, "image_size": (side, side)}
    count = 3 if "in1k" in name else 0
    cfg = dataclasses.replace(cfg, **small, num_classes=count)
    args = {"embed_dim": 16, "depth": 1, "num_heads": 2, "mlp_ratio": 2.0}
    return as_timm(architecture, cfg, args)


def of_transformers(name: str) -> tuple[Trained, Files]:
    """Return what transformers has of a name, but small."""
    plain = dataclasses.replace(VIT, num_classes=0)
    convnext: Any = dataclasses.replace(TINY["convnext"], grn=False, head_norm_eps=1e-12)
    config: Any = {
        "google/vit-base-patch16-224": VIT,
        "facebook/deit-base-distilled-patch16-224": TINY["deit"],
        "facebook/dinov2-small": dataclasses.replace(SCALED, num_classes=0),
        "facebook/dinov3-vits16-pretrain-lvd1689m": DINOV3,
        "facebook/dinov2-with-registers-small": dataclasses.replace(REGISTERS, num_classes=0),
        "google/siglip-base-patch16-224": SIGLIP,
        "google/siglip2-base-patch16-224": SIGLIP,
        "openai/clip-vit-large-patch14": dataclasses.replace(CLIP, num_classes=768),
        "apple/aimv2-large-patch14-224-lit": AIMV2,
        "facebook/convnext-tiny-224": convnext,
        "facebook/convnextv2-tiny-22k-224": dataclasses.replace(
            convnext, grn=True, layer_scale=0.0
        ),
        "facebook/dinov3-convnext-tiny-pretrain-lvd1689m": dataclasses.replace(
            convnext, num_classes=0, head_norm_eps=convnext.norm_eps
        ),
    }.get(name, plain)
    model = trained(config)
    if getattr(config, "pre_norm", False):
        model.variables["params"]["head"]["bias"][:] = 0
    _, files = as_transformers(config, variables=model.variables)
    if "mae" in name:
        files = changed(files, "config.json", model_type="vit_mae")
    if "siglip" in name or "clip" in name:  # files of both towers
        tower = json.loads(files["config.json"])
        kind = tower["model_type"].removesuffix("_vision_model")
        both = {"model_type": kind, "vision_config": tower, "text_config": {}}
        files["config.json"] = json.dumps(both).encode()
    return model, files


def of_an_export(_: str) -> tuple[Trained, Files]:
    model = trained(VIT)
    return model, export.make(model, Format.TIMM, WeightDType.FLOAT32, name="x")[0]


def published(name: str) -> tuple[Trained, Files]:
    makers = {"timm": of_timm, "me": of_an_export}
    return makers.get(name.split("/")[0], of_transformers)(name)


@pytest.fixture(scope="module")
def networks() -> dict[str, tuple[Trained, Files]]:
    nothing = Change(images="", count=0, largest=0.0, scale=0.0, same_top1=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export.export_folder, "compare", lambda *_: nothing)
        return {name: published(name) for name in NAMES}


@pytest.fixture
def hub(
    networks: dict[str, tuple[Trained, Files]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Hub]:
    repositories = {name: {"main": files} for name, (_, files) in networks.items()}
    with serving(repositories) as found:
        hub_server.use(monkeypatch, found.address, tmp_path / "cache")
        yield found


def test_the_table_names_networks_of_both_kinds() -> None:
    assert len(LINES) == (ROOT / "docs" / "models.md").read_text().count("| `vit_jax.")
    assert len(NAMES) >= 15


def test_large_networks_are_known_by_name() -> None:
    assert len(LARGE) == 3
    for line in LARGE:
        (name,) = re.findall(r'"hub:timm/([^"]+)"', line)
        found = timm_config.by_name(name)
        assert found is not None
        assert isinstance(found[0], models.ConvNeXtConfig)
        assert table.about(name)["mean"]


@pytest.mark.parametrize("line", SMALL)
def test_a_documented_line_loads_its_network(line: str, hub: Hub, networks: Any) -> None:
    model = eval(line, {"vit_jax": vit_jax})
    name = re.findall(r'"(?:hub|hf):([^"@]+)', line)[0]
    source, files = networks[name]
    found = dict(trees.named_leaves(model.trained.variables))
    expected = dict(trees.named_leaves(source.variables))
    for key, value in found.items():
        if key.split("/")[1] in ("head", "head_dist") and "num_classes=10" in line:
            assert value.shape[-1] == 10
        elif key.endswith("pos_embed") and "image_size" in line:
            assert value.shape[1] > expected[key].shape[1]
        else:
            np.testing.assert_array_equal(value, expected[key], err_msg=key)
    assert len(found) >= len(expected) - 2  # CLIP's projection is left out, unless asked for
    assert ("head" in model.params) == bool(model.config.num_classes)
    assert model.config.norm_eps == source.model.norm_eps
    assert getattr(model.config, "gelu", None) is getattr(source.model, "gelu", None)
    asked = {request.split()[-1] for request in hub.seen if request.startswith("GET")}
    assert asked <= files.keys()


def test_predict_needs_no_other_flag(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    name = next(name for name in NAMES if name.startswith("timm/") and "in1k" in name)
    picture = str(ROOT / "docs" / "images" / "flower.jpg")
    assert verb_main(["vit_jax", "predict", f"--from=hub:{name}", picture, "--top=1"]) == 0
    shown = capsys.readouterr()
    assert re.search(r"flower\.jpg +\d+\.\d+%  class \d", shown.out)
    assert f"from {name}/config.json" in shown.err


def test_a_network_without_classes_says_so(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    source = "--from=hub:timm/vit_small_patch14_dinov2.lvd142m"
    picture = str(ROOT / "docs" / "images" / "flower.jpg")
    assert verb_main(["vit_jax", "predict", source, picture]) == 2
    told = capsys.readouterr().err
    assert "holds a network without a head, and so no classes: `probe`" in told


def test_convert_writes_the_layout_back(
    hub: Hub, networks: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def convert(*words: str) -> int:
        return verb_main(["vit_jax", "convert", *words])

    name = "google/vit-base-patch16-224"
    dinov2 = ("hf:facebook/dinov2-small", "hub:timm/vit_small_patch14_dinov2.lvd142m")
    for ref in (f"hf:{name}", *dinov2):
        folder = tmp_path / ref.rpartition("/")[2]
        assert convert(f"--from={ref}", f"--to=hf:{folder}") == 0
        again = vit_jax.load(f"hf:{folder}")
        expected = networks[ref.partition(":")[2]][0]
        found = dict(trees.named_leaves(again.trained.variables))
        for key, value in trees.named_leaves(expected.variables):
            np.testing.assert_array_equal(found[key], value, err_msg=key)
    folder = tmp_path / "vit-base-patch16-224"
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.json", "preprocessor_config.json", "model.safetensors"}
    assert convert(f"--from=hf:{name}", f"--to=hf:{folder}") == 2
    assert "holds files already" in capsys.readouterr().err
    assert convert(f"--from=hf:{name}", f"--to=hf:{folder}", "--force") == 0
    assert convert(f"--from=hf:{name}", "--to=hf:") == 2
    assert "did you mean 'hf:FOLDER'?" in capsys.readouterr().err
    assert convert(f"--from=hf:{name}", f"--to=hf:{tmp_path}/x", "--model.qk_norm") == 2
    assert "no ViT of transformers' has model.qk_norm=True" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_weights_of_a_model_of_ones_own(hub: Hub, networks: Any) -> None:
    expected, _ = networks["facebook/dinov2-small"]
    cfg = dataclasses.replace(expected.model, num_classes=4)
    found = weights.read("hf:facebook/dinov2-small", cfg, headless=True)
    assert not any("head" in name for name in found)
    with refused_by("weights.apply._check_keys") as caught:
        weights.load("hf:facebook/dinov2-small", dataclasses.replace(expected.model, depth=3))
    assert "encoder.layer.2" in str(caught.value)
