# SPDX-License-Identifier: Apache-2.0
"""Features of a trained model: of labelled splits, to probe or write, and of image files."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from vit_jax import data, models
from vit_jax.data.sources import look
from vit_jax.data.sources.partition import as_in_run
from vit_jax.devices import sharding
from vit_jax.errors import UserError
from vit_jax.evals.classes import joined
from vit_jax.evals.passes import watched
from vit_jax.evals.probes import features, fewshot, knn, logistic
from vit_jax.evals.probes.base import Score
from vit_jax.evals.probes.features import (
    Allocate,
    FeatureSet,
    encode_all,
    extract,
    feature_shapes,
    in_memory,
    pixels,
    split_batches,
)
from vit_jax.inference.evaluate import placed
from vit_jax.inference.forward import Layers, make_encode
from vit_jax.inference.trained import Trained, read_weights, title
from vit_jax.inference.views import check_channels, file_batches
from vit_jax.process import waiting

PARTS = ("train", "test")
METHODS = ("fewshot", "knn", "logistic")


@look.once()
def open_splits(found: Trained, dataset: str, data_dir: str, *splits: str) -> list[data.Source]:
    """Open the splits to learn from and to test on.

    Args:
        dataset: as `DataConfig.name`; "" is the run's, with the classes that the run keeps.
        data_dir: "" is the run's.
        splits: one for each of PARTS; two splits get the same class ids, by name.

    Raises UserError: no such dataset or split.
    """
    cfg = found.config.data if found.config else None
    if cfg is None and not dataset:
        raise UserError(
            f"{found.ref} names no dataset to probe on; add --dataset=NAME or --dataset=folder:DIR"
        )
    # A named dataset keeps all its classes: a probe may learn others than the run.
    classes = cfg.classes if cfg and not dataset else ()
    if cfg and dataset:
        dataset = as_in_run(dataset, cfg.name)
    bands = found.reading.bands
    name, sources = dataset or (cfg.name if cfg else ""), []
    for part, split in zip(PARTS, splits, strict=True):
        with data.split_of(f"--{part}_split"):
            place = data_dir or (cfg.data_dir if cfg else "")
            sources.append(data.open_source(name, place, split, classes=classes, bands=bands))
    if len(sources) == 2 and all(set(source.spec) == {"label"} for source in sources):
        return list(joined(*sources))
    return sources


def extract_sets(
    trained: Trained,
    sources: Sequence[data.Source],
    mesh: Mesh,
    *,
    batch_size: int,
    folder: Path | None,
    force: bool,
    with_pixels: bool,
    layers: Layers,
) -> dict[str, list[FeatureSet]]:
    """Return the features of both splits by name: "features", what the head sees, and others.

    Those of `layers` are called "layer2" and so on; `with_pixels` adds the images' own "pixels".
    The network's features are written to `folder`, if given; `force` as in `features.written`.
    """
    shape, variables = models.input_shape(trained.model), placed(trained, mesh)
    patch = models.native_patch(trained.model)

    def sets(encode: Any, allocate: Callable[[str], Allocate]) -> dict[str, list[FeatureSet]]:
        by_split = [
            extract(
                encode,
                variables,
                source,
                watched(
                    split_batches(source, trained.transform, shape, trained.reading, patch=patch),
                    len(source),
                    source.name,
                ),
                shape=shape,
                mesh=mesh,
                batch_size=batch_size,
                allocate=allocate(part),
            )
            for part, source in zip(PARTS, sources, strict=True)
        ]
        return {name: [split[name] for split in by_split] for name in by_split[0]}

    encode = make_encode(trained, layers)
    if folder is None:
        found = sets(encode, lambda part: in_memory)
    else:
        with features.written(folder, force=force) as writing:
            found = sets(encode, writing.allocate)
            for part, source in zip(PARTS, sources, strict=True):
                ids = (source.example_id(i) for i in range(len(source)))
                writing.write_lines(f"names_{part}.txt", ids)
            writing.write_lines(features.CLASSES, sources[0].class_names)
            splits = " and ".join(source.name for source in sources)
            writing.write_readme(f"Features of {title(trained)} on {splits}.", PARTS)
    if with_pixels:
        found["pixels"] = sets(pixels, lambda part: in_memory)["features"]
    return found


def run_probes(
    found: dict[str, list[FeatureSet]],
    methods: Sequence[str],
    mesh: Mesh,
    *,
    shots: Sequence[int],
    seeds: int,
    l2: Sequence[float],
    k: Sequence[int],
    temperature: float,
    seed: int,
    tell: Callable[[str], None],
) -> list[Score]:
    """Fit every probe to the first set of each kind, and test it on the second.

    Args:
        found: as `extract_sets` returns them.
        methods: a selection of METHODS.
        shots, seeds, l2: few-shot's images a class, the number of draws, the regularisation.
        k, temperature: the number of neighbours and the temperature of their votes.
        seed: of all random draws.
        tell: is called with a line about each probe when it ends.
    """
    drawn = range(seed, seed + seeds)
    runs = {
        "fewshot": functools.partial(fewshot.run, shots=shots, l2=l2, seeds=drawn),
        "knn": functools.partial(knn.run, mesh=mesh, k=k, temperature=temperature),
        "logistic": functools.partial(logistic.run, seed=seed),
    }
    results = []
    for of, (train, test) in found.items():
        for method in methods:
            with waiting.said(f"fitting {method} to the {of} of {train.name}"):
                ended = [dataclasses.replace(x, of=of) for x in runs[method](train, test)]
            best = max(result.mean for result in ended)
            tell(f"{of}, {method}: top-1 {best:.2%}{' at best' if len(ended) > 1 else ''}")
            results += ended
    return results


def write_images(
    found: Trained,
    names: Sequence[str],
    folder: Path,
    batch_size: int,
    *,
    force: bool,
    layers: Layers,
) -> tuple[Trained, tuple[int, int], list[str]]:
    """Write the features of image files: what the head sees, and those of `layers`.

    Returns:
        The model, the shape of its features, and an error for each file that is left out.

    Raises UserError: no file can be read, or the folder cannot be written.
    """
    check_channels(found)
    mesh = sharding.make_mesh(sharding.MeshConfig())
    trained = read_weights(found, headless=True)
    encode, variables = make_encode(trained, layers), placed(trained, mesh)
    shapes = feature_shapes(encode, variables, models.input_shape(trained.model))
    read: list[str] = []
    errors: list[str] = []
    with features.written(folder, force=force) as writing:
        allocate, dtype = writing.allocate("images"), np.dtype(np.float32)
        arrays = {name: allocate(name, (len(names), *x), dtype) for name, x in shapes.items()}
        count = encode_all(
            encode,
            variables,
            watched(
                lambda size: file_batches(trained, names, size, read, errors), len(names), "images"
            ),
            arrays,
            mesh=mesh,
            batch_size=min(batch_size, len(names)),
            name="the images",
        )
        if not count:
            raise UserError(f"none of {len(names):,} images could be read: {errors[0]}")
        if count < len(names):
            for name in arrays:
                writing.cut(f"{name}_images", count)
        writing.write_lines("names_images.txt", read)
        writing.write_readme(f"Features of {title(trained)}.", ("images",))
    return trained, (count, shapes["features"][0]), errors
