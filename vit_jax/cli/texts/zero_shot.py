# SPDX-License-Identifier: Apache-2.0
"""`vit_jax zero-shot --from=RUN`: accuracy of a model of images and texts by classes' names."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from vit_jax import trees
from vit_jax.cli.parsing import model_options, options
from vit_jax.cli.parsing.model_options import InputOptions
from vit_jax.cli.parsing.options import flag
from vit_jax.cost.tables import align
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.errors import UserError, shown
from vit_jax.evals import ZeroShotEval, zero_shot
from vit_jax.inference import evaluate, image_text, pairs
from vit_jax.inference.images import expand
from vit_jax.inference.trained import Trained, title
from vit_jax.process import startup
from vit_jax.process.escapes import lines, terminal
from vit_jax.storage import files

_SHOWN = 5  # words of an image


@dataclasses.dataclass(kw_only=True)
class ZeroShotOptions(InputOptions):
    """Tells classes by their names: the class whose prompts lie nearest to the image.

    It measures top-1 and top-5 on a labelled split, by the names of its classes; or, of IMAGEs and
    --words, prints which words fit. An IMAGE is a file, a folder, a pattern, or - for a list on
    stdin. The model must have a text tower: a run of images and texts, or CLIP or SigLIP of the
    Hub.

      vit_jax zero-shot --from=runs/clip --templates='a photo of a {}.'
      vit_jax zero-shot --from=hub:google/siglip-base-patch16-224 --dataset=folder:pets --split=val
      vit_jax zero-shot --from=runs/clip --words=cat,dog,bicycle photos
    """

    usage = "vit_jax zero-shot --from=WEIGHTS [IMAGE ...] [flags]"
    images: tuple[str, ...] = flag((), "images, for --words", "[IMAGE ...]")
    words: tuple[str, ...] = flag((), "what images may show, instead of classes", "WORD,...")
    dataset: str = flag("", "as data.name takes it, or folder:DIR; by default the run's own")
    split: str = flag("", "by default the run's last evaluation's; of another dataset, test")
    data_dir: str = flag("", "where TFDS datasets lie; by default the run's", "DIR")
    templates: str = flag(
        "",
        "of the prompts: openai80, openai7, photo, plain, a file with one a line, or one itself; "
        "{} is the place of the name; by default the run's, or openai80; of --words photo",
        "SET|FILE",
    )
    names: str = flag(
        "",
        "what each class is called, one name or several whose vectors are averaged: an object of "
        "JSON from the class to a name or a list; by default the dataset's own names",
        "FILE.json",
    )
    tokenizer: str = model_options.tokenizer()
    batch_size: int = flag(0, "over all devices; 0: the run's", least=0)
    mesh: str = flag("", "--mesh.data, .fsdp, .tensor: devices, as in training", ".data=N")
    out: Path | None = flag(None, "write the results", "FILE.json")
    force: bool = flag(False, "replace a FILE that is there")


def zero_shot_verb(given: ZeroShotOptions, found: Trained, mesh: MeshConfig) -> int:
    """Measure a split, or tell the words of images; returns 1 where one was broken, else 0."""
    if bool(given.images) != bool(given.words):
        raise UserError("--words are of images: name both, as in --words=cat,dog photos")
    if given.words:
        return _tell_words(given, found)
    startup.join_cluster()
    check_out(given.out, force=given.force)
    own: Any = found.config.evals.values() if found.config else ()
    templates = next((x.templates for x in own if isinstance(x, ZeroShotEval)), "openai80")
    templates = given.templates or templates
    zero_shot.templates(templates, "--templates")  # before weights are read
    cfg, reading, source = evaluate.open_split(
        found, ZeroShotEval, **which(given), own_transform=not given.transform
    )
    if not source.num_classes:
        raise UserError(f"{source.name} has no classes to name; --dataset=NAME is another")
    cfg.templates, cfg.names = templates, given.names
    called = zero_shot.names(source.class_names, given.names, "--names")
    trained, pair = image_text.read(found)
    measured = image_text.measure(trained, pair, cfg, reading, source, sharding.make_mesh(mesh))
    low, high = measured["top1_interval"]
    count = len(zero_shot.templates(templates))
    prompts = f"{count:,} template{'s' * (count > 1)}"
    several = sum(len(each) for each in called)
    naming = f"{several:,} names" if several > len(called) else "the names"
    say(f"{title(trained)}\n{source.name}: {measured['num_examples']:,} images")
    rows = [
        ["top1", f"{measured['top1']:.2%}", f"95 % interval {low:.2%} to {high:.2%}"],
        ["top5", f"{measured['top5']:.2%}", ""],
    ]
    among = f"by {naming} of {source.num_classes:,} classes, {prompts}"
    say("\n".join(["", *align(["metric", "value", among], rows, right=(1,))]))
    write(given.out, {**measured, "templates": templates, "names": given.names})
    return 0


def which(given: Any) -> dict[str, Any]:
    """Return the flags that say which split is meant."""
    return {name: getattr(given, name) for name in ("dataset", "split", "data_dir", "batch_size")}


def say(text: str) -> None:
    """Print lines, of one process of several."""
    if jax.process_index() == 0:
        print(lines(text))


def check_out(out: Path | None, *, force: bool) -> None:
    """Raise UserError for results that cannot be written there."""
    if out:
        files.check_file(out, "--out", force=force, suffix=".json")


def write(out: Path | None, measured: dict[str, Any]) -> None:
    """Write results."""
    if out and jax.process_index() == 0:
        with files.refused(f"cannot write {out}"):
            files.write(out, (json.dumps(trees.finite(measured), indent=1) + "\n").encode())
        print(f"\nwrote {out}")


def _tell_words(given: ZeroShotOptions, found: Trained) -> int:
    """Print which words fit each image; returns 1 where one was broken, else 0."""
    if given.dataset or given.split or given.data_dir or given.out or given.names:
        raise UserError(
            "--words are of images, and --dataset, --split, --names and --out of a split"
        )
    image_text.check_texts(given.words, "word")
    templates = zero_shot.templates(given.templates or "photo", "--templates")
    names = expand(given.images, sys.stdin)
    trained, pair = image_text.read(found)
    size = given.batch_size or 32
    images = image_text.embed_files(trained, pair, names, batch_size=size)
    for line in images.errors:
        print(f"skipped {terminal(line)}", file=sys.stderr)
    vectors = zero_shot.class_vectors(
        lambda texts: pairs.embed_texts(pair, texts), [(word,) for word in given.words], templates
    )
    chances = image_text.probabilities(pair, images.vectors, vectors)
    for file, row in zip(images.files, chances, strict=True):
        print("\n".join(_lines(file, given.words, row)))
    return 1 if images.errors else 0


def _lines(file: str, words: Sequence[str], chances: np.ndarray) -> list[str]:
    best = np.argsort(-chances, kind="stable")[:_SHOWN]
    first = shown(file)
    return [
        f"{first if not i else '':{len(first)}}  {chances[k]:>7.2%}  {terminal(words[k])}"
        for i, k in enumerate(best)
    ]


def read(cls: type[Any], argv: Sequence[str]) -> tuple[Any, Trained, MeshConfig]:
    """Read a command line with --mesh."""
    trees = {"mesh": MeshConfig()}
    return *model_options.read(cls, argv, trees), trees["mesh"]


main = options.verb(ZeroShotOptions, zero_shot_verb, read)
