# SPDX-License-Identifier: Apache-2.0
"""The flags by which every verb that uses a trained model names it."""

import dataclasses
import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_flags

from vit_jax import fields, models
from vit_jax.cli import flags as cli_flags
from vit_jax.data import check_fixed
from vit_jax.errors import UserError
from vit_jax.field_names import check_value_path
from vit_jax.inference.trained import Trained, describe, describe_input, named, with_model

WEIGHTS = """\
  --from=RUN              a run's workdir: DIR, DIR@STEP, DIR@best, DIR@latest
  --from=npz:FILE         a file of Google's vision_transformer, big_vision and so on
  --from=timm:FILE        a file under timm's or the authors' names
  --model=VARIANT         what an npz: or timm: file holds (vit_b16_384, swin_t, ...); a run knows
  --model.FIELD=VALUE     change a field of it, such as --model.image_size=384
  --ema, --noema          a run's moving average, or not; by default what it was ranked by
  --debug                 show the traceback of an error"""
INPUTS = """\
  --classes=FILE          names, one a line or a JSON list; by default the run's own, or ImageNet's
  --mean=M,M,M --std=...  of the input, white is 1; by default the run's, or those published
  --transform.FIELD=VALUE how an image is brought to size: crop, crop_ratio, resize"""
HELP = f"{WEIGHTS}\n{INPUTS}"


def define(values: flags.FlagValues, *, inputs: bool = True) -> None:
    """Define the flags that need no model to be known; `inputs`: for a verb that reads images."""
    flags.DEFINE_string("from", "", "The weights to read.", flag_values=values)
    flags.DEFINE_bool("ema", None, "The moving average.", flag_values=values)
    flags.DEFINE_bool("debug", False, "Show the traceback of an error.", flag_values=values)
    if inputs:
        flags.DEFINE_string("classes", "", "A file of class names.", flag_values=values)
        for name in ("mean", "std"):
            flags.DEFINE_list(name, [], "Of the input.", flag_values=values)


def read(
    argv: Sequence[str], values: flags.FlagValues, *, positional: bool = True
) -> tuple[Trained, list[str]]:
    """Parse a command line into the model that it names, its weights not yet read.

    Of a published file stderr says how its images are prepared, which the file does not.

    Args:
        argv: the command line, program name first.
        values: after `define`, with the verb's own flags.
        positional: whether the verb takes arguments that are no flags.

    Returns:
        The model, for `read_weights`, and the other arguments.

    Raises:
        UserError: an unknown flag or field, a value of the wrong type, no such weights.
    """
    source, variant = cli_flags.value_of("from", argv), cli_flags.value_of("model", argv)
    if not source:
        raise UserError("which model? add --from=DIR of a run, --from=npz:FILE or --from=timm:FILE")
    found = describe(source, model=None if variant is None else models.variant(variant))
    inputs, rest = "classes" in values, _without_variant(argv)
    bases: dict[str, Any] = {"model": dataclasses.replace(found.model)}
    if inputs:
        bases["transform"] = dataclasses.replace(found.transform)
    given: list[str] = []
    for argument in rest:
        field = re.match(r"--?(model|transform)\.([^=]+)", argument)
        if field and field[1] in bases:
            check_value_path(bases[field[1]], field[2], root=field[1])
            given += [field[2]] if field[1] == "transform" else []
    for name, base in bases.items():
        config_flags.DEFINE_config_dataclass(name, base, flag_values=values, sys_argv=rest)
    others = cli_flags.parse(rest, values, positional=positional, tree=bases)
    changed: dict[str, Any] = {name: values[name].value for name in bases}
    for name, config in changed.items():
        fields.conform(config, f"{name}.")
    ema: Any = values["ema"].value
    if ema and (found.config is None or not found.config.ema_decay):
        raise UserError(f"{source} holds no moving average to choose: leave --ema out")
    if ema is not None:
        found = dataclasses.replace(found, ema=ema)
    found = with_model(found, changed["model"])
    if inputs:  # what was said of the transform, on top of what that model's is
        said = {key: getattr(changed["transform"], key) for key in given}
        found = _with_inputs(
            dataclasses.replace(found, transform=dataclasses.replace(found.transform, **said)),
            values,
        )
        told = describe_input(found)
        if told:
            print(told, file=sys.stderr)
    return found, others


def _with_inputs(found: Trained, values: flags.FlagValues) -> Trained:
    check_fixed(found.transform)
    file = str(values["classes"].value)
    return dataclasses.replace(
        found,
        mean=_numbers("mean", values, found.channels) or found.mean,
        std=_numbers("std", values, found.channels) or found.std,
        class_names=named(_names(file), found.model) if file else found.class_names,
    )


def _without_variant(argv: Sequence[str]) -> list[str]:
    # `--model=NAME` and `--model NAME` are ours; `--model.FIELD` is for the flags' own parser.
    rest = list(argv)
    for i, argument in enumerate(rest):
        if re.fullmatch(r"--?model(=.*)?", argument):
            return rest[:i] + rest[i + (1 if "=" in argument else 2) :]
    return rest


def _numbers(name: str, values: flags.FlagValues, channels: int) -> tuple[float, ...]:
    given: Any = values[name].value
    try:
        numbers = tuple(float(word) for word in given)
        if not all(map(math.isfinite, numbers)):
            raise ValueError
    except ValueError:
        raise UserError(f"--{name}={','.join(given)} must be numbers, such as 0.5") from None
    if numbers and len(numbers) not in (1, channels):
        or_each = (
            "the model's images are grey" if channels == 1 else f"or {channels}, one a channel"
        )
        raise UserError(f"--{name}={','.join(given)} must be one number: {or_each}")
    if name == "std" and any(number <= 0 for number in numbers):
        raise UserError(f"--std={','.join(given)} must be above 0")
    return numbers


def _names(file: str) -> list[str]:
    if not file:
        return []
    try:
        text = Path(file).expanduser().read_text(encoding="utf-8")
        names = json.loads(text) if file.endswith(".json") else text.splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no text, or no JSON list of names"
        raise UserError(f"--classes={file}: {reason}") from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"--classes={file} must hold a list of names")
    return names
