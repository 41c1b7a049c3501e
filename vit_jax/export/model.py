# SPDX-License-Identifier: Apache-2.0
"""A trained model as files that other programs run: the contents of an export's folder."""

import dataclasses
import enum
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy

import vit_jax
from vit_jax import models, trees, weights
from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config
from vit_jax.data import Crop, Resize
from vit_jax.errors import UserError
from vit_jax.export import card as model_card
from vit_jax.export import folder as export_folder
from vit_jax.export import onnx as export_onnx
from vit_jax.export import onnx_quantize, outputs, quantize
from vit_jax.export import stablehlo as export_stablehlo
from vit_jax.export.folder import Change
from vit_jax.export.quantize import WeightDType
from vit_jax.inference import labels
from vit_jax.inference.forward import make_forward, output_name
from vit_jax.inference.trained import Trained
from vit_jax.models import ModelConfig
from vit_jax.weights import export as weights_export
from vit_jax.weights.config import KINDS
from vit_jax.weights.names import timm as timm_names
from vit_jax.weights.readers import repository


class Format(enum.StrEnum):
    """What is to run the model."""

    STABLEHLO = "stablehlo"  # jax alone
    ONNX = "onnx"  # ONNX Runtime and whatever else reads ONNX
    TIMM = "timm"  # PyTorch


def check(trained: Trained, form: Format, dtype: WeightDType) -> None:
    """Refuse what cannot be exported so, before weights are read.

    Raises UserError: naming what stands in the way.
    """
    if form is Format.ONNX:
        export_onnx.require()
        if dtype is WeightDType.BFLOAT16:
            raise UserError(
                "--dtype=bfloat16 is for stablehlo and timm; --format=onnx has float32 and int8"
            )
    if dtype is WeightDType.INT8 and form is Format.TIMM:
        raise UserError(
            "--dtype=int8 is for stablehlo and onnx; timm's layers have no scales; PyTorch "
            "quantises a loaded model: torchao"
        )
    if form is Format.TIMM:
        weights_export.check(trained.model)
        hub_config(trained)


def make(
    trained: Trained, form: Format, dtype: WeightDType, *, name: str
) -> tuple[dict[str, bytes], Change]:
    """Return the files of an export that `check` lets pass, and what it changed.

    `trained` has its weights; `name` is the model card's title.

    Raises UserError: the format cannot hold this model.
    """
    packed = quantize.pack(trained.variables, dtype)
    files: dict[str, bytes] = {}
    run: Callable[[Any], Any]
    if form is Format.STABLEHLO:
        data, files[export_folder.ARRAYS] = export_stablehlo.serialize(trained, packed)
        run = export_stablehlo.runner(data, files[export_folder.ARRAYS])
    elif form is Format.ONNX:
        data = export_onnx.serialize(trained)
        data = onnx_quantize.quantized(data) if dtype is WeightDType.INT8 else data
        run = export_onnx.runner(data)
    else:
        state = weights.to_timm(packed, trained.model)
        data = safetensors.numpy.save(state, metadata={"format": "pt"})
        files[export_folder.CONFIG] = _json(hub_config(trained))
        run = _from_timm(trained, state)
    change = export_folder.compare(trained, run)
    description = _description(trained, form, dtype)
    card = model_card.card(trained, form.value, change, description, name)
    files |= {
        export_folder.WEIGHTS[form.value]: data,
        export_folder.CARD: card.encode(),
        export_folder.MARK: _json(description),
    }
    if trained.class_names:
        files[export_folder.CLASSES] = _json(list(trained.class_names))
    return files, change


def hub_config(trained: Trained) -> dict[str, Any]:
    """Return config.json, from which `timm.create_model("local-dir:FOLDER")` builds the model.

    A timm model is an architecture, a function of timm's, and arguments that change its sizes. What
    an architecture fixes is refused by name where a model has it otherwise.

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
    cut = transform.crop in (Crop.CENTER, Crop.SQUASH_CENTER)
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
            "crop_pct": transform.crop_ratio if cut else 1.0,
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


def _from_timm(trained: Trained, state: Mapping[str, np.ndarray]) -> Callable[[Any], Any]:
    # Without what timm holds besides, such as a table of fixed positions.
    model = weights_export.standard(trained.model)
    besides = weights_export.besides(state, model)
    ours = {key: value.astype(np.float32) for key, value in state.items() if key not in besides}
    variables = weights.from_timm(ours, model)
    forward = make_forward(dataclasses.replace(trained, model=model, variables=variables))
    return lambda images: getattr(forward(images), output_name(trained))


def _json(value: Any) -> bytes:
    return (json.dumps(trees.finite(value), indent=2, ensure_ascii=False) + "\n").encode()


def _description(trained: Trained, form: Format, dtype: WeightDType) -> dict[str, Any]:
    """Return the contents of the model card for programs."""
    height, width = trained.image_size
    transform = trained.transform
    sizes = outputs.shapes(trained)
    returned: list[dict[str, Any]] = [
        {"shape": ["batch", *size], "dtype": "float32", "name": name}
        | ({"means": means} if means else {})
        for size, (name, means) in zip(sizes, outputs.meanings(trained).items(), strict=True)
    ]
    found: dict[str, Any] = {
        "vit_jax": vit_jax.__version__,
        "format": form.value,
        "weights": export_folder.WEIGHTS[form.value],
        "dtype": dtype.value,
        "model": config_json.to_json(Config(model=trained.model))["model"],
        "input": {
            "shape": ["batch", height, width, trained.channels],
            "dtype": trained.dtype.name,
            "crop": transform.crop.value,
            "crop_ratio": transform.crop_ratio,
            "crop_rule": transform.crop_rule.value,
            "resize": transform.resize.value,
            "background": trained.reading.background.value,
            "upright": trained.reading.upright,
            "bands": list(trained.reading.bands),
            "mean": list(trained.mean),
            "std": list(trained.std),
            "normalization": "inside" if form is not Format.TIMM else "outside",
        },
        "output": returned[0],
        "loss": _loss(trained),
        "from": _source(trained),
        "ema": trained.ema,
        "step": trained.step,
        "metrics": dict(trained.metrics),
    }
    if len(returned) > 1:
        found["outputs"] = returned
    if trained.gives_numbers:
        found["output"]["numbers"] = list(trained.class_names)
    elif least := labels.thresholds(trained):
        found["thresholds"] = dict(zip(trained.class_names, least, strict=True))
    if form is Format.TIMM:
        found["input"] |= {"shape": ["batch", trained.channels, height, width], "dtype": "float32"}
    if form is Format.STABLEHLO:
        found |= {"jax": jax.__version__, "platforms": list(export_stablehlo.PLATFORMS)}
    if form is Format.ONNX:
        found["opset"] = export_onnx.OPSET
    if trained.config is not None:
        found["config"] = _published(trained.config)
    return found


def _loss(trained: Trained) -> str:
    own = trained.config.objective if trained.config and trained.gives_numbers else trained
    return str(getattr(own, "loss", trained.loss))


def _source(trained: Trained) -> str:
    name = _base_name(trained.ref).partition(":")[2]
    if trained.step is None:
        return name
    run = re.sub(r"@(\d+|best|latest)$", "", name)
    return f"{run}, step {trained.step}"


def _published(cfg: Config) -> dict[str, Any]:
    """Return a config as JSON without paths of this machine: an export may be published."""
    tree = config_json.to_json(cfg)
    del tree["log"], tree["data"]["data_dir"]
    distill = tree["objective"].get("distill", {})
    distill.pop("cache", None)
    places = [(tree["data"], "name"), (tree["init"], "weights"), (distill, "weights")]
    for node, field in [*places, *((each, "dataset") for each in tree["evals"].values())]:
        if field in node:
            node[field] = _base_name(node[field])
    return tree


def _base_name(ref: str) -> str:
    """Write "folder:DIR/photos" or "npz:DIR/b16.npz" without DIR; others as they are."""
    kind, colon, path = ref.partition(":")
    is_folder = kind in KINDS and repository.is_folder(path)
    local = ("folder", "csv", "tar", "parquet", "npz", "timm", "ckpt")
    if kind not in local and not is_folder:
        return ref
    return f"{kind}{colon}{Path(path).expanduser().resolve().name}"
