# SPDX-License-Identifier: Apache-2.0
"""timm builds our model from an export's folder, weights and preprocessing included."""

import dataclasses
from pathlib import Path

import cv2
import jax
import numpy as np
import pytest
from PIL import Image

from tests.parity import test_convnext, test_eva, test_regnet
from tests.parity.torch_models import timm, torch
from tests.unit.inference.exported import assert_close, images, trained
from tests.unit.models.tiny import TINY, shrink
from vit_jax import models
from vit_jax.data import Crop, Resize, TransformConfig, evaluation_view
from vit_jax.errors import UserError
from vit_jax.export import folder as export_folder
from vit_jax.export import model as export
from vit_jax.export.model import Format
from vit_jax.export.quantize import WeightDType
from vit_jax.inference.forward import make_forward
from vit_jax.inference.trained import Trained
from vit_jax.models import ModelConfig
from vit_jax.models.families import bit, hybrid, mixer
from vit_jax.models.layers.mlp import Gelu, MlpKind
from vit_jax.models.layers.norm import TokenNorm
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed

_VIT = TINY["vit"]
_CNN = {"depths": (1, 1, 1, 1), "widths": (8, 16, 16, 24), "num_classes": 5, "image_size": (32,)}
_EVA = ("DINOv3 7B", "EVA-02 B", "RoPE-ViT mixed", "PE")
# Every architecture whose sizes arguments change, as small as that goes.
CONFIGS: dict[str, ModelConfig] = {
    **{name: TINY[name] for name in ("vit", "cait", "convit", "swin", "hiera")},
    "deit": dataclasses.replace(TINY["deit"], gelu=Gelu.TANH),
    "siglip": dataclasses.replace(
        _VIT, pool=Pool.MAP, class_token=False, pos_embed_prefix=False, channels=1
    ),
    "fixed positions": dataclasses.replace(
        _VIT,
        pos_embed=PosEmbed.SINCOS2D,
        pool=Pool.GAP,
        pool_prefix=True,
        fc_norm=True,
        num_registers=2,
        image_size=(8, 12),
        layer_scale=0.1,
        qk_norm=True,
    ),
    "no positions": dataclasses.replace(_VIT, pos_embed=PosEmbed.NONE, mlp_dim=37),
    "clip": dataclasses.replace(
        _VIT, norm_eps=1e-5, pre_norm=True, patch_bias=False, gelu=Gelu.QUICK
    ),
    "rms and swiglu": dataclasses.replace(_VIT, norm=TokenNorm.RMS, mlp=MlpKind.SWIGLU),
    "aimv2": shrink(models.variant("vit_l14_aimv2", patch=(4, 4))),
    **{name: dataclasses.replace(test_eva.BASE, **test_eva.PUBLISHED[name]) for name in _EVA},
    "hiera abswin": dataclasses.replace(
        TINY["hiera"], global_grid=(3, 5), expand=False, layer_scale=0.1
    ),
    "regnet": test_regnet.SMALL,
    "convnext": dataclasses.replace(test_convnext.UNEVEN, image_size=(32, 32)),
    "convnext hnf": dataclasses.replace(
        test_convnext.NORM_FIRST, image_size=(32, 32), layer_scale=0.0
    ),
    "resnet": models.ResNetConfig(**_CNN),
    "resnetv2": shrink(models.variant("resnetv2_50"), **_CNN),
    "swin s3": dataclasses.replace(
        TINY["swin"], depths=(1, 1, 1), num_heads=(2, 2, 2), window=(2, 3, 1)
    ),
}
# And those whose depths timm fixes, with only their widths cut.
FIXED: dict[str, ModelConfig] = {
    "mixer": models.variant(
        "mixer_s32",
        gelu="erf",
        image_size=(32, 64),
        channel_mlp_dim=65,
        num_classes=3,
        zero_head=False,
    ),
    "hybrid": shrink(
        models.variant("r_vit_ti16", weight_std="timm", group_norm_eps=1e-5),
        stem_width=64,
        num_groups=32,
        zero_head=False,
    ),
    "bit": models.variant(
        "bit_r50x1",
        conv_eps=1e-8,
        widths=(128, 128, 128, 128),
        stem_width=32,
        image_size=(32,),
        num_classes=3,
        zero_head=False,
    ),
}


@pytest.fixture(autouse=True)
def _unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    # What an export prints of itself takes two compilations; timm says more here.
    nothing = export_folder.Change(images="", count=0, largest=0.0, scale=0.0, same_top1=0)
    monkeypatch.setattr(export_folder, "compare", lambda *_: nothing)


def exported(cfg: ModelConfig, folder: Path, **fields) -> tuple[Trained, "torch.nn.Module"]:
    model = trained(cfg, **fields)
    export.check(model, Format.TIMM, WeightDType.FLOAT32)
    files, _ = export.make(model, Format.TIMM, WeightDType.FLOAT32, name="x")
    export_folder.write(folder, files)
    return model, timm.create_model(f"local-dir:{folder}", pretrained=True).eval()


def normalized(pixels: np.ndarray, model: Trained) -> np.ndarray:
    """Return [B, C, H, W] as timm takes it."""
    scaled = (pixels / np.float32(255) - np.float32(model.mean)) / np.float32(model.std)
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("name", [*CONFIGS, *FIXED])
def test_timm_gives_the_same_logits(name: str, tmp_path: Path) -> None:
    cfg = {**CONFIGS, **FIXED}[name]
    ours, theirs = exported(cfg, tmp_path / "out")
    batch = images(ours, 2)
    with jax.default_matmul_precision("highest"):
        expected = np.asarray(make_forward(ours)(batch).logits)
    with torch.no_grad():
        found = theirs(torch.from_numpy(normalized(batch, ours))).numpy()
    assert_close(found, expected, 5e-5)
    norms = (torch.nn.LayerNorm, timm.layers.RmsNorm)
    eps = {module.eps for module in theirs.modules() if isinstance(module, norms)}
    assert eps <= {getattr(cfg, "norm_eps", None)}, "which logits hardly show"


def test_timm_gives_the_features_of_a_model_without_a_head(tmp_path: Path) -> None:
    ours, theirs = exported(dataclasses.replace(CONFIGS["vit"], num_classes=0), tmp_path / "out")
    batch = images(ours, 2)
    with jax.default_matmul_precision("highest"):
        expected = np.asarray(make_forward(ours)(batch).features)
    with torch.no_grad():
        found = theirs(torch.from_numpy(normalized(batch, ours))).numpy()
    assert_close(found, expected, 5e-5)


@pytest.mark.parametrize(
    "transform",
    [
        TransformConfig(crop=Crop.CENTER, crop_ratio=0.8, resize=Resize.BICUBIC),
        TransformConfig(crop=Crop.RESIZE, resize=Resize.BILINEAR_ANTIALIAS),
    ],
)
def test_timm_prepares_an_image_alike(transform: TransformConfig, tmp_path: Path) -> None:
    cfg = dataclasses.replace(_VIT, image_size=(32, 32))
    ours, theirs = exported(cfg, tmp_path / "out", transform=transform, mean=(0.3,), std=(0.2,))
    prepare = timm.data.create_transform(**timm.data.resolve_model_data_config(theirs))
    noise = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    photo = cv2.resize(noise, (120, 90), interpolation=cv2.INTER_CUBIC)
    view = evaluation_view(photo, transform, (32, 32))
    (expected,) = normalized(view[None], ours)
    found = prepare(Image.fromarray(photo)).numpy()
    # A level of 255, of rounding; half an output pixel of the crop's place would be 20 times that.
    assert np.abs(found - expected).max() < 2.5 / 255 / 0.2


@pytest.mark.parametrize(
    "cfg, message",
    [
        (models.variant("bit_r50x1"), r"resnetv2_50x1_bit has model.conv_eps=1e-08, not 1e-10"),
        (models.variant("bit_r50x2"), r"no BiT with .*; it has resnetv2_50x1_bit"),
        (models.variant("r50_vit_b16"), r"vit_base_r50_s16_224 has model.group_norm_eps=1e-05"),
        (models.variant("r50_vit_b16", backbone_depths=(1, 2, 3)), r"it has \(\), \(2, 2, 2, 2\)"),
        (models.variant("mixer_s16", depth=3), r"depth=3, model.dim=512; it has mixer_s16_224"),
        (models.variant("swin_t", norm_eps=1e-6), r"has model.norm_eps=1e-05, not 1e-06"),
        (models.variant("cait_xxs24", gelu="tanh"), r"has model.gelu=erf, not tanh"),
    ],
)
def test_what_no_arguments_change_is_refused(cfg: ModelConfig, message: str) -> None:
    with pytest.raises(UserError, match=message):
        export.hub_config(trained_shapes(cfg))


def trained_shapes(cfg: ModelConfig) -> Trained:
    return Trained(
        ref="npz:x.npz",
        source="npz:x.npz",
        model=cfg,
        mean=(0.5,),
        std=(0.5,),
        transform=TransformConfig(),
        class_names=("x",),
    )


def test_every_architecture_is_timms() -> None:
    tables = (hybrid._ARCHITECTURES, mixer._ARCHITECTURES, bit._ARCHITECTURES)
    names = {name for table in tables for name in table.values()}
    known = set(timm.list_models())
    assert names <= known
    for (depths, factor), name in bit._ARCHITECTURES.items():
        assert f"_{sum(depths) * 3 + 2}x{factor}_" in name
