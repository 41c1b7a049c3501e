# SPDX-License-Identifier: Apache-2.0
"""transformers' ViTs, as they save themselves, give the same here; and ours the same there."""

import dataclasses
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.refusals import refused_by

if not importlib.util.find_spec("transformers"):
    pytest.skip(
        "needs transformers: pip install --no-deps -r locks/parity.txt",
        allow_module_level=True,
    )

import transformers as hf

from tests.parity.harness import to_torch
from tests.parity.torch_models import randomise, torch
from tests.unit.inference.exported import assert_close, images, trained
from tests.unit.models.tiny import TINY
from tests.unit.weights.names.test_hf import AIMV2, DINOV3, GATED
from vit_jax import inference, models
from vit_jax.export import transformers as transformers_folder
from vit_jax.inference.trained import Trained
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.weights.names import hf_config

TOLERANCE = 5e-5
SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "image_size": 16,
    "patch_size": 4,
}
MLP = {**SIZES, "intermediate_size": 40}
LABELS = {"num_labels": 5}
MAPS = {"hidden_sizes": [6, 8], "depths": [1, 2], "image_size": 16}
STAGES = {**MAPS, "num_stages": 2}
TEXT = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 30,
    "max_position_embeddings": 8,
    "projection_dim": 12,
}


@dataclasses.dataclass(frozen=True)
class Case:
    build: Callable[[], Any]
    # What of each side is compared; ours is an Output.
    theirs: str
    ours: str
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)


CASES = {
    "vit": Case(
        lambda: hf.ViTForImageClassification(hf.ViTConfig(**MLP, **LABELS)), "logits", "logits"
    ),
    "vit without biases": Case(
        lambda: hf.ViTForImageClassification(
            hf.ViTConfig(**MLP, **LABELS, qkv_bias=False, hidden_act="gelu_pytorch_tanh")
        ),
        "logits",
        "logits",
    ),
    "vit with a pooler": Case(
        lambda: hf.ViTModel(hf.ViTConfig(**MLP)), "last_hidden_state", "tokens"
    ),
    "deit, two heads": Case(
        lambda: hf.DeiTForImageClassificationWithTeacher(hf.DeiTConfig(**MLP, **LABELS)),
        "logits",
        "logits",
    ),
    "deit, one head": Case(
        lambda: hf.DeiTForImageClassification(hf.DeiTConfig(**MLP, **LABELS)), "logits", "logits"
    ),
    "deit, no head": Case(
        lambda: hf.DeiTModel(hf.DeiTConfig(**MLP)), "last_hidden_state", "tokens"
    ),
    "convnext": Case(
        lambda: hf.ConvNextForImageClassification(hf.ConvNextConfig(**STAGES, **LABELS)),
        "logits",
        "logits",
    ),
    "convnext without layer scale": Case(
        lambda: hf.ConvNextModel(hf.ConvNextConfig(**STAGES, layer_scale_init_value=0.0)),
        "pooler_output",
        "features",
    ),
    "convnextv2": Case(
        lambda: hf.ConvNextV2ForImageClassification(hf.ConvNextV2Config(**STAGES, **LABELS)),
        "logits",
        "logits",
    ),
    "dinov3_convnext": Case(
        lambda: hf.DINOv3ConvNextModel(hf.DINOv3ConvNextConfig(**MAPS)),
        "pooler_output",
        "features",
    ),
    "dinov2": Case(lambda: hf.Dinov2Model(hf.Dinov2Config(**SIZES)), "last_hidden_state", "tokens"),
    "dinov2 features": Case(
        lambda: hf.Dinov2Model(hf.Dinov2Config(**SIZES, mlp_ratio=2)), "pooler_output", "features"
    ),
    "dinov2 with registers": Case(
        lambda: hf.Dinov2WithRegistersModel(
            hf.Dinov2WithRegistersConfig(**SIZES, num_register_tokens=3)
        ),
        "last_hidden_state",
        "tokens",
    ),
    "dinov2 g": Case(
        lambda: hf.Dinov2Model(hf.Dinov2Config(**SIZES, mlp_ratio=2, use_swiglu_ffn=True)),
        "last_hidden_state",
        "tokens",
    ),
    "dinov3": Case(
        lambda: hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**MLP, num_register_tokens=3)),
        "last_hidden_state",
        "tokens",
    ),
    "dinov3 s+": Case(
        lambda: hf.DINOv3ViTModel(
            hf.DINOv3ViTConfig(**MLP, use_gated_mlp=True, hidden_act="silu", num_register_tokens=3)
        ),
        "pooler_output",
        "features",
    ),
    "dinov3 7b": Case(
        lambda: hf.DINOv3ViTModel(
            hf.DINOv3ViTConfig(**MLP, query_bias=False, value_bias=False, num_register_tokens=3)
        ),
        "last_hidden_state",
        "tokens",
    ),
    "siglip": Case(
        lambda: hf.SiglipVisionModel(hf.SiglipVisionConfig(**MLP)), "pooler_output", "features"
    ),
    "siglip, both towers": Case(
        lambda: hf.SiglipModel(hf.SiglipConfig(vision_config=MLP, text_config=TEXT)).vision_model,
        "pooler_output",
        "features",
    ),
    "siglip classes": Case(
        lambda: hf.SiglipForImageClassification(hf.SiglipConfig(vision_config=MLP, **LABELS)),
        "logits",
        "logits",
    ),
    "clip": Case(
        lambda: hf.CLIPVisionModel(hf.CLIPVisionConfig(**MLP)), "pooler_output", "features"
    ),
    "clip's projection": Case(
        lambda: hf.CLIPVisionModelWithProjection(hf.CLIPVisionConfig(**MLP, projection_dim=6)),
        "image_embeds",
        "logits",
        {"num_classes": 6},
    ),
    "vit_mae": Case(
        lambda: hf.ViTMAEModel(hf.ViTMAEConfig(**MLP, mask_ratio=0.0)),
        "last_hidden_state",
        "tokens",
    ),
}


def forward(model: Any, image: np.ndarray, name: str, **more: Any) -> np.ndarray:
    with torch.no_grad():
        return getattr(model(pixel_values=to_torch(image), **more), name).numpy()


def loaded(folder: Path, **fields: Any) -> Trained:
    return inference.load(f"hf:{folder}", overrides=fields, headless=True)


def run(model: Trained, image: np.ndarray) -> Any:
    with jax.default_matmul_precision("highest"):
        return jax.jit(models.create(model.model).apply)(model.variables, image)


@pytest.mark.parametrize("name", CASES)
def test_a_saved_network_computes_the_same_here(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    theirs = randomise(case.build(), 0)
    theirs.save_pretrained(tmp_path)
    image = np.random.default_rng(1).normal(size=(2, 16, 16, 3)).astype(np.float32)
    more = {}
    if name == "vit_mae":  # it shuffles even what it does not mask
        more["noise"] = torch.arange(16.0).expand(2, 16)
    expected = forward(theirs, image, case.theirs, **more)
    found = loaded(tmp_path, **case.fields)
    assert_close(np.asarray(getattr(run(found, image), case.ours)), expected, TOLERANCE)


def test_masked_pretraining_leaves_its_decoder(tmp_path: Path) -> None:
    theirs = randomise(hf.ViTMAEForPreTraining(hf.ViTMAEConfig(**MLP, mask_ratio=0.0)), 0)
    theirs.save_pretrained(tmp_path)
    image = np.random.default_rng(1).normal(size=(2, 16, 16, 3)).astype(np.float32)
    noise = torch.arange(16.0).expand(2, 16)
    expected = forward(theirs.vit, image, "last_hidden_state", noise=noise)
    assert_close(np.asarray(run(loaded(tmp_path), image).tokens), expected, TOLERANCE)


def test_positions_are_resampled_as_there(tmp_path: Path) -> None:
    theirs = randomise(hf.Dinov2Model(hf.Dinov2Config(**SIZES)), 0)
    theirs.save_pretrained(tmp_path)
    image = np.random.default_rng(1).normal(size=(2, 24, 28, 3)).astype(np.float32)
    expected = forward(theirs, image, "last_hidden_state")
    found = loaded(tmp_path, image_size=(24, 28))
    assert_close(np.asarray(run(found, image).tokens), expected, TOLERANCE)


def test_a_head_over_two_vectors_is_refused_and_left_out(tmp_path: Path) -> None:
    theirs = randomise(hf.Dinov2ForImageClassification(hf.Dinov2Config(**SIZES, **LABELS)), 0)
    theirs.save_pretrained(tmp_path)
    with refused_by("weights.names.hf._of_class_token"):
        loaded(tmp_path)
    image = np.random.default_rng(1).normal(size=(2, 16, 16, 3)).astype(np.float32)
    expected = forward(theirs.dinov2, image, "pooler_output")
    found = loaded(tmp_path, num_classes=0)
    assert_close(np.asarray(run(found, image).features), expected, TOLERANCE)


_VIT = TINY["vit"]
_CONVNEXT: Any = TINY["convnext"]
WRITTEN: dict[str, tuple[Any, Any, str]] = {
    "vit": (_VIT, hf.AutoModelForImageClassification, "logits"),
    "fixed positions, no biases": (
        dataclasses.replace(
            _VIT, pos_embed=PosEmbed.SINCOS2D, qkv_bias=False, patch_bias=False, channels=1
        ),
        hf.AutoModelForImageClassification,
        "logits",
    ),
    "no table of the class token": (
        dataclasses.replace(_VIT, pos_embed_prefix=False, gelu=Gelu.QUICK),
        hf.AutoModelForImageClassification,
        "logits",
    ),
    "vit, features": (dataclasses.replace(_VIT, num_classes=0), hf.AutoModel, "last_hidden_state"),
    "distilled": (TINY["deit"], hf.DeiTForImageClassificationWithTeacher, "logits"),
    "layer scale": (
        dataclasses.replace(_VIT, layer_scale=0.1),
        hf.AutoModelForImageClassification,
        "logits",
    ),
    "registers": (
        dataclasses.replace(_VIT, num_registers=2),
        hf.AutoModelForImageClassification,
        "logits",
    ),
    "registers without positions": (
        dataclasses.replace(
            _VIT, num_registers=2, pos_embed_prefix=False, layer_scale=0.1, num_classes=0
        ),
        hf.AutoModel,
        "last_hidden_state",
    ),
    "mean of patches": (
        dataclasses.replace(_VIT, class_token=False, pool=Pool.GAP),
        hf.AutoModelForImageClassification,
        "logits",
    ),
    "dinov3": (DINOV3, hf.AutoModel, "last_hidden_state"),
    "convnext": (
        dataclasses.replace(_CONVNEXT, grn=False, image_size=(16, 16)),
        hf.AutoModelForImageClassification,
        "logits",
    ),
    "convnextv2": (
        dataclasses.replace(_CONVNEXT, layer_scale=0.0, image_size=(16, 16)),
        hf.AutoModelForImageClassification,
        "logits",
    ),
    "dinov3_convnext": (
        dataclasses.replace(_CONVNEXT, grn=False, num_classes=0, image_size=(16, 16)),
        hf.AutoModel,
        "pooler_output",
    ),
    "dinov2 g": (dataclasses.replace(GATED, mlp_dim=24), hf.AutoModel, "last_hidden_state"),
    "attention pooling": (
        dataclasses.replace(_VIT, class_token=False, pool=Pool.MAP, num_classes=0),
        hf.AutoModel,
        "pooler_output",
    ),
    "aimv2": (AIMV2, hf.AutoModel, "pooler_output"),
    "clip": (
        dataclasses.replace(
            _VIT, pre_norm=True, patch_bias=False, gelu=Gelu.QUICK, norm_eps=1e-5, num_classes=0
        ),
        hf.AutoModel,
        "pooler_output",
    ),
}
_OURS = {"pooler_output": "features", "last_hidden_state": "tokens", "logits": "logits"}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_written_folder_computes_the_same_there(name: str, tmp_path: Path) -> None:
    cfg, auto, output = WRITTEN[name]
    cfg = dataclasses.replace(cfg, image_size=(cfg.image_size[0],))
    ours = trained(cfg)
    transformers_folder.check(ours)
    for file, data in transformers_folder.make(ours).items():
        (tmp_path / file).write_bytes(data)
    theirs, told = auto.from_pretrained(tmp_path, output_loading_info=True)
    missing = {key for key in told["missing_keys"] if "pooler" not in key}
    assert not missing
    assert not told["unexpected_keys"]
    assert not told["mismatched_keys"]
    image = images(ours)
    expected = forward_of(ours, image, _OURS[output])
    normal = normalized(image, ours)
    assert_close(forward(theirs.eval(), normal, output), expected, TOLERANCE)
    # And back again.
    again = loaded(tmp_path)
    standard = transformers_folder.standard(cfg)
    fields = {"init": again.model.init} if hasattr(standard, "init") else {}
    assert again.model == dataclasses.replace(
        standard,
        **fields,
        zero_head=again.model.zero_head,
        scan_unroll=0,
        image_size=again.model.image_size,
    )
    assert_close(forward_of(again, image, _OURS[output]), expected, TOLERANCE)
    assert (again.class_names, again.transform.crop) == (ours.class_names, ours.transform.crop)


def forward_of(model: Trained, image: np.ndarray, name: str) -> np.ndarray:
    return np.asarray(getattr(run(model, normalized(image, model)), name))


def normalized(image: np.ndarray, model: Trained) -> np.ndarray:
    return (image / np.float32(255) - np.float32(model.mean)) / np.float32(model.std)


def test_defaults_are_those_of_their_classes() -> None:
    configs = {
        "vit": hf.ViTConfig,
        "deit": hf.DeiTConfig,
        "vit_mae": hf.ViTMAEConfig,
        "ijepa": hf.IJepaConfig,
        "dinov2": hf.Dinov2Config,
        "dinov2_with_registers": hf.Dinov2WithRegistersConfig,
        "siglip_vision_model": hf.SiglipVisionConfig,
        "siglip2_vision_model": hf.Siglip2VisionConfig,
        "clip_vision_model": hf.CLIPVisionConfig,
        "dinov3_vit": hf.DINOv3ViTConfig,
        "convnext": hf.ConvNextConfig,
        "convnextv2": hf.ConvNextV2Config,
        "dinov3_convnext": hf.DINOv3ConvNextConfig,
        "aimv2_vision_model": hf.Aimv2VisionConfig,
        "eomt": hf.EomtConfig,
        "eomt_dinov3": hf.EomtDinov3Config,
    }
    assert configs.keys() == hf_config.KINDS.keys()
    for kind, config in configs.items():
        theirs = config().to_dict()
        assert theirs["model_type"] == kind
        for key, value in hf_config.KINDS[kind].defaults.items():
            assert theirs.get(key, value) == value, (kind, key)
