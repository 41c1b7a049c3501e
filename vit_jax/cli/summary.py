# SPDX-License-Identifier: Apache-2.0
"""`vit_jax summary --config=FILE`: a config and its model, by shapes alone."""

import dataclasses
import enum
import textwrap
from collections.abc import Iterator
from typing import Any

from vit_jax.cli.parsing import options
from vit_jax.cli.parsing.options import ConfigOptions, flag
from vit_jax.settings import fields
from vit_jax.settings import names as field_names


@dataclasses.dataclass(kw_only=True)
class Summary(ConfigOptions):
    """Prints a config, every parameter of its model with its shape, and the model's FLOPs.

    It needs no data and makes no array.

      vit_jax summary --config=configs/vit_b16_imagenet.py
      vit_jax summary --config=configs/vit_l16_imagenet.py --config.model.image_size=384
    """

    all_fields: bool = flag(False, "show the fields that are at their defaults, too")


def summary(given: Summary, cfg: Any) -> None:
    """Print config and tables."""
    from vit_jax import models
    from vit_jax.cost import flops, tables

    module = models.create(models.looped(cfg.model))  # traced sooner, counted alike
    params = models.abstract(cfg.model)["params"]
    height, width, channels = models.input_shape(cfg.model)
    forward = flops.forward_flops(module, (height, width), channels)
    lines = show(cfg, everything=given.all_fields)
    print("\n".join([*lines, "", *tables.parameter_table(params)]))
    print(f"\nforward pass of one {height}x{width} image: {tables.format_flops(forward)}")
    print(f"training step of one image: {tables.format_flops(flops.train_flops(forward))}")


def show(cfg: Any, *, everything: bool = False) -> list[str]:
    """List the fields off their defaults, or all, as flags take them, a line for each part."""
    groups: dict[str, list[str]] = {}
    for path, text in _items(cfg, "", everything):
        groups.setdefault(path, []).append(text)
    width = max(map(len, groups), default=0) + 2
    lines = []
    for path, texts in groups.items():
        # A value with spaces in it stays on one line.
        kept = " ".join(text.replace(" ", "\0") for text in texts)
        wrap = textwrap.TextWrapper(100, path.ljust(width), " " * width)
        wrap.break_long_words = wrap.break_on_hyphens = False
        lines += [line.replace("\0", " ") for line in wrap.wrap(kept)]
    return lines


def _items(node: Any, path: str, everything: bool) -> Iterator[tuple[str, str]]:
    """Yield (path of the part, "field=value"), the fields of a part before its parts."""
    default, parts = type(node)(), []
    for field in dataclasses.fields(node):
        value, here = getattr(node, field.name), f"{path}.{field.name}".lstrip(".")
        if dataclasses.is_dataclass(value):
            if fields.annotations(type(node))[field.name] is not type(value):
                parts.append((here, type(value).__name__))  # such as the model's class
            parts += _items(value, here, everything)
        elif isinstance(value, dict):
            for name, each in value.items():
                parts += _items(each, f"{here}.{name}", everything)
        elif everything or value != getattr(default, field.name):
            yield path or "run", f"{field.name}={_written(value)}"
    yield from parts


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return field_names.written(value) if value else "()"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value.value if isinstance(value, enum.Enum) else value) or '""'


main = options.verb(Summary, summary, options.read_config)
