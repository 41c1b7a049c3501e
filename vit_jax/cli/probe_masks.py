# SPDX-License-Identifier: Apache-2.0
"""`vit_jax probe --dataset=masks:DIR`: how well a model's patches segment images."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vit_jax import data, errors
from vit_jax.cost.tables import align
from vit_jax.devices import sharding
from vit_jax.errors import UserError
from vit_jax.evals.probes.segmentation import Segmentation
from vit_jax.inference import dense_probing
from vit_jax.inference.dense_probing import CONSTANT, METHODS, PREFIX, Settings
from vit_jax.inference.forward import Layers
from vit_jax.inference.trained import Trained, changes, read_weights, title
from vit_jax.settings import fields
from vit_jax.storage import files
from vit_jax.visual import mask_sheets

if TYPE_CHECKING:
    from vit_jax.cli.parsing.probe_options import Probe

_PICTURED = 6  # test images of a picture


def probe_masks(given: "Probe", found: Trained, layers: Layers, usual: Sequence[str]) -> int:
    """Probe, print and write what the flags select; `usual` are the methods without a flag."""
    methods = METHODS if tuple(given.methods) == tuple(usual) else given.methods
    _check(given, methods)
    splits = dense_probing.open_splits(given.dataset, given.train_split, given.test_split)
    if splits[0].name == splits[1].name:
        what = f"the probes learn from {splits[0].name}, and are tested on the same images"
        print(f"warning: {what}; choose another --test_split", file=sys.stderr)
    mesh = sharding.make_mesh(sharding.MeshConfig())
    trained = read_weights(found, headless=True)
    train, test = (
        dense_probing.read_patches(trained, split, layers, mesh, batch_size=given.batch_size)
        for split in splits
    )
    num_classes = dense_probing.count_classes(splits[0], train)
    names = splits[0].class_names or [f"class {k}" for k in range(num_classes)]
    _, rows, columns, width = train.tokens.shape
    print(f"{title(trained)}, {rows} x {columns} patches an image, {width:,} features a patch")
    for part, split in zip(("train", "test"), splits, strict=True):
        print(f"{part}: {split.name}, {len(split):,} images, {num_classes} classes")
    kept = ("k", "temperature", "steps", "lr", "seed")
    settings = Settings(methods=methods, **{name: getattr(given, name) for name in kept})
    shown = {"num_shown": _PICTURED if given.plot else 0, "channels": trained.channels}
    results, pictures = dense_probing.run(
        settings, train, test, splits[1], num_classes, mesh, reading=trained.reading, **shown
    )
    print("\n".join(["", *_table(results, names)]))
    about = {"from": trained.ref, "step": trained.step, "ema": trained.ema}
    about |= {"changes": changes(trained), "seed": given.seed, "layers": list(layers.numbers)}
    about |= {"train": splits[0].name, "num_train": len(splits[0])}
    about |= {"test": splits[1].name, "num_test": len(splits[1]), "num_classes": num_classes}
    about |= {"num_features": width, "results": [_to_json(each, names) for each in results]}
    if given.out is not None:
        _write(given.out, (json.dumps(about, indent=1) + "\n").encode())
    if given.plot is not None:
        probes = [each for each in results if each.method != CONSTANT]
        captions = [f"{_label(each)}: mIoU {each.miou:.1%}" for each in probes]
        heading = f"{trained.name} on {data.short_name(splits[1].name)}"
        _write(given.plot, mask_sheets.draw(pictures, names, captions, heading))
    return 0


def _write(file: Any, content: bytes) -> None:
    with files.refused(f"cannot write {file}"):
        files.write(file, content)
    print(f"wrote {file}")


def _check(given: "Probe", methods: Sequence[str]) -> None:
    """Refuse a flag that could not act."""
    for name in methods:
        if name not in METHODS:
            raise errors.unknown(f"method for {PREFIX}DIR", name, METHODS)
    cropped = [name for name in given.transform if name != "resize"]
    if cropped:
        raise UserError(f"--transform.{cropped[0]} has no effect: images are resized with masks")
    never = ("images", "data_dir", "shots", "seeds", "l2", "pixels", "features", "tokens")
    rules = (
        (False, f"on a dataset of {PREFIX}DIR", *never),
        ("patch_knn" in methods, "without patch_knn among the methods", "k", "temperature"),
        ("linear_head" in methods, "without linear_head among the methods", "steps", "lr"),
        (bool(given.layers), "without --layers", "norm"),
        (bool(given.out or given.plot), "without files to write", "force"),
    )
    fields.check_effects(given, "--", rules)
    for name, file, suffix in (("out", given.out, ".json"), ("plot", given.plot, ".png")):
        if file is not None:
            files.check_file(file, f"--{name}", force=given.force, suffix=suffix)


def _label(result: Segmentation) -> str:
    neighbours = f", k {result.settings['k']}" if "k" in result.settings else ""
    return f"{result.method}{neighbours}"


def _table(results: Sequence[Segmentation], names: Sequence[str]) -> list[str]:
    rows = []
    for result in results:
        shown = {k: v for k, v in result.settings.items() if k != "temperature"}
        if result.method == CONSTANT:
            shown = {"class": names[shown["class"]]}
        setting = ", ".join(f"{k} {v:g}" if k != "class" else str(v) for k, v in shown.items())
        rows.append([result.method, setting, f"{result.miou:.2%}", f"{result.accuracy:.2%}"])
    return align(("probe", "setting", "test mIoU", "pixel accuracy"), rows, right=(2, 3))


def _to_json(result: Segmentation, names: Sequence[str]) -> Mapping[str, Any]:
    iou = {name: None if x != x else float(x) for name, x in zip(names, result.iou, strict=True)}
    scores = {"miou": result.miou, "pixel_accuracy": result.accuracy, "iou": iou}
    return {"method": result.method, **result.settings, **scores}
