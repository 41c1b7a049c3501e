# SPDX-License-Identifier: Apache-2.0
"""Small datasets of the features that TFDS gives those of VTAB, and the labels worked out by hand.

Every split has 40 examples; the pixels of example i are i, of dsprites i % 2.
"""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

COUNT = 40
F = tfds.features


def _vector() -> Any:
    return F.Tensor(shape=(3,), dtype=np.float32)


def _number() -> Any:
    return F.Tensor(shape=(), dtype=np.float32)


def _plain(num_classes: int) -> tuple[dict[str, Any], Callable[[int], dict[str, Any]]]:
    return {"label": F.ClassLabel(num_classes=num_classes)}, lambda i: {"label": i % num_classes}


def _clevr() -> tuple[dict[str, Any], Callable[[int], dict[str, Any]]]:
    objects = {
        "color": F.ClassLabel(names=["gray", "blue"]),
        "size": F.ClassLabel(names=["small", "large"]),
        "rotation": _number(),
        "3d_coords": _vector(),
        "pixel_coords": _vector(),
    }
    features = {
        "file_name": F.Text(),
        "objects": F.Sequence(objects),
        "question_answer": F.Sequence({"question": F.Text(), "answer": F.Text()}),
    }

    def example(i: int) -> dict[str, Any]:
        # 3 to 10 objects, the nearest the last of them.
        scene = [
            {
                "color": 0,
                "size": 1,
                "rotation": 0.5,
                "3d_coords": [0.0, 0.0, 0.0],
                "pixel_coords": [300.0, 2.0, CLEVR_NEAREST[i % len(CLEVR_NEAREST)] + far],
            }
            for far in range(2 + i % 8, -1, -1)
        ]
        asked = [{"question": "Why?", "answer": "yes"}] * 2
        return {"file_name": f"{i}.png", "objects": scene, "question_answer": asked}

    return features, example


def _kitti() -> tuple[dict[str, Any], Callable[[int], dict[str, Any]]]:
    kinds = ["Car", "Van", "Truck", "Pedestrian", "Person_sitting", "Cyclist", "Tram", "Misc"]
    objects = {
        "type": F.ClassLabel(names=kinds),
        "truncated": _number(),
        "bbox": F.BBoxFeature(),
        "dimensions": _vector(),
        "location": _vector(),
    }
    features = {"image/file_name": F.Text(), "objects": F.Sequence(objects)}

    def example(i: int) -> dict[str, Any]:
        box = F.BBox(ymin=0.0, xmin=0.0, ymax=0.5, xmax=0.5)
        rest = {"truncated": 0.0, "bbox": box, "dimensions": [1.0, 2.0, 3.0]}
        scene = [
            {"type": kind, "location": [-1.0, 1.5, z], **rest}
            for kind, z in KITTI_SCENES[i % len(KITTI_SCENES)]
        ]
        return {"image/file_name": f"{i}.png", "objects": scene}

    return features, example


def _dsprites() -> tuple[dict[str, Any], Callable[[int], dict[str, Any]]]:
    counts = {"shape": 3, "scale": 6, "orientation": 40, "x_position": 32, "y_position": 32}
    features: dict[str, Any] = {"id": F.Text()}
    for name, count in counts.items():
        features[f"label_{name}"] = F.ClassLabel(num_classes=count)
        features[f"value_{name}"] = _number()

    def example(i: int) -> dict[str, Any]:
        labels = {f"label_{name}": i % count for name, count in counts.items()}
        return {"id": str(i), **labels, **{f"value_{name}": 0.5 for name in counts}}

    return features, example


def _smallnorb() -> tuple[dict[str, Any], Callable[[int], dict[str, Any]]]:
    counts = {"category": 5, "elevation": 9, "azimuth": 18, "lighting": 6}
    features = {f"label_{name}": F.ClassLabel(num_classes=n) for name, n in counts.items()}
    features |= {"image2": F.Image(shape=(4, 4, 1), encoding_format="png")}
    features |= {"instance": F.ClassLabel(num_classes=10)}

    def example(i: int) -> dict[str, Any]:
        labels = {f"label_{name}": i % n for name, n in counts.items()}
        return {**labels, "image2": png(0), "instance": 0}

    return features, example


# By number of the example, over and over: the nearest object, and the class of its distance.
CLEVR_NEAREST = (7.5, 8.0, 8.25, 8.5, 9.0, 9.25, 9.75, 10.5)
CLEVR_DISTANCE = (0, 0, 1, 1, 2, 3, 4, 5)
# The objects of a scene and their distances, and the class of the nearest vehicle's.
KITTI_SCENES = (
    (("Car", 30.0), ("Van", 7.5), ("Pedestrian", 3.0)),
    (("Truck", 8.0),),
    (("Car", 8.5), ("Truck", 25.0)),
    (("Van", 20.5), ("Cyclist", 2.0)),
    (("Pedestrian", 4.0), ("Tram", 9.0), ("Misc", 1.0)),
)
KITTI_DISTANCE = (0, 0, 1, 2, 3)

_DATASETS: dict[str, tuple[str, str, Any]] = {
    "caltech101": ("3.0.2", "train test", _plain(102)),
    "cifar100": ("3.0.2", "train test", _plain(100)),
    "dtd": ("3.0.1", "train validation test", _plain(47)),
    "oxford_flowers102": ("2.1.1", "train validation test", _plain(102)),
    "oxford_iiit_pet": ("3.2.0", "train test", _plain(37)),
    "sun397/tfds": ("4.0.0", "train validation test", _plain(397)),
    "svhn_cropped": ("3.0.0", "train test", _plain(10)),
    "patch_camelyon": ("2.0.0", "train validation test", _plain(2)),
    "eurosat/rgb": ("2.0.0", "train", _plain(10)),
    "resisc45": ("3.0.0", "train", _plain(45)),
    "diabetic_retinopathy_detection/btgraham-300": (
        "3.0.0",
        "train validation test",
        _plain(5),
    ),
    "clevr": ("3.1.0", "train validation", _clevr()),
    "dmlab": ("2.0.1", "train validation test", _plain(6)),
    "dsprites": ("2.0.0", "train", _dsprites()),
    "kitti": ("3.2.0", "train validation test", _kitti()),
    "smallnorb": ("2.0.0", "train test", _smallnorb()),
}


def png(value: int) -> io.BytesIO:
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4), value, np.uint8)).save(file, "PNG")
    file.seek(0)
    return file


def prepare(root: Path, only: str = "") -> None:
    """Write all of them, or one."""
    for name, (version, splits, (features, example)) in _DATASETS.items():
        if only not in ("", name):
            continue
        base, _, config = name.partition("/")
        channels = 1 if base in ("dsprites", "smallnorb") else None
        shape = (None, None, channels or 1)
        info = F.FeaturesDict({"image": F.Image(shape=shape, encoding_format="png"), **features})
        main = [key for key in ("label", "label_category") if key in features]
        keys = ("image", *main) if main else None

        class Builder(tfds.core.GeneratorBasedBuilder):
            name = base
            VERSION = tfds.core.Version(version)
            BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=config)] if config else []
            code_path = None

            def _info(self, info: Any = info, keys: Any = keys) -> tfds.core.DatasetInfo:
                return tfds.core.DatasetInfo(
                    builder=self, features=info, supervised_keys=keys, disable_shuffling=True
                )

            def _split_generators(self, dl_manager: Any, splits: str = splits) -> dict[str, Any]:
                return {split: self._generate_examples() for split in splits.split()}

            def _generate_examples(self, base: str = base, example: Any = example) -> Any:
                for i in range(COUNT):
                    yield i, {"image": png(i % 2 if base == "dsprites" else i), **example(i)}

        Builder(data_dir=root, file_format="array_record").download_and_prepare()
