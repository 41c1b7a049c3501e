# SPDX-License-Identifier: Apache-2.0
"""The flags by which every verb that uses a trained model names it."""

import dataclasses
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from vit_jax import models
from vit_jax.cli.parsing import flags, options
from vit_jax.cli.parsing.options import Options, flag
from vit_jax.data import check_transform, check_units
from vit_jax.data.config import is_random
from vit_jax.data.names import read_class_names
from vit_jax.devices import hardware
from vit_jax.errors import UserError, shown
from vit_jax.inference.trained import (
    Trained,
    describe,
    describe_input,
    named,
    named_pair,
    with_model,
)
from vit_jax.process import startup
from vit_jax.settings import fields
from vit_jax.storage import files

_WHICH = "which model? add --from=DIR of a run, --from=npz:FILE, timm:FILE or hub:USER/NAME"


@dataclasses.dataclass(kw_only=True)
class WeightsOptions(Options):
    """The weights alone."""

    from_: str = flag(
        "",
        "a run's workdir: DIR, DIR@STEP, DIR@best, DIR@latest; npz:FILE of Google's "
        "vision_transformer, big_vision and so on; timm:FILE under timm's or the authors' names; "
        "hub:USER/NAME[@REVISION] of the Hugging Face Hub, hub:./FOLDER of its files",
        "WEIGHTS",
        ask=_WHICH,
    )
    model: str = flag(
        "",
        "the model of an npz: or timm: file (vit_b16_384, swin_t, ...), or its pair of towers "
        "(siglip2_b16, ...); a run and a repository have their own. "
        "--model.image_size=384 changes a field of it",
        "=VARIANT",
    )
    ema: bool | None = flag(None, "a run's moving average, or not; default: what it was ranked by")


@dataclasses.dataclass(kw_only=True)
class InputOptions(WeightsOptions):
    """The weights, and how an image is prepared."""

    mean: tuple[float, ...] = flag(
        (), "of the input, white is 1; by default the run's, or those published", "M,M,M"
    )
    std: tuple[float, ...] = flag((), "as --mean", "S,S,S", above=0)
    # The names of the fields that flags set.
    transform: tuple[str, ...] = flag((), "sizes images: crop, crop_ratio, resize", ".FIELD=VALUE")


@dataclasses.dataclass(kw_only=True)
class ModelOptions(InputOptions):
    """The weights, how an image is prepared, what the classes are called."""

    classes: Path | None = flag(
        None, "names, a line each or JSON; default: the run's, or ImageNet's"
    )


def tta() -> Any:
    """Declare the test-time augmentation of a verb."""
    return flag((), "average over copies of each image: flip, shift (4, by 1/16), or flip,shift")


def tokenizer() -> Any:
    """Declare the tokenizer of a file with two towers."""
    text = "of an npz: or timm: file, which has none: clip, hub:USER/NAME, a FILE"
    return flag("", text, "REF")


def images() -> Any:
    """Declare the images that a verb takes."""
    ask = "which images? name files, folders or patterns, or - to read a list"
    return flag((), "what to look at", "[IMAGE ...]", ask=ask)


Kind = TypeVar("Kind", bound=WeightsOptions)


def read(
    cls: type[Kind], argv: Sequence[str], trees: dict[str, Any] | None = None
) -> tuple[Kind, Trained]:
    """Read a command line into its options and the model that it names, its weights not yet read.

    `trees` are dataclasses of the verb's own, as in `flags.parse`.

    Raises UserError: an unknown flag or field, a value of the wrong type, no such weights.
    """
    variant, rest = flags.take("model", argv)
    source, _ = flags.take("from", rest)
    if not source:
        raise UserError(_WHICH)
    startup.configure()
    towers = named_pair(variant or "")
    network = towers.image if towers else None if variant is None else models.variant(variant)
    found = dataclasses.replace(describe(source, model=network), towers=towers)
    bases: dict[str, Any] = {} if trees is None else trees
    bases["model"] = found.model
    if issubclass(cls, InputOptions):
        bases["transform"] = found.transform
    given = options.read_trees(cls, rest, bases)
    for name, base in bases.items():
        fields.conform(base, f"{name}.")
    if given.ema and (found.config is None or not found.config.ema_decay):
        raise UserError(f"{source} holds no moving average to choose: leave --ema out")
    if given.ema is not None:
        found = dataclasses.replace(found, ema=given.ema)
    found = dataclasses.replace(
        found, tta=getattr(given, "tta", ()), tokenizer=getattr(given, "tokenizer", "")
    )
    found = with_model(found, bases["model"])
    if isinstance(given, InputOptions):
        words = [re.match(r"--?(?:no)?transform\.([^=]+)", word) for word in rest]
        given.transform = tuple(word[1] for word in words if word)
        found = _with_input(found, given, bases["transform"])
    return given, found


def say_slow_dtype(found: Trained) -> None:
    """Print one line to stderr if float32 is faster than the model's dtype on this CPU."""
    if line := hardware.slow_dtype(found.model.dtype, "model.dtype"):
        print(line, file=sys.stderr)


def _with_input(found: Trained, given: InputOptions, transform: Any) -> Trained:
    """Set the preprocessing of images; stderr shows it for a published file, which holds none."""
    # Only the fields that flags set: --model may have changed the transform's other fields.
    fields_set = {name: getattr(transform, name) for name in given.transform}
    transform = dataclasses.replace(found.transform, **fields_set)
    check_transform(transform, "transform")
    if is_random(transform):
        raise UserError("transform is random; choose crop=center, squash_center, resize or none")
    for name, numbers in (("mean", given.mean), ("std", given.std)):
        if numbers and len(numbers) not in (1, found.channels):
            each = f"or {found.channels}, one a channel"
            each = "the model's images are grey" if found.channels == 1 else each
            text = ",".join(map(str, numbers))
            raise UserError(f"--{name}={text} must be one number: {each}")
        check_units(f"--{name}", numbers)
    found = dataclasses.replace(
        found, transform=transform, mean=given.mean or found.mean, std=given.std or found.std
    )
    if isinstance(given, ModelOptions) and given.classes is not None:
        class_names = named(_names(given.classes), found.model)
        if class_names != found.class_names and {*class_names} == {*found.class_names}:
            k, (one, own) = next(
                (k, names)
                for k, names in enumerate(zip(class_names, found.class_names, strict=True))
                if len({*names}) > 1
            )
            said = f"calls output {k} {shown(one)!r}, and {found.ref} itself {shown(own)!r}"
            print(f"warning: --classes={given.classes} {said}", file=sys.stderr)
        found = dataclasses.replace(found, class_names=class_names)
    if line := describe_input(found):
        print(line, file=sys.stderr)
    return found


def _names(file: Path) -> list[str]:
    with files.refused(f"--classes={file}"):
        data = file.read_bytes()
    try:
        names = read_class_names(data.decode())
    except UnicodeDecodeError:
        raise UserError(f"--classes={file}: no text in UTF-8") from None
    except ValueError as error:
        raise UserError(f"--classes={file}: {error}") from None
    return list(names)
