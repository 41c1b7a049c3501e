# SPDX-License-Identifier: Apache-2.0
"""`python -m vit_jax probe --from=RUN`: how good a network's frozen features are; features to disk.

What is asked for is read here; `probing` does it.
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from vit_jax import errors, startup
from vit_jax.cli import flags as cli_flags
from vit_jax.cli import probing, trained_flags
from vit_jax.errors import UserError
from vit_jax.inference.images import expand

_HELP = f"""usage: python -m vit_jax probe --from=RUN [flags] [IMAGE ...]

Probes what the head of a trained model sees: simple classifiers on its frozen features, fitted to
a labelled split and tested on another. With --features=DIR writes the features; of image files,
folders or patterns that are named, which need no labels, it does only that.

{trained_flags.WEIGHTS}
  --mean=M,M,M --std=...  of the input, white is 1; by default the run's, or those published
  --transform.FIELD=VALUE how an image is brought to size: crop, crop_ratio, resize

  --dataset=NAME          a dataset as data.name takes it, or folder:DIR; by default the run's own
  --data_dir=DIR          where TFDS datasets lie; by default the run's
  --train_split=SPLIT     what the probes learn from (default: train); train[:10%] is a part of it
  --test_split=SPLIT      what they are tested on (default: test)
  --methods=M,M           of fewshot, knn, logistic (default: all); none, with --features
  --shots=1,5,10,25       fewshot: images a class
  --seeds=3               fewshot: how often they are drawn, from --seed on
  --l2=1024               fewshot: strength of the regularisation, several are tried one by one
  --k=10,20,100,200       knn: neighbours (default: those of these that there are images for)
  --temperature=0.07      knn: of the votes
  --seed=0                of what is drawn at random
  --pixels                probe the pixels as well, to compare
  --batch_size=256        over all devices

  --features=DIR          write features_train.npy, labels_train.npy, names_train.txt, and of test
  --out=FILE.json         write the results
  --plot=FILE.png         draw fewshot's accuracy against the shots
  --force                 replace what is there

  python -m vit_jax probe --from=runs/vit_mu_digits --pixels
  python -m vit_jax probe --from=npz:ViT-B_16.npz --model=vit_b16 --model.num_classes=21843 \\
      --dataset=folder:flowers --test_split=val --methods=fewshot
  python -m vit_jax probe --from=runs/vit_mu_digits --features=features photos/*.jpg"""

METHODS = ("fewshot", "knn", "logistic")
# What a flag is of no use without.
_OF_METHOD = {"shots": "fewshot", "seeds": "fewshot", "l2": "fewshot", "plot": "fewshot"}
_OF_METHOD |= {"k": "knn", "temperature": "knn"}
_OF_DATASET = ("dataset", "data_dir", "train_split", "test_split", "methods", "seed", "pixels")


def main(argv: Sequence[str]) -> int:
    """Run the command line (program name first) and return the exit status."""
    if any(argument in ("-h", "--help", "-help") for argument in argv[1:]):
        print(_HELP)
        return 0

    def command() -> int:
        values = flags.FlagValues()
        if cli_flags.value_of("classes", argv) is not None:
            raise UserError("--classes names a model's classes, which a probe does not use")
        trained_flags.define(values)
        define(values)
        found, names = trained_flags.read(argv, values)
        asked: dict[str, Any] = {name: values[name].value for name in values}
        if asked["methods"] == ["none"]:
            asked["methods"] = []
        given = {name for name in values if values[name].present}
        _check(given, asked, images=bool(names))
        startup.configure()
        folder, out, plot = (_path(asked[name]) for name in ("features", "out", "plot"))
        if folder is not None and names:
            files, force = expand(names, sys.stdin), asked["force"]
            return probing.write_images(found, files, folder, asked["batch_size"], force=force)
        settings = {
            "shots": _numbers("shots", asked["shots"], int),
            "l2": _numbers("l2", asked["l2"], float),
            "seeds": asked["seeds"],
            "k": _numbers("k", asked["k"], int),
            "temperature": asked["temperature"],
            "seed": asked["seed"],
        }
        request = probing.Request(
            methods=tuple(dict.fromkeys(asked["methods"])),
            settings=settings,
            features=folder,
            out=out,
            plot=plot,
            **{name: asked[name] for name in ("dataset", "data_dir", "train_split", "test_split")},
            **{name: asked[name] for name in ("pixels", "batch_size", "force")},
        )
        probing.probe(found, request)
        return 0

    return cli_flags.run(command, argv)


def define(values: flags.FlagValues) -> None:
    """Define the verb's own flags."""
    texts = {"dataset": "", "data_dir": "", "train_split": "train", "test_split": "test"}
    for name, default in {**texts, "features": "", "out": "", "plot": ""}.items():
        flags.DEFINE_string(name, default, "See --help.", flag_values=values)
    lists = {"methods": METHODS, "shots": ("1", "5", "10", "25"), "l2": ("1024",), "k": ()}
    for name, words in lists.items():
        flags.DEFINE_list(name, list(words), "See --help.", flag_values=values)
    for name, default, least in (("seeds", 3, 1), ("seed", 0, 0), ("batch_size", 256, 1)):
        flags.DEFINE_integer(name, default, "See --help.", least, flag_values=values)
    flags.DEFINE_float("temperature", 0.07, "See --help.", flag_values=values)
    for name in ("pixels", "force"):
        flags.DEFINE_bool(name, False, "See --help.", flag_values=values)


def _check(given: set[str], asked: dict[str, Any], *, images: bool) -> None:
    """Refuse a flag that could not act."""
    for name in asked["methods"]:
        if name not in METHODS:
            raise errors.unknown("method", name, METHODS)
    if images:
        if not asked["features"]:
            raise UserError("images without labels cannot be probed; add --features=DIR")
        for name in (*_OF_DATASET, *_OF_METHOD, "out"):
            if name in given:
                raise UserError(f"--{name} is of a labelled dataset; name images or a dataset")
        return
    if not asked["methods"] and not asked["features"]:
        raise UserError("nothing to do: add --methods=fewshot,knn,logistic or --features=DIR")
    if not asked["methods"]:
        for name in ("seed", "pixels", "out"):
            if name in given:
                raise UserError(f"--{name} is of the probes; add --methods={','.join(METHODS)}")
    for name, method in _OF_METHOD.items():
        if name in given and method not in asked["methods"]:
            raise UserError(f"--{name} is of {method}, which is not among the methods")
    if not (math.isfinite(asked["temperature"]) and asked["temperature"] > 0):
        raise UserError(f"--temperature={asked['temperature']} must be above 0")
    if asked["force"] and not any(asked[name] for name in ("features", "out", "plot")):
        raise UserError("--force is of files; add --features, --out or --plot")


def _numbers(name: str, words: Sequence[str], kind: type) -> tuple[Any, ...]:
    try:
        numbers = tuple(dict.fromkeys(kind(word) for word in words))
    except ValueError:
        numbers = (0,)
    least = 1 if kind is int else sys.float_info.min
    if (name != "k" and not numbers) or not all(least <= n < math.inf for n in numbers):
        form = "whole numbers, such as 1,5,25" if kind is int else "numbers above 0, such as 1,1024"
        raise UserError(f"--{name}={','.join(words)} must be {form}")
    return numbers


def _path(text: str) -> Path | None:
    return Path(text).expanduser() if text else None


if __name__ == "__main__":
    sys.exit(main(sys.argv))
