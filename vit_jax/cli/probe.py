# SPDX-License-Identifier: Apache-2.0
"""`vit_jax probe --from=RUN`: how good frozen features are; features to disk.

With `--dataset=masks:DIR` it measures how well a model's patches segment images.
"""

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vit_jax import data, errors, models
from vit_jax.cli.parsing import model_options, options
from vit_jax.cli.parsing.model_options import InputOptions
from vit_jax.cli.parsing.options import flag
from vit_jax.cost.tables import align
from vit_jax.data import account
from vit_jax.data.sources.base import account_of
from vit_jax.devices import sharding
from vit_jax.errors import UserError
from vit_jax.evals.probes import base as probes
from vit_jax.evals.probes import knn
from vit_jax.evals.probes.base import Score
from vit_jax.evals.probes.features import MAX_PIXELS, FeatureSet
from vit_jax.evals.probes.segmentation import Segmentation
from vit_jax.inference import dense_probing, probing
from vit_jax.inference.dense_probing import CONSTANT, PREFIX, Settings
from vit_jax.inference.forward import Layers
from vit_jax.inference.images import expand
from vit_jax.inference.probing import METHODS
from vit_jax.inference.trained import Trained, changes, read_weights, title
from vit_jax.models.intermediates import num_layers, numbers
from vit_jax.settings import fields
from vit_jax.storage import files
from vit_jax.visual import pixel_sheets
from vit_jax.visual.evaluation import draw_shots

_PICTURED = 6  # test images of a picture


@dataclasses.dataclass(kw_only=True)
class Probe(InputOptions):
    """Fits simple classifiers to frozen features, what the head sees, and tests them.

    They learn from a labelled split and are tested on another. With --features=DIR it writes the
    features; of images that are named, which need no labels, it does only that.

      vit_jax probe --from=runs/vit_mu_digits --pixels
      vit_jax probe --from=npz:ViT-B_16.npz --model=vit_b16 --model.num_classes=21843 \\
          --dataset=folder:flowers --test_split=val --methods=fewshot
      vit_jax probe --from=runs/vit_mu_digits --features=features photos/*.jpg
      vit_jax probe --from=runs/vit_mu_digits --features=features --layers=0,1,-1 --norm
    """

    images: tuple[str, ...] = flag((), "files, folders, patterns, or - for stdin", "[IMAGE ...]")
    dataset: str = flag(
        "",
        "as data.name takes it, or folder:DIR; by default the run's own. masks:DIR of images and "
        "masks measures how well its patches segment them, by patch_knn and linear_head",
    )
    data_dir: str = flag("", "where TFDS datasets lie; by default the run's", "DIR")
    train_split: str = flag("train", "what the probes learn from, such as train[:10%]", "SPLIT")
    test_split: str = flag("test", "what they are tested on", "SPLIT")
    methods: tuple[str, ...] = flag(METHODS, "the probes, or none with --features")
    shots: tuple[int, ...] = flag((1, 5, 10, 25), "fewshot: images a class", least=1)
    seeds: int = flag(3, "fewshot: how often they are drawn, from --seed on", least=1)
    l2: tuple[float, ...] = flag((1024.0,), "fewshot: regularisation, each tried alone", above=0)
    k: tuple[int, ...] = flag(
        (),
        "knn: neighbours; default: 10,20,100,200 as images allow; patch_knn: 30",
        least=1,
    )
    temperature: float = flag(0.07, "knn, patch_knn: of the votes", above=0)
    steps: int = flag(1000, "linear_head: updates", least=1)
    lr: float = flag(1e-3, "linear_head: the highest learning rate", above=0)
    seed: int = flag(0, "of what is drawn at random", least=0)
    pixels: bool = flag(False, "probe the pixels as well, to compare")
    batch_size: int = flag(256, "over all devices", least=1)
    features: Path | None = flag(
        None, "write features_train.npy, labels_train.npy, names_train.txt, and of test", "DIR"
    )
    layers: tuple[int, ...] = flag(
        (), "also features of these layers, from 0, negative ones from the end: layer2_train.npy"
    )
    norm: bool = flag(False, "layers: normalised as the last one is")
    tokens: bool = flag(False, "layers: of each patch, [N, P, Q, D], to write; not one an image")
    out: Path | None = flag(None, "write the results", "FILE.json")
    plot: Path | None = flag(
        None, "draw fewshot's accuracy against the shots; of masks:DIR masks", "FILE.png"
    )
    force: bool = flag(False, "replace what is there")


def probe_masks(given: "Probe", found: Trained, layers: Layers, usual: Sequence[str]) -> int:
    """Probe, print and write what the flags select; `usual` are the methods without a flag."""
    methods = dense_probing.METHODS if tuple(given.methods) == tuple(usual) else given.methods
    _check_masks(given, methods)
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
    print("\n".join(["", *_table_masks(results, names)]))
    about = {"from": trained.ref, "step": trained.step, "ema": trained.ema}
    about |= {"changes": changes(trained), "seed": given.seed, "layers": list(layers.numbers)}
    about |= {"train": splits[0].name, "num_train": len(splits[0])}
    about |= {"test": splits[1].name, "num_test": len(splits[1]), "num_classes": num_classes}
    about |= {"num_features": width, "results": [_to_json(each, names) for each in results]}
    if given.out is not None:
        _write_masks(given.out, (json.dumps(about, indent=1) + "\n").encode())
    if given.plot is not None:
        probes = [each for each in results if each.method != CONSTANT]
        captions = [f"{_label(each)}: mIoU {each.miou:.1%}" for each in probes]
        heading = f"{trained.name} on {data.short_name(splits[1].name)}"
        _write_masks(given.plot, pixel_sheets.draw_masks(pictures, names, captions, heading))
    return 0


def _write_masks(file: Any, content: bytes) -> None:
    with files.refused(f"cannot write {file}"):
        files.write(file, content)
    print(f"wrote {file}")


def _check_masks(given: "Probe", methods: Sequence[str]) -> None:
    """Refuse a flag that could not act."""
    for name in methods:
        if name not in dense_probing.METHODS:
            raise errors.unknown(f"method for {PREFIX}DIR", name, dense_probing.METHODS)
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


def _table_masks(results: Sequence[Segmentation], names: Sequence[str]) -> list[str]:
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


def probe(given: Probe, found: Trained) -> int:
    """Probe, print and write what the flags select; returns 1 for unreadable images, else 0."""
    layers = _layers(given, found)
    if given.dataset.startswith(PREFIX):
        return probe_masks(given, found, layers, METHODS)
    _check(given)
    if given.features is not None:
        files.check_folder(given.features, "--features", force=given.force)
        if given.images:
            return _write_images(given, found, given.features, layers)
    splits = given.train_split, given.test_split
    sources = probing.open_splits(found, given.dataset, given.data_dir, *splits)
    _check_sources(given, sources)
    strict = bool(found.config and found.config.data.strict)
    account.tell(sources[0].name, account_of(sources[0]), strict=strict)
    mesh = sharding.make_mesh(sharding.MeshConfig())
    trained = read_weights(found, headless=True)
    writing = {"folder": given.features, "force": given.force}
    options = {"batch_size": given.batch_size, "with_pixels": given.pixels, "layers": layers}
    sets = probing.extract_sets(trained, sources, mesh, **options, **writing)
    train, test = sets["features"]
    print(f"{title(trained)}, {train.features.shape[1]:,} features an image")
    for part, each in zip(probing.PARTS, (train, test), strict=True):
        print(f"{part}: {each.name}, {len(each.features):,} images, {each.num_classes} classes")
    if given.features is not None:
        print(f"wrote the features of both in {given.features}")
    if not given.methods:
        return 0
    probes.check_sets(train, test)
    notes = probes.unseen_classes(train, test)
    names = ("shots", "seeds", "l2", "k", "temperature", "seed")
    settings = {name: getattr(given, name) for name in names}
    height, width, _ = models.input_shape(trained.model)
    if given.pixels and max(height, width) > MAX_PIXELS:
        _tell(f"pixels: of the images at {min(height, MAX_PIXELS)}x{min(width, MAX_PIXELS)}")
    results = probing.run_probes(sets, given.methods, mesh, tell=_tell, **settings)
    notes += dict.fromkeys(note for result in results for note in result.notes)
    print("\n".join(["", *_table(results), *(f"note: {note}" for note in notes)]))
    about = {"from": trained.ref, "step": trained.step, "ema": trained.ema}
    about |= {"changes": changes(trained), "seed": given.seed}
    about |= {**probes.to_json(train, test, results), "notes": notes}
    _write(given.out, lambda: json.dumps(about, indent=1) + "\n")
    _write(given.plot, lambda: _draw(results, train, test))
    return 0


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _write(file: Path | None, content: Any) -> None:
    if file is not None:
        with files.refused(f"cannot write {file}"):
            files.write(file, content())
        print(f"wrote {file}")


def _layers(given: Probe, found: Trained) -> Layers:
    """Return the chosen layers, each once; refuses one that the network does not have."""
    chosen: tuple[int, ...] = ()
    if given.layers:
        count, name = num_layers(found.model), models.family(found.model).name
        chosen = tuple(dict.fromkeys(numbers(given.layers, count, name)))
    return Layers(numbers=chosen, norm=given.norm, tokens=given.tokens)


def _write_images(given: Probe, found: Trained, folder: Path, layers: Layers) -> int:
    what = expand(given.images, sys.stdin, found.reading.bands), folder, given.batch_size
    options = {"force": given.force, "layers": layers}
    trained, (count, width), broken = probing.write_images(found, *what, **options)
    for error in broken:
        print(f"skipped {error}", file=sys.stderr)
    print(f"{title(trained)}: {width:,} features of {count:,} images in {folder}")
    return 1 if broken else 0


def _check(given: Probe) -> None:
    """Refuse a flag that could not act."""
    if given.methods == ("none",):
        given.methods = ()
    for name in ("methods", "shots", "l2", "k"):
        setattr(given, name, tuple(dict.fromkeys(getattr(given, name))))
    for name in given.methods:
        if name not in METHODS:
            raise errors.unknown("method", name, METHODS)
    if given.images and not given.features:
        raise UserError("images without labels cannot be probed; add --features=DIR")
    if given.tokens and not (given.features and (given.images or not given.methods)):
        raise UserError("--tokens writes, and is not probed: add --methods=none and --features=DIR")
    if not given.methods and not given.features:
        raise UserError(f"nothing to do: add --methods={','.join(METHODS)} or --features=DIR")
    own = ("dataset", "data_dir", "train_split", "test_split", "methods", "seed", "pixels", "out")
    images, few = "of image files; name images or a dataset", ("shots", "seeds", "l2", "plot")
    rules = (
        (not given.images, images, *own, *few, "k", "temperature"),
        (bool(given.methods), "without --methods", "seed", "pixels", "out"),
        ("fewshot" in given.methods, "without fewshot among the methods", *few),
        ("knn" in given.methods, "without knn among the methods", "k", "temperature"),
        (bool(given.layers), "without --layers", "norm", "tokens"),
        (False, "without --dataset=masks:DIR", "steps", "lr"),
        (bool(given.features or given.out or given.plot), "without files to write", "force"),
    )
    fields.check_effects(given, "--", rules)


def _check_sources(given: Probe, sources: Sequence[data.Source]) -> None:
    """Refuse what would otherwise fail after the last image."""
    if sources[0].multi_label and given.methods:
        why = "has several labels per image, and probes need one"
        raise UserError(f"{sources[0].name} {why}; add --methods=none and --features=DIR")
    if given.methods and sources[0].name == sources[1].name:
        what = f"the probes learn from {sources[0].name}, and are tested on the same images"
        print(f"warning: {what}; choose another --test_split", file=sys.stderr)
    if "knn" in given.methods:
        knn.choose_k(given.k, len(sources[0]), sources[0].name)
    for name, file, suffix in (("out", given.out, ".json"), ("plot", given.plot, ".png")):
        if file is not None:
            files.check_file(file, f"--{name}", force=given.force, suffix=suffix)


def _table(results: Sequence[Score]) -> list[str]:
    """Lay out a line a result; the temperature, which all share, is in the JSON alone."""
    rows = []
    for result in results:
        shown = [f"{k} {value:.4g}" for k, value in result.settings.items() if k != "temperature"]
        low, high = result.interval
        spread = result.deviation
        seeds = "" if spread is None else f"{len(result.top1)}, deviation {spread:.1%}"
        cells = [", ".join(shown), f"{result.mean:.2%}", f"{low:.1%} to {high:.1%}", seeds]
        rows.append([result.of, result.method, *cells])
    header = ("of", "probe", "setting", "test top-1", "95 % interval", "over seeds")
    return align(header, rows, right=(3,))


def _draw(results: Sequence[Score], train: FeatureSet, test: FeatureSet) -> bytes:
    """Draw the few-shot results against the shots, a line for each kind of features and l2."""
    found = [result for result in results if result.method == "fewshot"]
    several = len({result.settings["l2"] for result in found}) > 1
    curves: dict[str, list[tuple[int, float, float]]] = {}
    for result in sorted(found, key=lambda result: result.settings["shots"]):
        name = f"{result.of}, l2 {result.settings['l2']:g}" if several else result.of
        point = (int(result.settings["shots"]), result.mean, result.deviation or 0.0)
        curves.setdefault(name, []).append(point)
    return draw_shots(curves, len(test.labels), f"few-shot, {data.short_name(train.name)}")


main = options.verb(Probe, probe, model_options.read)
