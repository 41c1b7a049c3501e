# SPDX-License-Identifier: Apache-2.0
"""What timm needs to build one of our models: config.json of its form on the Hugging Face Hub.

A timm model is an architecture, a function of timm's, and arguments that change its sizes. What an
architecture fixes is refused by name where a model has it otherwise.
"""

from typing import Any

from vit_jax import models
from vit_jax.data import Crop, Resize
from vit_jax.errors import UserError
from vit_jax.inference.trained import Trained
from vit_jax.models import ModelConfig
from vit_jax.weights import timm as timm_names

_CUTTING = (Crop.CENTER, Crop.SQUASH_CENTER)


def hub_config(trained: Trained) -> dict[str, Any]:
    """Return config.json, from which `timm.create_model("local-dir:FOLDER")` builds the model.

    Raises UserError: timm has no architecture for it; the field is named.
    """
    cfg, family = trained.model, models.family(trained.model)
    if family.timm is None:
        raise UserError(
            f"{family.name} names no architecture of timm's; give its FAMILY in "
            "vit_jax/models a timm, or choose --format=stablehlo"
        )
    architecture, args, fixed, first = family.timm(cfg)
    for name, value in fixed.items():
        found = getattr(cfg, name)
        if found != value:
            shown = f"{value:g}" if isinstance(value, float) else value
            raise UserError(
                f"timm's {architecture} has model.{name}={shown}, not {found}; where the weights "
                f"bear it, change it by --model.{name}={shown}"
            )
    height, width = trained.image_size
    channels, transform = trained.channels, trained.transform
    cubic = transform.resize in (Resize.BICUBIC, Resize.BICUBIC_NO_ANTIALIAS)
    classifier = [_layer("head", cfg)]
    if getattr(cfg, "distilled", False):
        classifier.append(_layer("head_dist", cfg))
    return {
        "architecture": architecture,
        "num_classes": cfg.num_classes,
        "model_args": args,
        "label_names": list(trained.class_names),
        "pretrained_cfg": {
            "input_size": [channels, height, width],
            "fixed_input_size": "img_size" in args,
            "interpolation": "bicubic" if cubic else "bilinear",
            "crop_pct": transform.crop_ratio if transform.crop in _CUTTING else 1.0,
            "crop_mode": "center" if transform.crop is Crop.CENTER else "squash",
            "mean": _per_channel(trained.mean, channels),
            "std": _per_channel(trained.std, channels),
            "first_conv": _layer(first, cfg),
            "classifier": classifier if len(classifier) > 1 else classifier[0],
        },
    }


def _layer(name: str, cfg: ModelConfig) -> str:
    return timm_names.key(f"{name}/kernel", cfg).removesuffix(".weight")


def _per_channel(values: tuple[float, ...], channels: int) -> list[float]:
    return list(values) * (channels if len(values) == 1 else 1)
