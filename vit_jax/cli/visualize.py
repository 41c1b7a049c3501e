# SPDX-License-Identifier: Apache-2.0
"""`python -m vit_jax visualize --augmentations --config=FILE`: pictures of what a run does."""

import re
from collections.abc import Sequence
from pathlib import Path

import jax
from absl import flags

from vit_jax.cli import flags as cli_flags
from vit_jax.errors import UserError

_HELP = """usage: python -m vit_jax visualize --augmentations --config=FILE [flags]

Writes contact sheets (PNG). What to show, one of:

  --augmentations     transform.png: images as evaluated, then as drawn for training
                      operations.png: every operation of data.transform.auto_augment
                      batch.png: batches as the step sees them, mixed and erased

  --config=FILE       the run, with overrides such as --config.data.mix.cutmix_alpha=1
  --images FILE ...   take these images instead of the run's training split
  --out=DIR           where to (default: runs/visualize)
  --count=N           draws of each image, and images of a batch (default: 8)
  --debug             show the traceback of an error

  python -m vit_jax visualize --augmentations --config=configs/vit_mu_digits.py
  python -m vit_jax visualize --augmentations --config=configs/deit_s16_imagenet.py \\
      --images cat.jpg dog.jpg --out=sheets"""

_MODES = ("augmentations",)


def main(argv: Sequence[str]) -> int:
    """Run the command line (program name first) and return the exit status."""
    if any(argument in ("-h", "--help") for argument in argv):
        print(_HELP)
        return 0

    def command() -> int:
        jax.config.update("jax_platforms", "cpu")  # nothing here is worth waiting for a GPU
        words = _spread_images(argv)
        values = cli_flags.define(words)
        for mode in _MODES:
            flags.DEFINE_bool(mode, False, "See --help.", flag_values=values)
        flags.DEFINE_multi_string("images", [], "See --help.", flag_values=values)
        flags.DEFINE_string("out", "runs/visualize", "See --help.", flag_values=values)
        flags.DEFINE_integer("count", 8, "See --help.", 1, 16, flag_values=values)
        cfg = cli_flags.read_config(words, values)
        if [bool(values[mode].value) for mode in _MODES].count(True) != 1:
            raise UserError(f"what to show? add one of: {', '.join(f'--{m}' for m in _MODES)}")
        from vit_jax.cli.augmentation_sheets import write_sheets

        files, out, count = (values[name].value for name in ("images", "out", "count"))
        print("\n".join(write_sheets(cfg, files or [], Path(str(out)), int(count or 1))))
        return 0

    return cli_flags.run(command, argv)


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
