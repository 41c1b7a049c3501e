# SPDX-License-Identifier: Apache-2.0
"""`vit_jax visualize`: pictures of what a run does and of what a model has learned."""

import dataclasses
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from vit_jax.cli.parsing import flags, model_options, options
from vit_jax.cli.parsing.model_options import InputOptions, ModelOptions, WeightsOptions
from vit_jax.cli.parsing.options import ConfigOptions, flag
from vit_jax.errors import UserError
from vit_jax.inference.images import expand
from vit_jax.inference.pixels import PixelTask
from vit_jax.inference.trained import Trained, read_weights
from vit_jax.inference.views import read_view
from vit_jax.process import startup
from vit_jax.visual import attention_sheets, augmentation_sheets, reconstructions, weight_sheets
from vit_jax.visual.saliency import check

_OUT = Path("runs/visualize")


@dataclasses.dataclass(kw_only=True)
class VisualizeAttention(ModelOptions):
    """Draws where a model looks: NAME_attention.png of each image, and attention_distance.png.

    The first shows it over the image, in all and by layer and head, the second how far heads look.
    Networks without attention show their class activation map. An IMAGE is a file, a folder, a
    pattern, or - for a list on stdin.

      vit_jax visualize --attention --from=runs/vit_mu_digits docs/images/digits
      vit_jax visualize --attention --from=npz:ViT-B_16.npz --model=vit_b16_384 cat.jpg \\
          --layers=all --heads=none
    """

    usage = "vit_jax visualize --attention --from=WEIGHTS IMAGE ... [flags]"
    images: tuple[str, ...] = model_options.images()
    layers: str = flag("", "layers to draw, or all; by default up to 4 of each kind", "0,5,11")
    heads: str = flag("", "heads to draw beside their mean, all, or none; by default 6", "0,3")
    out: Path = flag(_OUT, "where to", "DIR")


@dataclasses.dataclass(kw_only=True)
class Similarity(InputOptions):
    """Draws where images are like a text: NAME_similarity.png of each image.

    Each patch goes alone the way to the space of the texts; its cosine to the text is over the
    image. The model must have a text tower. An IMAGE is a file, a folder, a pattern, or - for a
    list on stdin.

      vit_jax visualize --similarity="a dog" --from=hub:google/siglip-base-patch16-224 photos
    """

    usage = "vit_jax visualize --similarity=TEXT --from=WEIGHTS IMAGE ... [flags]"
    similarity: str = flag("", "what to look for", "TEXT", ask="which text? --similarity='a dog'")
    images: tuple[str, ...] = model_options.images()
    tokenizer: str = model_options.tokenizer()
    out: Path = flag(_OUT, "where to", "DIR")


@dataclasses.dataclass(kw_only=True)
class Reconstruct(ModelOptions):
    """Draws what a masked autoencoder predicts: reconstructions.png.

    Each image as it is, with hidden patches, and with what is predicted there. An IMAGE is a file,
    a folder, a pattern, or - for a list on stdin.

      vit_jax visualize --reconstruct --from=runs/unlabelled_mae docs/images/digits
    """

    usage = "vit_jax visualize --reconstruct --from=WEIGHTS IMAGE ... [flags]"
    images: tuple[str, ...] = model_options.images()
    out: Path = flag(_OUT, "where to", "DIR")


@dataclasses.dataclass(kw_only=True)
class VisualizePixels(ModelOptions):
    """Draws what a model says of pixels over each image: pixels.png.

    Classes, objects, segments or depths; `predict` writes them as files. An IMAGE is a file, a
    folder, a pattern, or - for a list on stdin.

      vit_jax visualize --pixels --from=runs/eomt photos
    """

    usage = "vit_jax visualize --pixels --from=WEIGHTS IMAGE ... [flags]"
    images: tuple[str, ...] = model_options.images()
    task: PixelTask | None = flag(None, "what it is asked; by default what it was trained for")
    out: Path = flag(_OUT, "where to", "DIR")


@dataclasses.dataclass(kw_only=True)
class Weights(WeightsOptions):
    """Draws weights: patch_filters.png and positions.png.

    A ConViT adds gates.png, a Swin relative_bias.png.

      vit_jax visualize --weights --from=runs/vit_mu_digits
    """

    usage = "vit_jax visualize --weights --from=WEIGHTS [flags]"
    out: Path = flag(_OUT, "where to", "DIR")


@dataclasses.dataclass(kw_only=True)
class Augmentations(ConfigOptions):
    """Draws a run's augmentation: transform.png, operations.png and batch.png.

    Images as evaluated, then as drawn for training, a row for each view; every operation of
    auto_augment; batches as the step sees them, mixed and erased.

      vit_jax visualize --augmentations --config=configs/vit_mu_digits.py
      vit_jax visualize --augmentations --config=configs/deit_imagenet.py:s16 \\
          --images cat.jpg dog.jpg --out=sheets
    """

    usage = "vit_jax visualize --augmentations --config=FILE [flags]"
    images: tuple[str, ...] = flag((), "images instead of the run's training split", " FILE ...")
    count: int = flag(8, "draws of each image, and images of a batch", least=1, most=16)
    out: Path = flag(_OUT, "where to", "DIR")


def attention(given: VisualizeAttention, found: Trained) -> int:
    """Draw the sheets of images; returns 1 where one was broken, else 0."""
    check(found.model)
    choice = attention_sheets.Choice(*(_numbers(name, given) for name in ("layers", "heads")))
    broken: list[str] = []
    images = _views(expand(given.images, sys.stdin, found.reading.bands), found, broken)
    trained = read_weights(found, headless=True)
    _print(attention_sheets.write_sheets(trained, images, given.out, choice))
    return 1 if broken else 0


def similarity(given: Similarity, found: Trained) -> int:
    """Draw the sheets of images; returns 1 where one was broken, else 0."""
    from vit_jax.inference import image_text  # late: most models have no texts
    from vit_jax.visual import similarity_sheets

    image_text.check_texts([given.similarity])
    broken: list[str] = []
    images = _views(expand(given.images, sys.stdin, found.reading.bands), found, broken)
    trained, pair = image_text.read(found)
    _print(similarity_sheets.write_sheets(trained, pair, given.similarity, images, given.out))
    return 1 if broken else 0


def reconstruct(given: Reconstruct, found: Trained) -> int:
    """Draw the sheet of images; returns 1 where one was broken, else 0."""
    broken: list[str] = []
    files = expand(given.images, sys.stdin, found.reading.bands)
    images = _views(files, found, broken)
    _print(reconstructions.write_sheet(found, images, given.out, len(files)))
    return 1 if broken else 0


def of_pixels(given: VisualizePixels, found: Trained) -> int:
    """Draw the sheet of images; returns 1 where one was broken, else 0."""
    from vit_jax.visual import pixel_sheets  # late: most models tell one class an image

    images = expand(given.images, sys.stdin, found.reading.bands)
    written, broken = pixel_sheets.write_sheet(found, images, given.out, given.task)
    for error in broken:
        print(f"skipped {error}", file=sys.stderr)
    _print(written)
    return 1 if broken else 0


def _views(files: Sequence[str], found: Trained, broken: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield the name and the pixels of each image; a broken one is told and added to `broken`."""
    for file in files:
        view = read_view(found, file)
        if isinstance(view, str):
            print(f"skipped {view}", file=sys.stderr)
            broken.append(file)
        else:
            yield Path(file).name, view


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _numbers(name: str, given: VisualizeAttention) -> tuple[int, ...] | str:
    """Read "0,3,11" or "none" as numbers; "" and "all" stay what they are."""
    text, words = getattr(given, name), ("all", "none")[: 1 if name == "layers" else 2]
    if text in ("", *words):
        return () if text == "none" else text
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise UserError(f"--{name}={text} must be numbers, such as 0,3, or {' or '.join(words)}")
    return tuple(map(int, text.split(",")))


def weights(given: Weights, found: Trained) -> None:
    """Draw the sheets of weights."""
    startup.stay_on_cpu()  # nothing here is worth waiting for a GPU
    _print(weight_sheets.write_sheets(read_weights(found, headless=True), given.out))


def augmentations(given: Augmentations, cfg: Any) -> None:
    """Draw the sheets of a run's data."""
    startup.stay_on_cpu()
    _print(augmentation_sheets.write_sheets(cfg, given.images, given.out, given.count))


def _read_augmentations(cls: type[Augmentations], argv: Sequence[str]) -> tuple[Any, Any]:
    """Read a command line with `--images FILE FILE ...`."""
    words, images, taking = [], [], False
    for word in argv:
        found = re.fullmatch(r"--?images(?:=(.*))?", word)
        taking = bool(found) or (taking and not word.startswith("-"))
        if not taking:
            words.append(word)
        elif image := found[1] if found else word:
            images.append(image)
    if len(words) < len(argv) and not images:
        raise UserError("--images needs the names of one or more files")
    given, cfg = options.read_config(cls, words)
    return dataclasses.replace(given, images=tuple(images)), cfg


_SIMILARITY = "--similarity"  # the one mode that has a value
# Each mode reads the rest of the command line and has flags of its own.
_MODES = {
    "--augmentations": (Augmentations, augmentations, _read_augmentations),
    "--attention": (VisualizeAttention, attention, model_options.read),
    _SIMILARITY: (Similarity, similarity, model_options.read),
    "--reconstruct": (Reconstruct, reconstruct, model_options.read),
    "--pixels": (VisualizePixels, of_pixels, model_options.read),
    "--weights": (Weights, weights, model_options.read),
}


def main(argv: Sequence[str]) -> int:
    """Run the command line (program name first) and return the exit status."""
    starts = [word.partition("=")[0] if word.startswith(_SIMILARITY) else word for word in argv[1:]]
    modes = [word for word in starts if word in _MODES]
    if len(modes) == 1:
        cls, command, read = _MODES[modes[0]]
        rest = [word for word in argv if word != modes[0] or word == _SIMILARITY]
        return options.run(cls, rest, command, read)
    if "-h" in argv or "--help" in argv:
        print("\n\n".join(options.help_text(cls) for cls, _, _ in _MODES.values()))
        return 0
    flags.print_error(f"what to show? add one of: {', '.join(_MODES)}", debug=False)
    return UserError.status


if __name__ == "__main__":
    sys.exit(main(sys.argv))
