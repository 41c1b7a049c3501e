# SPDX-License-Identifier: Apache-2.0
"""`python -m vit_jax visualize`: pictures of what a run does and of what a model has learned."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import flags

from vit_jax import startup
from vit_jax.cli import flags as cli_flags
from vit_jax.cli import trained_flags
from vit_jax.errors import UserError

_HELP = f"""usage: python -m vit_jax visualize --attention --from=WEIGHTS IMAGE ... [flags]
       python -m vit_jax visualize --weights --from=WEIGHTS [flags]
       python -m vit_jax visualize --augmentations --config=FILE [flags]

Writes contact sheets (PNG). What to show, one of:

  --attention         NAME_attention.png of each image: where the model looked, over the image,
                      in all and by layer and head; attention_distance.png: how far heads look.
                      Of networks without attention, the class activation map
  --weights           patch_filters.png, positions.png; of a ConViT gates.png, of a Swin
                      relative_bias.png
  --augmentations     transform.png: images as evaluated, then as drawn for training
                      operations.png: every operation of data.transform.auto_augment
                      batch.png: batches as the step sees them, mixed and erased

  --out=DIR           where to (default: runs/visualize)

With --attention (an IMAGE is a file, a folder, a pattern, or - for a list on stdin):

  --layers=0,5,11     layers to draw, or all (default: up to 4 of each kind, evenly spaced)
  --heads=0,3         heads to draw beside their mean, all, or none (default: up to 6)

With --attention or --weights:

{trained_flags.WEIGHTS}

With --attention:

{trained_flags.INPUTS}

With --augmentations:

  --config=FILE       the run, with overrides such as --config.data.mix.cutmix_alpha=1
  --images FILE ...   take these images instead of the run's training split
  --count=N           draws of each image, and images of a batch (default: 8)
  --debug             show the traceback of an error

  python -m vit_jax visualize --attention --from=runs/vit_mu_digits docs/images/digits
  python -m vit_jax visualize --attention --from=npz:ViT-B_16.npz --model=vit_b16_384 cat.jpg \\
      --layers=all --heads=none
  python -m vit_jax visualize --weights --from=runs/vit_mu_digits
  python -m vit_jax visualize --augmentations --config=configs/vit_mu_digits.py
  python -m vit_jax visualize --augmentations --config=configs/deit_imagenet.py:s16 \\
      --images cat.jpg dog.jpg --out=sheets"""


def main(argv: Sequence[str]) -> int:
    """Run the command line (program name first) and return the exit status."""
    if any(argument in ("-h", "--help", "-help") for argument in argv[1:]):
        print(_HELP)
        return 0

    def command() -> int:
        mode, rest = _mode(argv)
        return _MODES[mode](rest)

    return cli_flags.run(command, argv)


def _mode(argv: Sequence[str]) -> tuple[str, list[str]]:
    """Return which mode a command line asks for, and the command line without it."""
    asked = [word for word in argv[1:] if word.removeprefix("--") in _MODES and word[:2] == "--"]
    if len(asked) != 1:
        raise UserError(f"what to show? add one of: {', '.join(f'--{mode}' for mode in _MODES)}")
    return asked[0].removeprefix("--"), [word for word in argv if word != asked[0]]


def _say(lines: Iterable[str]) -> int:
    for line in lines:
        print(line, flush=True)
    return 0


def _augmentations(argv: Sequence[str]) -> int:
    jax.config.update("jax_platforms", "cpu")  # nothing here is worth waiting for a GPU
    words = _spread_images(argv)
    values = cli_flags.define(words)
    _define_out(values)
    flags.DEFINE_multi_string("images", [], "See --help.", flag_values=values)
    flags.DEFINE_integer("count", 8, "See --help.", 1, 16, flag_values=values)
    cfg = cli_flags.read_config(words, values)
    from vit_jax.visual.augmentation_sheets import write_sheets

    files, count = (values[name].value for name in ("images", "count"))
    return _say(write_sheets(cfg, files or [], _out(values), int(count or 1)))


def _attention(argv: Sequence[str]) -> int:
    startup.configure()
    values = flags.FlagValues()
    _define_out(values)
    trained_flags.define(values)
    for name in ("layers", "heads"):
        flags.DEFINE_string(name, "", "See --help.", flag_values=values)
    found, names = trained_flags.read(argv, values)
    from vit_jax.inference import read_weights
    from vit_jax.inference.images import expand
    from vit_jax.inference.views import read_view
    from vit_jax.visual.attention_sheets import Choice, write_sheets
    from vit_jax.visual.saliency import check

    check(found.model)
    choice = Choice(*(_numbers(name, str(values[name].value)) for name in ("layers", "heads")))
    if not names:
        raise UserError("which images? name files, folders or patterns, or - to read a list")
    files, broken = expand(names, sys.stdin), []

    def images() -> Iterator[tuple[str, Any]]:
        for file in files:
            view = read_view(found, file)
            if isinstance(view, str):
                print(f"skipped {view}", file=sys.stderr)
                broken.append(file)
            else:
                yield Path(file).name, view

    status = _say(write_sheets(read_weights(found, headless=True), images(), _out(values), choice))
    return 1 if broken else status


def _numbers(name: str, text: str) -> tuple[int, ...] | str:
    """Read "0,3,11" or "none" as numbers; "" and "all" stay what they are."""
    words = {"layers": ("", "all"), "heads": ("", "all", "none")}[name]
    if text in words:
        return () if text == "none" else text
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise UserError(
            f"--{name}={text} must be numbers, such as 0,3, or {' or '.join(words[1:])}"
        )
    return tuple(int(number) for number in text.split(","))


def _weights(argv: Sequence[str]) -> int:
    jax.config.update("jax_platforms", "cpu")
    values = flags.FlagValues()
    _define_out(values)
    trained_flags.define(values, inputs=False)
    found, _ = trained_flags.read(argv, values, positional=False)
    from vit_jax.inference import read_weights
    from vit_jax.visual.weight_sheets import write_sheets

    return _say(write_sheets(read_weights(found, headless=True), _out(values)))


def _define_out(values: flags.FlagValues) -> None:
    flags.DEFINE_string("out", "runs/visualize", "See --help.", flag_values=values)


def _out(values: flags.FlagValues) -> Path:
    return Path(str(values["out"].value)).expanduser()


# Each reads the rest of the command line, and knows no other's flags.
_MODES: dict[str, Callable[[Sequence[str]], int]] = {
    "augmentations": _augmentations,
    "attention": _attention,
    "weights": _weights,
}


def _spread_images(argv: Sequence[str]) -> list[str]:
    """Write `--images A B` as `--images=A --images=B`, which a flag of many values reads."""
    words, of_images = [], False
    for word, after in zip(argv, [*argv[1:], "-"], strict=True):
        if re.fullmatch(r"--?images", word):
            of_images = True
            if after.startswith("-"):
                raise UserError("--images needs the names of one or more files")
        elif word.startswith("-"):
            of_images = re.match(r"--?images=", word) is not None
            words.append(word)
        else:
            words.append(f"--images={word}" if of_images else word)
    return words


if __name__ == "__main__":
    sys.exit(main(sys.argv))
