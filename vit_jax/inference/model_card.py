# SPDX-License-Identifier: Apache-2.0
"""README.md of an export: what the model is, how it was measured, how to load it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vit_jax import trees
from vit_jax.data import Resize
from vit_jax.inference.export_check import Change
from vit_jax.inference.export_folder import CLASSES, MARK, WEIGHTS
from vit_jax.inference.trained import Trained, changes
from vit_jax.losses import Loss

# The loader that the Hub's page offers.
_LIBRARY = {"timm": "timm", "onnx": "onnx", "stablehlo": "jax"}


def card(
    trained: Trained, form: str, change: Change, description: Mapping[str, Any], name: str
) -> str:
    """Write the model card of an export, as the Hugging Face Hub shows it.

    Args:
        trained: the model, with its weights.
        form: "stablehlo", "onnx" or "timm".
        change: what the export changed.
        description: the contents of export.json.
        name: the title.
    """
    height, width = trained.image_size
    load = (
        Path(__file__)
        .with_name(f"load_{form}.md")
        .read_text("utf-8")
        .rstrip()
        .format(
            weights=WEIGHTS[form],
            height=height,
            width=width,
            channels=trained.channels,
            classes=trained.model.num_classes,
            jax=description.get("jax", ""),
        )
    )
    parts = [
        _header(form),
        f"# {name}",
        _what(trained, form, description),
        "## Use",
        load,
        "## Input and output",
        _preprocessing(trained, form),
        "## Evaluation",
        _evaluation(trained, change),
        "## Limits",
        _limits(trained, form),
    ]
    return "\n\n".join(parts) + "\n"


def _header(form: str) -> str:
    tags = "".join(f"\n- {tag}" for tag in ("image-classification", "vit_jax", form))
    return (
        f"---\nlibrary_name: {_LIBRARY[form]}\npipeline_tag: image-classification\n"
        f"tags:{tags}\nmetrics:\n- accuracy\n---"
    )


def _what(trained: Trained, form: str, description: Mapping[str, Any]) -> str:
    family = type(trained.model).__name__.removesuffix("Config")
    count = trees.num_params(trained.variables["params"])
    height, width = trained.image_size
    text = (
        f"An image classifier ({family}, {count:,} parameters, {width} x {height} pixels, "
        f"{trained.channels} channel{'s' if trained.channels > 1 else ''}, "
        f"{trained.model.num_classes:,} classes), stored for {form} with weights in "
        f"{description['dtype']} by vit_jax {description['vit_jax']}."
    )
    cfg = trained.config
    if cfg is None:
        return f"{text} The weights were read from `{description['from']}`."
    dataset = description["config"]["data"]["name"]  # without the folders of this machine
    return (
        f"{text} It was trained on `{dataset}` [{cfg.data.train_split}] for "
        f"{cfg.duration} with seed {cfg.seed}; these are the "
        f"{'moving average of the weights' if trained.ema else 'weights'} after "
        f"{trained.step:,} steps{_changed(trained)}. The run's config is in `{MARK}`."
    )


def _changed(trained: Trained) -> str:
    listed = ", ".join(f"`{change}`" for change in changes(trained))
    return f", changed since to {listed}" if listed else ""


def _preprocessing(trained: Trained, form: str) -> str:
    transform, (height, width) = trained.transform, trained.image_size
    sized = {
        "center": f"the short side resized to the model's over {transform.crop_ratio:g}, the "
        "centre cut out",
        "squash_center": f"the whole image squashed to the model's size over "
        f"{transform.crop_ratio:g}, the centre cut out",
        "resize": "the whole image squashed to size",
        "none": "images of that size as they are",
    }[transform.crop.value]
    scale = (
        "the pixels go in as they are, 0 to 255: normalisation is part of the model"
        if form != "timm"
        else f"then (pixel / 255 - mean) / std with mean {list(trained.mean)} and std "
        f"{list(trained.std)}"
    )
    layout = f"[B, {height}, {width}, {trained.channels}]"
    if form == "timm":
        layout = f"[B, {trained.channels}, {height}, {width}]"
    probability = "softmax" if trained.loss is Loss.SOFTMAX else "the sigmoid of each"
    return (
        f"Images {layout}: {sized} ({transform.resize.value} interpolation); {scale}. Logits "
        f"[B, {trained.model.num_classes}], of which {probability} makes probabilities; the names "
        f"of the classes are in `{CLASSES}`, in order."
    )


def _evaluation(trained: Trained, change: Change) -> str:
    measured = {
        name: value for name, value in trained.metrics.items() if not name.endswith("/num_examples")
    }
    text = "No measurement came with the weights."
    if measured:
        rows = "\n".join(
            f"| {name} | {value:.2%} |" if "/top" in name else f"| {name} | {value:.4f} |"
            for name, value in sorted(measured.items())
        )
        without = " and without the changes named above" if changes(trained) else ""
        text = (
            f"Measured by the run, before this export{without}:"
            f"\n\n| evaluation | value |\n|---|--:|\n{rows}"
        )
    return f"{text}\n\nAgainst the model before the export: {change}."


# Filters that timm's transforms, which are Pillow's, do not have.
_FILTERS = {
    Resize.AREA: "by the mean over each pixel's footprint (area)",
    Resize.BILINEAR: "bilinearly without antialiasing",
    Resize.BICUBIC_NO_ANTIALIAS: "bicubically without antialiasing",
}


def _limits(trained: Trained, form: str) -> str:
    resizing = _FILTERS.get(trained.transform.resize) if form == "timm" else None
    text = f"The model was evaluated on images resized {resizing}. timm's transform has none such; "
    text += "`config.json` names the nearest, which is antialiased, and accuracy may differ.\n\n"
    return (text if resizing else "") + (
        f"It chooses among {trained.model.num_classes:,} classes, whatever an image shows. How it "
        "does on other cameras, places, people or corruptions than those of its data was not "
        "measured unless this page says so, and its probabilities are not calibrated. No licence "
        "is stated here: those of the data and of the weights apply."
    )
