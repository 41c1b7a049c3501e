# SPDX-License-Identifier: Apache-2.0
"""`vit_jax predict --from=RUN IMAGE ...`: the likeliest classes of images."""

import contextlib
import csv
import dataclasses
import enum
import functools
import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vit_jax import trees
from vit_jax.cli.parsing import model_options, options
from vit_jax.cli.parsing.model_options import ModelOptions
from vit_jax.cli.parsing.options import flag
from vit_jax.errors import UserError, shown
from vit_jax.evals.passes import PassProgress
from vit_jax.inference import dense, labels, pixels
from vit_jax.inference.images import expand
from vit_jax.inference.pixels import PixelTask
from vit_jax.inference.prediction import Answer, stream
from vit_jax.inference.trained import Trained, Tta, read_weights
from vit_jax.process.escapes import cell, lines, terminal
from vit_jax.storage import files


class AnswerFormat(enum.StrEnum):
    """How results are written."""

    TABLE = "table"
    JSONL = "jsonl"
    CSV = "csv"


_SUFFIXES = {
    "": AnswerFormat.TABLE,
    ".txt": AnswerFormat.TABLE,
    ".jsonl": AnswerFormat.JSONL,
    ".csv": AnswerFormat.CSV,
}


@dataclasses.dataclass(kw_only=True)
class Predict(ModelOptions):
    """Prints the likeliest classes of each image, the labels that it has, or numbers.

    A run on images of several labels gives those that reach the threshold that it chose on its val;
    a run on numbers gives these, in their units.

    For a model of pixels it writes masks, objects or depths into the folder
    --out, with a picture of each image in overlays/ and the names of its files
    in images.csv, and prints the most of each.

    An IMAGE is a file, a folder (all images in it, at any depth), a pattern such as
    "photos/**/*.jpg", or - for a list of names on stdin, one a line.

      vit_jax predict --from=runs/vit_mu_digits docs/images/digits
      vit_jax predict --from=npz:ViT-B_16.npz --model=vit_b16_384 cat.jpg dog.jpg --top=1
      find photos -name '*.jpg' | vit_jax predict --from=runs/pets - --out=pets.csv

    Exit status: 0 all images were read, 1 some were not (stderr lists them), 2 bad usage.
    """

    images: tuple[str, ...] = model_options.images()
    top: int = flag(5, "classes of each image", least=1)
    threshold: float = flag(
        0.0, "of several labels, what a label's probability must reach; 0: the run's", least=0
    )
    format: AnswerFormat | None = flag(
        None,
        "a table for reading, by default; jsonl: a line of JSON an image, a broken one has "
        '"error"; csv: a row for each image and rank, none for a broken image',
    )
    tta: tuple[Tta, ...] = model_options.tta()
    out: Path | None = flag(
        None,
        "write there, in the format of .csv, .jsonl or .txt (table); of a model of pixels a folder",
    )
    force: bool = flag(False, "replace a FILE that is there, write into a FOLDER that has files")
    pixels: PixelTask | None = flag(
        None, "what a model of pixels is asked; by default what it was trained for"
    )
    stuff: tuple[str, ...] = flag((), "with --pixels=segments: the classes that are no things")
    score: float | None = flag(
        None, "of a model of pixels: above which objects (0.5) and segments (0.8) are kept"
    )
    batch_size: int = flag(32, "images at once", least=1)


def predict(given: Predict, found: Trained) -> int:
    """Write results as they come; returns 1 where an image was broken, else 0."""
    if found.head is not None:
        return _of_pixels(given, found)
    for name in ("pixels", "stuff", "score"):
        if getattr(given, name) not in (None, ()):
            raise UserError(f"--{name} is of a model of pixels, and {found.ref} tells classes")
    form, out = _format(given), given.out
    images = expand(given.images, sys.stdin, found.reading.bands)
    if out and any(out.absolute() == Path(name).absolute() for name in images):
        raise UserError(f"--out={out} is one of the images; nothing was written")
    if given.force and not out:
        raise UserError("--force is of a file; add --out=FILE")
    if out:
        files.check_file(out, "--out", force=given.force)
    model_options.say_slow_dtype(found)
    thresholds = labels.thresholds(found, given.threshold)
    how = {"batch_size": given.batch_size, "thresholds": thresholds}
    batches = stream(read_weights(found), images, given.top, **how)
    head, written = _writers(form, images, numbers=found.gives_numbers)
    broken, name = 0, f"--out={out}" if out else "stdout"
    with _sink(out) as sink, contextlib.closing(batches), files.refused(name):
        # On a terminal, the results themselves are the progress.
        on_terminal = sink.isatty()
        meter = PassProgress(len(images), "predicting", live=not on_terminal)
        sink.write(head)
        for results in batches:
            for result in results:
                if result.error:
                    meter.message(f"skipped {result.error}")
                    broken += 1
                text = written(result)
                sink.write(lines(text) if on_terminal else text)
            sink.flush()
            meter.advance(len(results))
        read = f"{len(images) - broken:,} of " if broken else ""
        plural = "s" * (len(images) > 1)
        meter.message(f"{read}{len(images):,} image{plural} {meter.summary()}")
    return 1 if broken else 0


def _of_pixels(given: Predict, found: Trained) -> int:
    """Write what a model says of pixels into a folder; returns as `predict`."""
    if given.format is AnswerFormat.CSV:
        raise UserError("--format=csv is of classes of images; choose table or jsonl")
    if given.tta:
        raise UserError("--tta is of classes of images; leave it out")
    task = pixels.task_of(found, given.pixels)
    if given.stuff and task is not PixelTask.SEGMENTS:
        raise UserError("--stuff is of segments; add --pixels=segments")
    if given.score is not None and task not in pixels.SCORES:
        raise UserError(f"--score is of objects and segments, and {task} have none; leave it out")
    images = expand(given.images, sys.stdin, found.reading.bands)
    out = pixels.check_folder(given.out, force=given.force)
    model_options.say_slow_dtype(found)
    settings = pixels.PixelSettings(
        task=task, stuff=given.stuff, score=given.score, batch_size=given.batch_size
    )
    width, broken = min(max(len(shown(name)) for name in images), 60), 0
    for answer in pixels.write(dense.read_weights(found), images, out, settings):
        if answer.error:
            print(f"skipped {answer.error}", file=sys.stderr)
            broken += 1
        if given.format is AnswerFormat.JSONL:
            pairs = [[name, _rounded(x)] for name, x in answer.found]
            rest: dict[str, Any] = {"error": answer.error} if answer.error else {"found": pairs}
            print(json.dumps(trees.finite({"file": answer.file, **rest})))
        elif not answer.error:
            print(f"{shown(answer.file):{width}}  {answer.told(task, given.top)}")
    print(f"{task} of {len(images) - broken:,} images in {shown(str(out))}", file=sys.stderr)
    return 1 if broken else 0


def _format(given: Predict) -> AnswerFormat:
    suffix = given.out.suffix.lower() if given.out else ""
    if not given.format and suffix not in _SUFFIXES:
        advice = f"name it .csv, .jsonl or .txt (a table), or add --format={'|'.join(AnswerFormat)}"
        raise UserError(f"--out={given.out}: no format is known by {suffix!r}; {advice}")
    return given.format or _SUFFIXES[suffix]


def _sink(out: Path | None) -> contextlib.AbstractContextManager[Any]:
    """Open what results are written to; file names that are no text do not stop it."""
    if not out:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        return contextlib.nullcontext(sys.stdout)
    with files.refused(f"--out={out}"):
        return open(out, "w", encoding="utf-8", errors="backslashreplace")


def _writers(
    form: AnswerFormat, images: Sequence[str], *, numbers: bool
) -> tuple[str, Callable[[Answer], str]]:
    """Return what comes first, and what a result is written as."""
    if form is AnswerFormat.JSONL:
        return "", functools.partial(_as_json, numbers=numbers)
    if form is AnswerFormat.CSV and numbers:
        return "file,output,name,value\n", functools.partial(_as_csv, numbers=True)
    if form is AnswerFormat.CSV:
        return "file,rank,class,name,probability\n", functools.partial(_as_csv, numbers=False)
    width = min(max(len(shown(name)) for name in images), 60)

    def as_table(result: Answer) -> str:
        names = [shown(str(result.source)), *[""] * len(result.predictions)]
        said = "{:>12.6g}" if numbers else "{:>7.2%}"
        found = [f"{said.format(x.probability)}  {terminal(x.name)}\n" for x in result.predictions]
        if not (found or result.error):
            found = ["no label reaches its threshold\n"]
            names = names[:1]
        return "".join(f"{name:{width}}  {x}" for name, x in zip(names, found, strict=False))

    return "", as_table


def _as_json(result: Answer, *, numbers: bool) -> str:
    place, what = ("output", "value") if numbers else ("class", "probability")
    found = [
        {place: k, "name": name, what: _rounded(probability)}
        for k, name, probability in result.predictions
    ]
    key = "numbers" if numbers else "predictions"
    rest: dict[str, Any] = {"error": result.error} if result.error else {key: found}
    return json.dumps(trees.finite({"file": result.source, **rest})) + "\n"


def _as_csv(result: Answer, *, numbers: bool) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(
        map(
            cell, (str(result.source), *([] if numbers else [rank]), k, name, _rounded(probability))
        )
        for rank, (k, name, probability) in enumerate(result.predictions, 1)
    )
    return out.getvalue()


def _rounded(probability: float) -> float:
    return float(f"{probability:.6g}")  # of float32, what it holds


main = options.verb(Predict, predict, model_options.read)
