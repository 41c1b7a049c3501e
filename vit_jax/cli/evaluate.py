# SPDX-License-Identifier: Apache-2.0
"""`vit_jax evaluate --from=RUN`: how good a trained model is, and on what it fails."""

import csv
import dataclasses
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import jax

from vit_jax import trees
from vit_jax.cli.parsing import model_options, options
from vit_jax.cli.parsing.model_options import ModelOptions
from vit_jax.cli.parsing.options import flag
from vit_jax.cost.tables import align
from vit_jax.data import short_name
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.errors import UserError
from vit_jax.evals import Scores, calibration, regression
from vit_jax.evals import corruptions as corruptions_lib
from vit_jax.figures.contact_sheet import Tile, render, wrapped
from vit_jax.inference import evaluate as lib
from vit_jax.inference.evaluate import check_sizes, native_size, open_target
from vit_jax.inference.trained import Trained, Tta, read_weights, title
from vit_jax.inference.views import picture
from vit_jax.models.losses import Loss
from vit_jax.process import escapes, startup
from vit_jax.settings import measures
from vit_jax.storage import files
from vit_jax.visual import evaluation as plots

_SHOWN = 40  # mistakes on their sheet


@dataclasses.dataclass(kw_only=True)
class Evaluate(ModelOptions):
    """Measures a trained model on a split of a dataset, each image counted once, on all devices.

    It prints top-1, top-5, loss and calibration; with --out also by class, and as pictures. Of
    several labels an image it prints average precision and F1 too, and of numbers their errors. A
    model of pixels is measured as the run's first evaluation of pixels does.

      vit_jax evaluate --from=runs/vit_mu_digits --out=runs/evaluate
      vit_jax evaluate --from=runs/vit_mu_digits --sizes=16,24,32,40,48 --corruptions=all
      vit_jax evaluate --from=timm:swin_t.safetensors --model=swin_t \\
          --dataset=imagenet2012_real --split=validation
    """

    dataset: str = flag("", "as data.name takes it, or folder:DIR; by default the run's own")
    split: str = flag("", "by default the run's last evaluation's; of another dataset, test")
    data_dir: str = flag("", "where TFDS datasets lie; by default the run's", "DIR")
    batch_size: int = flag(0, "over all devices; 0: the run's", least=0)
    mesh: str = flag("", "--mesh.data, .fsdp, .tensor: devices, as in training", ".data=N")
    tta: tuple[Tta, ...] = model_options.tta()
    out: Path | None = flag(
        None,
        "write metrics.json, per_class.csv, confusion.csv and .png, reliability.png, and the "
        "mistakes, those of the largest loss first (mistakes.csv, .png)",
        "DIR",
    )
    sizes: tuple[int, ...] = flag((), "accuracy at other input sizes (sizes.csv, .png)", least=1)
    corruptions: tuple[str, ...] = flag(
        (),
        "accuracy on corrupted images (corruptions.csv, .png): all, or of gaussian_noise, "
        "shot_noise, impulse_noise, defocus_blur, motion_blur, brightness, contrast, pixelate, "
        "jpeg_compression",
    )
    severities: tuple[int, ...] = flag((), "of the corruptions; by default 1,2,3,4,5", least=1)


def _read(cls: type[Evaluate], argv: Sequence[str]) -> tuple[Evaluate, Trained, MeshConfig]:
    trees = {"mesh": MeshConfig()}
    return *model_options.read(cls, argv, trees), trees["mesh"]


def evaluate(given: Evaluate, found: Trained, mesh_config: MeshConfig) -> int:
    """Measure, print and write what the flags select."""
    if given.severities and not given.corruptions:
        raise UserError("--severities are of corruptions; add --corruptions=all")
    if found.head is not None:
        return _of_pixels(given, found, mesh_config)
    if not found.model.num_classes:
        read_weights(found)  # which raises that it has no classes
    startup.join_cluster()
    model_options.say_slow_dtype(found)
    settings = {x: getattr(given, x) for x in ("dataset", "split", "data_dir", "batch_size")}
    target = open_target(found, **settings, own_transform=not given.transform)
    if given.sizes:
        check_sizes(found, target.evaluation.transform, given.sizes)
    variants = corruptions_lib.variants(given.corruptions, given.severities)
    writer = _Writer(given.out if jax.process_index() == 0 else None)
    trained = read_weights(found)
    if trained.gives_numbers:
        return _numbers(given, trained, target, mesh_config, writer)
    measuring = lib.Measuring(trained, target, sharding.make_mesh(mesh_config))
    scores, measured = lib.measure(measuring)
    _show_measured(trained, target.source.name, measured)
    writer.report(measuring, scores)
    if given.sizes:
        measured["sizes"] = lib.at_sizes(measuring, given.sizes, scores)
        _show_sizes(measuring, measured["sizes"], writer)
    if variants:
        measured["corruptions"] = lib.under_corruption(measuring, variants)
        _show_corruptions(measuring, measured["corruptions"], measured["top1"], writer)
        if writer.folder is not None:
            writer.write("corrupted.png", plots.corrupted_sheet(measuring.evaluation, variants))
    writer.write("metrics.json", json.dumps(trees.finite(measured), indent=1) + "\n")
    if writer.written:
        print(f"\nwrote {', '.join(writer.written)} in {writer.folder}")
    return 0


def _of_pixels(given: Evaluate, found: Trained, mesh_config: MeshConfig) -> int:
    """Measure a model of pixels, print and write."""
    from vit_jax.inference import dense, pixel_scores  # late: most models tell one class an image

    for name in ("sizes", "corruptions"):
        if getattr(given, name):
            raise UserError(f"--{name} are of classes of images, and {found.ref} tells pixels'")
    if given.tta:
        raise UserError("--tta is of classes of images; leave it out")
    if set(given.transform) - {"resize"}:
        raise UserError(
            "a model of pixels is measured on whole images; leave out all but --transform.resize"
        )
    startup.join_cluster()
    model_options.say_slow_dtype(found)
    settings = {x: getattr(given, x) for x in ("dataset", "split", "data_dir", "batch_size")}
    target = pixel_scores.open_target(found, **settings, own_transform=not given.transform)
    writer = _Writer(given.out if jax.process_index() == 0 else None)
    trained = dense.read_weights(found)
    mesh = sharding.make_mesh(mesh_config)
    measured = pixel_scores.measure(trained, target, mesh, given.out)
    if given.out is not None and hasattr(target.evaluation, "report"):
        writer.written += ["per_class.csv", "figures/masks.png"]
    _print(title(trained))
    _print(f"{target.source.name}, {int(measured['num_examples']):,} images")
    own, *others = target.names or ("",)
    said = f"measured by {measured['evaluation']}" + (f", as evals.{own}" if own else "")
    rest = f", not as evals.{', evals.'.join(others)}" if others else ""
    _print(f"{said}{rest}\n")
    for name, value in measured.items():
        known = measures.of(name)
        if known is not None and isinstance(value, float):
            _print(f"{name:16} {known.written(value)}")
    writer.write("metrics.json", json.dumps(trees.finite(measured), indent=1) + "\n")
    if writer.written:
        print(f"\nwrote {', '.join(writer.written)} in {writer.folder}")
    return 0


def _numbers(
    given: Evaluate, trained: Trained, target: lib.EvalTarget, mesh: MeshConfig, writer: "_Writer"
) -> int:
    """Measure, print and write what is known of a model of numbers."""
    if given.sizes or given.corruptions:
        raise UserError(f"{trained.ref} gives numbers: --sizes and --corruptions are of classes")
    measured = lib.measure_numbers(trained, target, sharding.make_mesh(mesh))
    _print(title(trained))
    _print(f"{target.source.name}: {measured['num_examples']:,} images\n")
    names = target.source.class_names
    slugs = regression.slugs(names)
    head: list[Sequence[Any]] = [("output", *_ERRORS)]
    own = [f"_{slug}" for slug in slugs] if len(names) > 1 else [""]
    rows = [(n, *_errors(measured, end)) for n, end in zip(names, own, strict=True)]
    means = [("mean", *_errors(measured, ""))] if len(names) > 1 else []
    _show([*head, *rows, *means], right=range(1, 4))
    writer.write("metrics.json", json.dumps(trees.finite(measured), indent=1) + "\n")
    if writer.written:
        print(f"\nwrote {', '.join(writer.written)} in {writer.folder}")
    return 0


_ERRORS = ("mae", "rmse", "r2")


def _errors(measured: dict[str, Any], end: str) -> list[str]:
    found = (measured.get(f"{key}{end}") for key in _ERRORS)
    return ["" if x is None else f"{x:.6g}" for x in found]


class _Writer:
    """Writes files into a folder that is made at once; into none it writes nothing."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.written: list[str] = []
        if folder is not None:
            files.make_folder(folder, "--out")  # now, not after hours

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file."""
        if self.folder is not None:
            with files.refused(f"--out={self.folder}"):
                files.write(self.folder / name, content)
            self.written.append(name)

    def report(self, measuring: lib.Measuring, scores: Scores) -> None:
        """Write the scores by class, and the calibration."""
        if self.folder is not None:
            with files.refused(f"--out={self.folder}"):
                of = measuring.trained.checkpoint
                self.written += measuring.evaluation.report(scores, self.folder, of)
            bins = calibration.reliability(scores.confidence, scores.top1)
            name = short_name(measuring.target.source.name)
            wrong = lib.mistakes(measuring, scores)
            if wrong:
                self.write("mistakes.csv", _csv([lib.Mistake._fields, *wrong]))
                self.write("mistakes.png", _mistakes_sheet(measuring, wrong, name))
            self.write("reliability.png", plots.draw_reliability(bins, name))


def _mistakes_sheet(measuring: lib.Measuring, wrong: Sequence[lib.Mistake], name: str) -> bytes:
    tiles = [
        Tile(
            picture(measuring.trained, measuring.view(each.index)),
            f"{each.true}\nnot {each.predicted} {each.confidence:.0%}",
        )
        for each in wrong[:_SHOWN]
    ]
    title = f"{name}: the first of {len(wrong):,} mistakes, by loss; with the true class"
    return render(wrapped(tiles, 8), title)


def _show_measured(trained: Trained, source: str, measured: dict[str, Any]) -> None:
    low, high = measured["top1_interval"]
    without = measured["unlabelled"]
    what = "count from map on" if "map" in measured else "are left out"
    left_out = f" ({without:,} more have no label and {what})" if without else ""
    alone = "" if trained.loss is Loss.SOFTMAX else ", of its class alone (sigmoid)"
    _print(title(trained))
    among = f", guesses among its {x} classes" if (x := measured.get("among_classes")) else ""
    _print(f"{source}: {measured['num_examples']:,} images{left_out}{among}\n")
    notes = {
        "top1": f"95 % interval {low:.2%} to {high:.2%}",
        "top5": "",
        "loss": f"{trained.loss}, nats per image",
        "ece": f"calibration error, {calibration.NUM_BINS} bins",
        "confidence": f"mean of the first guess{alone}",
    }
    shown = {x: f"{measured[x]:.4f}" if x == "loss" else f"{measured[x]:.2%}" for x in notes}
    rows = [(name, shown[name], note) for name, note in notes.items()]
    if "macro_top1" in measured:
        named = {"macro_top1": "mean recall of the classes", "macro_f1": "mean F1 of the classes"}
        rows[1:1] = [(name, f"{measured[name]:.2%}", note) for name, note in named.items()]
    if "map" in measured:
        rows += [(key, f"{measured[key]:.2%}", note) for key, note in _notes(measured).items()]
    _show([("metric", "value", ""), *rows], right=(1,))


def _notes(measured: dict[str, Any]) -> dict[str, str]:
    """Return a note for each metric of several labels that was measured."""
    at = f"{measured['threshold']:.3f}" if "threshold" in measured else "each class's threshold"
    notes = {
        "map": "average precision, mean over the classes",
        "micro_map": "average precision over all labels",
        "auroc": "area under the ROC curve, mean over the classes",
        "f1": f"over all labels, at {at}",
        "macro_f1": f"mean over the classes, at {at}",
        "cf1": f"at 0.5; precision {measured['cp']:.2%}, recall {measured['cr']:.2%} by class",
        "of1": f"at 0.5; precision {measured['op']:.2%}, recall {measured['or']:.2%} over all",
    }
    return {key: note for key, note in notes.items() if key in measured}


def _show_sizes(measuring: lib.Measuring, found: list[dict[str, Any]], writer: _Writer) -> None:
    native = native_size(measuring.trained)[0]
    rows = [tuple(found[0]), *(tuple(row.values()) for row in found)]
    _print(f"\nby size of the input; training was at {native}x{native}")
    _show(rows, right=range(1, len(rows[0])))
    writer.write("sizes.csv", _csv(rows))
    name = short_name(measuring.target.source.name)
    writer.write("sizes.png", plots.draw_sizes([row[:4] for row in rows[1:]], native, name))


def _show_corruptions(
    measuring: lib.Measuring, found: dict[str, Any], clean: float, writer: _Writer
) -> None:
    table = {name: {int(k): x for k, x in row.items()} for name, row in found["top1"].items()}
    severities = list(next(iter(table.values())))
    means = [fmean(row[each] for row in table.values()) for each in severities]
    rows: list[Sequence[Any]] = [("top1", *(f"severity {each}" for each in severities), "mean")]
    rows += [(name, *row.values(), fmean(row.values())) for name, row in table.items()]
    rows += [("mean", *means, found["mean_top1"]), ("clean", *[clean] * (len(means) + 1))]
    _print(f"\nunder corruption, severities of {found['severities_of']}")
    _show(rows, right=range(1, len(rows[0])))
    writer.write("corruptions.csv", _csv(rows))
    name = short_name(measuring.target.source.name)
    writer.write("corruptions.png", plots.draw_corruptions(table, clean, name))


def _print(text: str) -> None:
    if jax.process_index() == 0:
        print(escapes.lines(text))


def _show(rows: Sequence[Sequence[Any]], right: Sequence[int]) -> None:
    header, *cells = [[f"{x:.4f}" if isinstance(x, float) else str(x) for x in row] for row in rows]
    _print("\n".join(align(header, cells, right=right)))


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(
        [f"{x:.6f}" if isinstance(x, float) else escapes.cell(x) for x in row] for row in rows
    )
    return file.getvalue()


main = options.verb(Evaluate, evaluate, _read)
