# SPDX-License-Identifier: Apache-2.0
"""What `probe` does: extracts features, writes them, runs the probes, tells the results."""

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from vit_jax import data, models, sharding
from vit_jax.cli import probe_results
from vit_jax.cli.meter import watched
from vit_jax.errors import UserError
from vit_jax.evals import Predict, feature_files, fewshot, knn, logistic
from vit_jax.evals.features import (
    Allocate,
    FeatureSet,
    encode_all,
    extract,
    feature_width,
    in_memory,
    pixels,
    split_batches,
)
from vit_jax.evals.passes import Batches
from vit_jax.evals.probes import Result, check_sets
from vit_jax.inference.evaluate import placed
from vit_jax.inference.features import FileBatches, file_batches, make_encode
from vit_jax.inference.trained import Trained, changes, read_weights

PARTS = ("train", "test")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What to probe.

    Attributes:
        dataset: as `DataConfig.name`; "" is the run's, with the classes that it keeps.
        data_dir: "" is the run's.
        train_split, test_split: what the probes learn from, and are tested on.
        methods: of fewshot, knn and logistic; () writes features alone.
        settings: of the methods: shots, l2, seeds, k, temperature, seed.
        pixels: probe the images themselves as well.
        batch_size: of the forward pass.
        features, out, plot: where to write features (a folder), results (JSON), a picture (PNG).
        force: replace files.
    """

    dataset: str = ""
    data_dir: str = ""
    train_split: str = "train"
    test_split: str = "test"
    methods: tuple[str, ...]
    settings: Mapping[str, Any]
    pixels: bool = False
    batch_size: int = 256
    features: Path | None = None
    out: Path | None = None
    plot: Path | None = None
    force: bool = False


def probe(found: Trained, request: Request) -> list[Result]:
    """Do what is asked for, print it, write it; returns what the table shows.

    Args:
        found: the model, its weights not yet read.
        request: what to do.

    Raises:
        UserError: whatever cannot be, before the first image is read where that can be known.
    """
    sources = _open(found, request)
    _check(request, sources)
    mesh = sharding.make_mesh(sharding.MeshConfig())
    trained = read_weights(found, headless=True)
    found_sets = _extract(trained, sources, request, mesh)
    train, test = found_sets["features"]
    print(f"{_title(trained)}, {train.features.shape[1]:,} features an image")
    for part, each in zip(PARTS, (train, test), strict=True):
        print(f"{part}: {each.name}, {len(each.features):,} images, {each.num_classes} classes")
    if request.features is not None:
        print(f"wrote the features of both in {request.features}")
    notes, results = check_sets(train, test) if request.methods else [], []
    for of, (train, test) in found_sets.items():
        for method in request.methods:
            run = _run(method, train, test, request.settings, mesh)
            results += [dataclasses.replace(result, of=of) for result in run]
    if results:
        notes += dict.fromkeys(note for result in results for note in result.notes)
        print("\n".join(["", *probe_results.table(results), *(f"note: {x}" for x in notes)]))
    train, test = found_sets["features"]
    if request.out is not None:
        tree = {
            "from": trained.ref,
            "step": trained.step,
            "ema": trained.ema,
            "changes": changes(trained),
            "seed": request.settings["seed"],
            **probe_results.to_json(train, test, results),
            "notes": notes,
        }
        probe_results.save(request.out, (json.dumps(tree, indent=1) + "\n").encode())
    if request.plot is not None:
        probe_results.save(request.plot, probe_results.draw(results, train, test))
    return results


def _extract(
    trained: Trained, sources: Sequence[data.Source], request: Request, mesh: Mesh
) -> dict[str, list[FeatureSet]]:
    """Return the sets of both splits by what they are of, those of the network written as asked."""
    shape, variables = models.input_shape(trained.model), placed(trained, mesh)

    def sets(encode: Predict, allocate: Callable[[str], Allocate]) -> list[FeatureSet]:
        return [
            extract(
                encode,
                variables,
                source,
                watched(split_batches(source, trained.transform, shape), len(source), source.name),
                shape=shape,
                mesh=mesh,
                batch_size=request.batch_size,
                allocate=allocate(part),
            )
            for part, source in zip(PARTS, sources, strict=True)
        ]

    encode, found = make_encode(trained), {}
    if request.features is None:
        found["features"] = sets(encode, lambda part: in_memory)
    else:
        with feature_files.written(request.features, force=request.force) as files:
            found["features"] = sets(encode, files.allocate)
            for part, source in zip(PARTS, sources, strict=True):
                ids = (source.example_id(i) for i in range(len(source)))
                files.write_lines(f"names_{part}.txt", ids)
            files.write_lines(feature_files.CLASSES, sources[0].class_names)
            splits = " and ".join(source.name for source in sources)
            files.write_readme(f"Features of {_title(trained)} on {splits}.", PARTS)
    if request.pixels:
        found["pixels"] = sets(pixels, lambda part: in_memory)
    return found


def _open(found: Trained, request: Request) -> list[data.Source]:
    cfg = found.config.data if found.config else None
    if cfg is None and not request.dataset:
        raise UserError(
            f"{found.ref} does not say what to probe it on; add --dataset=NAME or "
            "--dataset=folder:DIR"
        )
    data_dir = request.data_dir or (cfg.data_dir if cfg else "")
    # Of another dataset, or of the same when it is named, all classes: probes may know others.
    classes = cfg.classes if cfg and not request.dataset else ()
    name, sources = request.dataset or (cfg.name if cfg else ""), []
    for part, split in zip(PARTS, (request.train_split, request.test_split), strict=True):
        with data.split_of(f"--{part}_split"):
            sources.append(data.open_source(name, data_dir, split, classes=classes))
    return sources


def _check(request: Request, sources: Sequence[data.Source]) -> None:
    """Refuse what would otherwise fail after the last image."""
    if sources[0].multi_label and request.methods:
        raise UserError(
            f"{sources[0].name} has several labels per image; probes tell one class from the "
            "others: with --methods=none and --features=DIR its features are written"
        )
    if request.methods and sources[0].name == sources[1].name:
        told = (
            f"warning: the probes learn from {sources[0].name}, and are tested on the same images"
        )
        print(f"{told}; choose another --test_split", file=sys.stderr)
    if "knn" in request.methods:
        knn.check_k(request.settings["k"], len(sources[0]), sources[0].name)
    if request.features is not None:
        feature_files.check_folder(request.features, force=request.force)
    for name, file in (("out", request.out), ("plot", request.plot)):
        if file is not None:
            probe_results.check_target(name, file, force=request.force)


def _run(
    method: str, train: FeatureSet, test: FeatureSet, settings: Mapping[str, Any], mesh: Mesh
) -> list[Result]:
    if method == "knn":
        k, temperature = settings["k"], settings["temperature"]
        return knn.run(train, test, mesh=mesh, k=k, temperature=temperature)
    if method == "logistic":
        return logistic.run(train, test, seed=settings["seed"])
    seeds = range(settings["seed"], settings["seed"] + settings["seeds"])
    return fewshot.run(train, test, shots=settings["shots"], l2=settings["l2"], seeds=seeds)


def _title(trained: Trained) -> str:
    step = "" if trained.step is None else f", step {trained.step:,}"
    changed = f", with {', '.join(changes(trained))}" if changes(trained) else ""
    return f"{trained.ref}{step}{', moving average' if trained.ema else ''}{changed}"


def write_images(
    found: Trained, files: Sequence[str], folder: Path, batch_size: int, *, force: bool
) -> int:
    """Write the features of image files; returns the exit status, 1 where some were broken.

    Raises:
        UserError: no file that can be read, or no place to write.
    """
    feature_files.check_folder(folder, force=force)
    open_stream = file_batches(found, files)
    mesh = sharding.make_mesh(sharding.MeshConfig())
    trained = read_weights(found, headless=True)
    encode, variables = make_encode(trained), placed(trained, mesh)
    width = feature_width(encode, variables, models.input_shape(trained.model))
    streams: list[FileBatches] = []

    def batches(size: int) -> Batches:
        streams.append(open_stream(size))
        return streams[-1]

    with feature_files.written(folder, force=force) as writing:
        allocate = writing.allocate("images")
        array = allocate("features", (len(files), width), np.dtype(np.float32))
        count = encode_all(
            encode,
            variables,
            watched(batches, len(files), "images"),
            {"features": array},
            mesh=mesh,
            batch_size=min(batch_size, len(files)),
            name="the images",
        )
        (stream,) = streams
        for error in stream.errors:
            print(f"skipped {error}", file=sys.stderr)
        if not count:
            raise UserError(f"none of {len(files):,} images could be read")
        if count < len(files):
            writing.cut("features_images", count)
        writing.write_lines("names_images.txt", stream.names)
        writing.write_readme(f"Features of {_title(trained)}.", ("images",))
    print(f"{_title(trained)}: {width:,} features of {count:,} images in {folder}")
    return 1 if stream.errors else 0
