# SPDX-License-Identifier: Apache-2.0
"""README.md of an export: what the model is, how it was measured, how to load it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vit_jax import trees
from vit_jax.data import Background, Reading, Resize
from vit_jax.data.config import WHITE
from vit_jax.export import outputs
from vit_jax.export.folder import ARRAYS, CLASSES, MARK, WEIGHTS, Change
from vit_jax.inference import labels
from vit_jax.inference.trained import Trained, changes
from vit_jax.models.losses import Loss
from vit_jax.process.escapes import code, markdown
from vit_jax.settings import measures

# The loader that the Hub's page offers.
_LIBRARY = {"timm": "timm", "onnx": "onnx", "stablehlo": "jax"}
# The Hub's name of the metric by which models of a task are listed.
_JUDGED = {"image-classification": "accuracy", "image-segmentation": "mean_iou"}
_SIZED = {
    "center": "the short side resized to the model's over {ratio:g}, the centre cut out",
    "squash_center": "the whole image squashed to the model's size over {ratio:g}, the centre cut "
    "out",
    "resize": "the whole image squashed to size",
    "none": "images of that size as they are",
}
# Filters that timm's transforms, which are Pillow's, do not have.
_FILTERS = {
    Resize.AREA: "by the mean over each pixel's footprint (area)",
    Resize.BILINEAR: "bilinearly without antialiasing",
    Resize.BICUBIC_NO_ANTIALIAS: "bicubically without antialiasing",
}


def card(
    trained: Trained, form: str, change: Change, description: Mapping[str, Any], name: str
) -> str:
    """Write the model card of an export, as the Hugging Face Hub shows it.

    `trained` has its weights, `form` is "stablehlo", "onnx" or "timm", `description` the contents
    of export.json, and `name` the title.
    """
    height, width = trained.image_size
    channels, transform = trained.channels, trained.transform
    named, sizes = outputs.meanings(trained), outputs.shapes(trained)
    values = {
        "form": form,
        "height": height,
        "width": width,
        "channels": channels,
        "output": ", ".join(named),
        "quoted": ", ".join(f'"{each}"' for each in named),
        "shapes": " and ".join(f"[{', '.join(map(str, (2, *size)))}]" for size in sizes),
        "pixels": trained.dtype.name,
    }
    names = {"weights": WEIGHTS[form], "arrays": ARRAYS, "jax": description.get("jax", "")}
    load = _text(f"load_{form}.md", **names, **values)
    layout = f"[B, {height}, {width}, {channels}]"
    white = WHITE[trained.reading.dtype]
    span = f", 0 to {white}" if white > 1 else f" ({trained.dtype})"
    scale = f"the pixels go in as they are{span}: normalisation is part of the model"
    resizing = ""
    if form == "timm":
        layout = f"[B, {channels}, {height}, {width}]"
        mean, std = list(trained.mean), list(trained.std)
        scale = f"then (pixel / {white} - mean) / std with mean {mean} and std {std}"
        resizing = _resizing(transform.resize)
    purpose = _purpose(trained, sizes[0][-1])
    judged = _JUDGED.get(purpose["task"], "")
    return _text(
        "card.md",
        metrics=f"\nmetrics:\n- {judged}" if judged else "",
        library=_LIBRARY[form],
        name=markdown(name),
        family=type(trained.model).__name__.removesuffix("Config"),
        params=trees.num_params(trained.variables["params"]),
        s="s" if channels > 1 else "",
        dtype=description["dtype"],
        version=description["vit_jax"],
        origin=_origin(trained, description),
        load=load.rstrip(),
        layout=layout,
        read=_read(trained.reading),
        sized=_SIZED[transform.crop.value].format(ratio=transform.crop_ratio),
        resize=transform.resize.value,
        scale=scale,
        measured=_measured(trained),
        change=change,
        resizing=resizing,
        **purpose,
        **values,
    )


def _read(reading: Reading) -> str:
    """Return what becomes of a file before it is brought to size."""
    if reading.bands:
        which = "all" if reading.bands == ("all",) else ", ".join(map(markdown, reading.bands))
        return f"bands of {reading.dtype} as they are stored ({which})"
    turned = "turned upright (EXIF)" if reading.upright else "as they are stored (EXIF ignored)"
    if reading.background is Background.DROP:
        return f"{turned}, an alpha channel dropped"
    return f"{turned}, on {reading.background.value} where transparent"


def _purpose(trained: Trained, outputs: int) -> dict[str, str]:
    """Return what the card says of a classifier, or of a model without a head."""
    if trained.head is not None:
        return _pixels(trained)
    if not trained.model.num_classes:
        return {
            "task": "image-feature-extraction",
            "kind": "encoder without a head",
            "count": f"{outputs:,} features an image",
            "returns": f"Features [B, {outputs}], what a head would see.",
            "chooses": "",
            "calibrated": "",
        }
    if trained.gives_numbers:
        return {
            "task": "other",
            "kind": "model of numbers",
            "count": f"{outputs:,} numbers an image",
            "returns": f"Numbers [B, {outputs}] in the units of the data it was trained on; what "
            f"each is, is in `{CLASSES}`, in order.",
            "chooses": "",
            "calibrated": "",
        }
    least = labels.thresholds(trained)
    if least:
        return {
            "task": "image-classification",
            "kind": "classifier of several labels",
            "count": f"{outputs:,} labels",
            "returns": f"Logits [B, {outputs}], of which the sigmoid of each makes probabilities; "
            f"the names of the labels are in `{CLASSES}`, in order, and the probability from which "
            f"a label counts as seen is in `{MARK}` (thresholds).",
            "chooses": f"It looks for {outputs:,} labels, and for nothing else in an image. ",
            "calibrated": ", and its probabilities are not calibrated",
        }
    probability = "softmax" if trained.loss is Loss.SOFTMAX else "the sigmoid of each"
    return {
        "task": "image-classification",
        "kind": "classifier",
        "count": f"{outputs:,} classes",
        "returns": f"Logits [B, {outputs}], of which {probability} makes probabilities; the names "
        f"of the classes are in `{CLASSES}`, in order.",
        "chooses": f"It chooses among {outputs:,} classes, whatever an image shows. ",
        "calibrated": ", and its probabilities are not calibrated",
    }


def _pixels(trained: Trained) -> dict[str, str]:
    """Return what the card says of a model of pixels."""
    named = outputs.meanings(trained)
    listed = "; ".join(f"`{name}`: {meaning}" for name, meaning in named.items())
    if "depth" in named:
        return {
            "task": "depth-estimation",
            "kind": "model of depth",
            "count": "one depth a pixel",
            "returns": f"{listed}.",
            "chooses": "",
            "calibrated": "",
        }
    return {
        "task": "image-segmentation",
        "kind": "model of segmentation",
        "count": f"{len(trained.class_names):,} classes",
        "returns": f"{listed}. The names of the classes are in `{CLASSES}`, in order.",
        "chooses": f"It chooses among {len(trained.class_names):,} classes. ",
        "calibrated": ", and its scores are not calibrated",
    }


def _text(file: str, **values: Any) -> str:
    return Path(__file__).with_name(file).read_text("utf-8").format(**values)


def _origin(trained: Trained, description: Mapping[str, Any]) -> str:
    cfg = trained.config
    if cfg is None:
        return f"The weights were read from {code(description['from'])}."
    dataset = description["config"]["data"]["name"]  # without the folders of this machine
    weights = "moving average of the weights" if trained.ema else "weights"
    listed = ", ".join(map(code, changes(trained)))
    changed = f", changed since to {listed}" if listed else ""
    return (
        f"It was trained on {code(dataset)} [{markdown(cfg.data.train_split)}] for "
        f"{markdown(cfg.duration)} with seed "
        f"{cfg.seed}; these are the {weights} after {trained.step:,} steps{changed}. The run's "
        f"config is in `{MARK}`."
    )


def _measured(trained: Trained) -> str:
    rows = [
        f"| {markdown(name)} | {value:.2%} |"
        if (found := measures.of(name)) and found.unit == "%"
        else f"| {markdown(name)} | {value:.4f} |"
        for name, value in sorted(trained.metrics.items())
        if not name.endswith("/num_examples")
    ]
    if not rows:
        return "No measurement came with the weights."
    without = " and without the changes named above" if changes(trained) else ""
    head = [f"Measured by the run, before this export{without}:", "", "| evaluation | value |"]
    return "\n".join([*head, "|---|--:|", *rows])


def _resizing(resize: Resize) -> str:
    if resize not in _FILTERS:
        return ""
    return (
        f"The model was evaluated on images resized {_FILTERS[resize]}. timm's transform has none "
        "such; `config.json` names the nearest, which is antialiased, and accuracy may differ.\n\n"
    )
