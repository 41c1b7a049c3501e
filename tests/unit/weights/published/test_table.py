# SPDX-License-Identifier: Apache-2.0
"""How a published file's images are prepared: by its config.json, its name, or as a guess."""

import dataclasses
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from flax import linen as nn

from tests.unit.inference.test_trained import read
from vit_jax import inference, models
from vit_jax.data import Crop, CropRule, Resize, TransformConfig
from vit_jax.errors import UserError
from vit_jax.models.facts import Family
from vit_jax.weights.published import table as published
from vit_jax.weights.published.table import Preprocessing, preprocessing

BILINEAR = Resize.BILINEAR_ANTIALIAS
HALF = (0.5, 0.5, 0.5)
IMAGENET, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLIP = (0.48145466, 0.4578275, 0.40821073)


def of(ref: str, variant: str = "vit_b16", **fields: Any) -> Preprocessing:
    return preprocessing(ref, models.variant(variant, **fields))


def center(ratio: float, resize: Resize = Resize.BICUBIC) -> TransformConfig:
    rule = CropRule.TORCH
    return TransformConfig(crop=Crop.CENTER, crop_ratio=ratio, crop_rule=rule, resize=resize)


NAMED = {
    "vit_base_patch16_224.dino.safetensors": (IMAGENET, center(0.9)),
    "vit_base_patch16_224.mae.bin": (IMAGENET, center(0.9)),
    "vit_base_patch14_dinov2.lvd142m.safetensors": (IMAGENET, center(1.0)),
    "vit_huge_patch14_gap_224.in1k_ijepa.safetensors": (IMAGENET, center(0.9)),
    "vit_base_patch16_clip_224.laion2b.safetensors": (CLIP, center(1.0)),
    "vit_large_patch14_clip_224.laion2b.safetensors": (HALF, center(1.0)),
    "vit_base_patch16_224_miil.in21k.safetensors": ((0.0,) * 3, center(0.875, BILINEAR)),
    "vit_base_patch16_224.safetensors": (HALF, center(0.9)),  # timm's default tag
    "dino_vitbase16_pretrain.pth": (IMAGENET, center(0.9)),  # the authors' own file
    "models--timm--vit_base_patch16_224.dino/snapshots/1f/model.safetensors": (
        IMAGENET,
        center(0.9),
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_file_is_known_by_its_name(name: str, tmp_path: Path) -> None:
    mean, transform = NAMED[name]
    found = of(f"timm:{tmp_path / name}")
    assert found.mean == mean
    assert found.transform == transform
    assert found.source.startswith("timm's table (vit_")


def test_a_crop_may_be_of_a_squashed_image_and_another_at_the_size_of_the_test() -> None:
    squashed = of("timm:vit_base_patch16_clip_384.openai_ft_in12k_in1k.pth", image_size=(384, 384))
    assert (squashed.transform.crop, squashed.transform.crop_ratio) == (Crop.SQUASH_CENTER, 0.95)
    whole = of("timm:eva_large_patch14_336.in22k_ft_in1k.pth")
    assert whole.transform.crop is Crop.RESIZE
    small, large = (
        of("timm:resnet50.a1_in1k.pth", "resnet50", image_size=(s,)) for s in (224, 288)
    )
    assert (small.transform, small.size) == (center(0.95), (224, 224))
    assert (large.transform, large.size) == (center(1.0), (288, 288))


def config(**fields: Any) -> str:
    own = {
        "input_size": [3, 64, 96],
        "interpolation": "bilinear",
        "crop_pct": 0.8,
        "crop_mode": "center",
        "mean": [0.1, 0.2, 0.3],
        "std": [0.4, 0.5, 0.6],
    }
    return json.dumps({"architecture": "vit_base_patch16_224", "pretrained_cfg": {**own, **fields}})


@pytest.mark.parametrize("name", ["model.safetensors", "vit_base_patch16_224.dino.safetensors"])
def test_a_config_beside_the_file_says_more_than_its_name(name: str, tmp_path: Path) -> None:
    beside = tmp_path / "config.json"
    beside.write_text(config())
    found = of(f"timm:{tmp_path / name}")
    assert found == Preprocessing(
        mean=(0.1, 0.2, 0.3),
        std=(0.4, 0.5, 0.6),
        transform=center(0.8, BILINEAR),
        size=(64, 96),
        source=str(beside),
    )
    beside.write_text(config(crop_mode="squash", crop_pct=1.0))
    assert of(f"timm:{tmp_path / name}").transform.crop is Crop.RESIZE


def test_a_config_of_another_network_is_of_another_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(config(tag="augreg_in21k_ft_in1k"))
    table = "timm's table ("
    own = {
        "vit_base_patch16_224.augreg_in21k_ft_in1k.pth": str(tmp_path),
        "vit_base_patch16_224.safetensors": str(tmp_path),
        "model.safetensors": str(tmp_path),
        "vit_base_patch16_224.dino.safetensors": f"{table}vit_base_patch16_224.dino)",
        "dino_vitbase16_pretrain.pth": f"{table}vit_base_patch16_224.dino)",
        "resnet50.tv_in1k.safetensors": f"{table}resnet50.tv_in1k)",
    }
    for name, source in own.items():
        assert of(f"timm:{tmp_path / name}").source.startswith(source), name


def test_odd_paths_are_answered_in_a_line() -> None:
    for path in ("/", "~nosuch/x.pth"):
        assert of(f"timm:{path}").source.startswith("a guess by the family")


def test_a_config_of_another_library_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "vit", "hidden_size": 768}')
    assert of(f"timm:{tmp_path / 'x.pth'}").source.startswith("a guess by the family")


BAD = {
    "half a file": (config()[:50], "config.json: no JSON; it lies beside the weights"),
    "mean": (config(mean=[0.5, 0.5]), r"mean=\[0.5, 0.5\] must be 3 numbers$"),
    "std": (config(std=[0, 1, 1]), r"std=\[0, 1, 1\] must be 3 numbers"),
    "word": (config(mean="half"), "mean='half' must be 3 numbers"),
    "nan": (config(crop_pct=float("nan")), "crop_pct=nan must be a number"),
    "endless": (config(mean=[0, 0, 10**400]), "must be 3 numbers$"),
    "pixels": (config(mean=[123.675, 116.28, 103.53]), "config.json: mean=.* divided by 255"),
    "deviation": (config(std=[58.395, 57.12, 57.375]), "no usual range"),
    "crop": (config(crop_pct=1.1), "crop_pct=1.1 must be at most 1"),
    "mode": (config(crop_mode="border"), "crop_mode='border' must be center or squash"),
    "filter": (config(interpolation="lanczos"), "interpolation='lanczos' must be bicubic or"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_config_that_cannot_be_used_is_named(case: str, tmp_path: Path) -> None:
    text, message = BAD[case]
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=message):
        of(f"timm:{tmp_path / 'x.pth'}")


def test_of_other_files_the_familys_commonest_is_a_guess() -> None:
    half, rest = (0.5,), TransformConfig(crop=Crop.RESIZE)
    google = of("npz:x.npz")
    assert (google.mean, google.std, google.transform) == (half, half, rest)
    families = {
        "vit_b16": (half, center(0.9)),
        "vit_b16_clip": (CLIP, center(1.0)),
        "vit_b16_siglip_384": (half, center(0.9)),
        "deit_s16_distilled": (IMAGENET, center(0.9)),
        "deit_b16_384": (IMAGENET, center(1.0)),
        "cait_xxs24": (IMAGENET, center(1.0)),
        "convit_b": (IMAGENET, center(0.875)),
        "swin_t": (IMAGENET, center(0.9)),
        "swin_b_384": (IMAGENET, center(1.0)),
        "mixer_b16": (half, center(0.875)),
        "bit_r50x1": (half, center(1.0, BILINEAR)),
        "regnety_4gf": (IMAGENET, center(0.875)),
        "convnext_t": (IMAGENET, center(0.875)),
        "resnet50": (IMAGENET, center(0.875, BILINEAR)),
        "r50_vit_b16_384": (half, center(1.0)),
    }
    for name, (mean, transform) in families.items():
        found = of("timm:x.pth", name)
        assert (found.mean, found.transform) == (mean, transform), name
        assert found.source.startswith("a guess by the family")
    assert of("timm:x.pth", "deit_s16", channels=1).mean == (pytest.approx(0.449, abs=1e-6),)


@dataclasses.dataclass(kw_only=True)
class NewConfig(models.ModelConfig):
    """That of a family which a user has added."""


def test_a_family_of_the_users_own_has_timms_default(monkeypatch: pytest.MonkeyPatch) -> None:
    family = Family(config=NewConfig, module=nn.Module, variants={}, validate=lambda cfg: None)
    monkeypatch.setitem(models.FAMILIES, "NewConfig", "new")
    module = types.SimpleNamespace(FAMILY=family)
    monkeypatch.setitem(sys.modules, "vit_jax.models.families.new", module)
    found = preprocessing("timm:x.pth", NewConfig())
    assert (found.mean, found.std) == (IMAGENET, IMAGENET_STD)
    assert found.transform == center(0.875)


def test_what_is_done_to_images_is_always_told(capsys: pytest.CaptureFixture[str]) -> None:
    dino = "--from=vit_base_patch16_224.dino.pth"
    read(dino, "--model=vit_b16")
    assert capsys.readouterr() == (
        "",
        "images: 224x224, center 0.9 (torch), bicubic, mean 0.485,0.456,0.406, "
        "std 0.229,0.224,0.225; from timm's table (vit_base_patch16_224.dino)\n",
    )
    read(dino, "--model=vit_b16_384", "--mean=0.5", "--transform.crop=resize")
    assert capsys.readouterr().err == (
        "images: 384x384 (published for 224x224), resize, bicubic, mean 0.5, "
        "std 0.229,0.224,0.225; from timm's table (vit_base_patch16_224.dino), but for mean and "
        "transform\n"
    )
    read("--from=x.npz", "--model=vit_b16")
    assert "resize, bilinear, mean 0.5, std 0.5; from Google's code" in capsys.readouterr().err


def test_an_export_for_timm_is_read_back_as_it_was(tmp_path: Path) -> None:
    from vit_jax.export.model import hub_config

    cfg = models.variant("deit_ti16", image_size=(96, 64))
    for transform in (
        center(0.8, BILINEAR),
        dataclasses.replace(center(0.9), crop=Crop.SQUASH_CENTER),
        dataclasses.replace(center(1.0), crop=Crop.RESIZE),
    ):
        place = tmp_path / "model.safetensors"
        found = inference.describe(f"timm:{place}", model=cfg)
        found = dataclasses.replace(found, mean=CLIP, std=(0.1, 0.2, 0.3), transform=transform)
        (tmp_path / "config.json").write_text(json.dumps(hub_config(found)))
        back = inference.describe(f"timm:{place}", model=cfg)
        assert (back.mean, back.std, back.transform) == (found.mean, found.std, transform)
        (tmp_path / "config.json").unlink()


def test_the_tables_values_are_of_white_as_one() -> None:
    for name, about in published._table()[0].items():
        published.check_normalisation(about["mean"], about["std"], name)
