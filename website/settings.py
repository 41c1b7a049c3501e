# SPDX-License-Identifier: Apache-2.0
"""The page of every field of a config: its default, range and unit, read from the dataclasses."""

import dataclasses
import enum
import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import vit_jax
from vit_jax import evals, models, objectives
from vit_jax.settings import fields
from vit_jax.settings.names import words
from website import tables

_LEAD = """# Config fields

Every field of a run's config, read from the code. A field is set in the config file, or on the
command line by its whole name, `--config.optim.lr=3e-4`. A value out of range is refused before
anything starts. A *duration* is written `"10_000 steps"`, `"5 epochs"`, `"300000 examples"` or
`"5%"` of the run. A continued run may change the fields marked &#8635;.
[Configs](../configs.md) explains how they work together.

"""


# The units of the ViT's fields; other families' fields of the same name have them too.
_UNITS = {f.name: f.metadata.get("unit") for f in dataclasses.fields(vit_jax.ViTConfig)}


def groups() -> Iterator[tuple[str, str, type]]:
    """Yield the title, the prefix of the flags and the class of each group of fields."""
    yield "A run", "", vit_jax.Config
    yield "data", "data.", vit_jax.DataConfig
    yield "data.transform", "data.transform.", vit_jax.TransformConfig
    yield "data.mix", "data.mix.", vit_jax.MixConfig
    yield "optim", "optim.", vit_jax.OptimConfig
    for name in objectives.OBJECTIVES:
        yield f"objective: {name}", "objective.", objectives.config_class(name)
    yield "objective.distill", "objective.distill.", vit_jax.TeacherConfig
    yield "objective.head of DinoConfig", "objective.head.", vit_jax.HeadConfig
    yield "objective.gram of DinoConfig", "objective.gram.", vit_jax.GramConfig
    yield "objective.loss of EomtConfig", "objective.loss.", vit_jax.MaskLossConfig
    yield "objective.dpt of DepthConfig", "objective.dpt.", vit_jax.DptConfig
    yield "objective.text of ContrastiveConfig", "objective.text.", vit_jax.TextConfig
    for kind in evals.EVALUATORS:
        yield f"evals.NAME: {kind.__name__}", "evals.NAME.", kind
    yield "mesh", "mesh.", vit_jax.MeshConfig
    yield "checkpoint", "checkpoint.", vit_jax.CheckpointConfig
    yield "init", "init.", vit_jax.InitConfig
    yield "lora", "lora.", vit_jax.LoraConfig
    yield "log", "log.", vit_jax.LogConfig
    yield "faults", "faults.", vit_jax.FaultsConfig
    for name in models.FAMILIES:
        yield f"model: {name}", "model.", models.config_class(name)


def page() -> str:
    """Return the page."""
    parts = [_LEAD]
    for title, prefix, cls in groups():
        first = inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        head = ("field", "default", "takes", "meaning")
        rows = [_row(cls, field, prefix, title) for field in dataclasses.fields(cls)]
        parts.append(f"## {title}\n\n{first}\n\n{tables.table(head, rows, 'fields')}\n\n")
    return "".join(parts)


def _row(cls: type, field: dataclasses.Field, prefix: str, title: str) -> list[tables.Cell]:
    kind = fields.annotations(cls)[field.name]
    free = " &#8635;" if field.metadata.get("free") else ""
    anchor = f"{_slug(title)}.{field.name}"
    name = f"<a href='#{anchor}'>{tables.code(prefix + field.name)}</a>{free}"
    said = _meanings(cls).get(field.name) or _elsewhere(field.name)
    return [
        tables.Cell(name, anchor=anchor),
        tables.Cell(_default(field)),
        tables.Cell(_takes(kind, field)),
        tables.Cell(tables.prose(said)),
    ]


def _slug(title: str) -> str:
    return re.sub(r"[^\w.]+", "-", title.lower())


def _default(field: dataclasses.Field) -> str:
    if field.default is not dataclasses.MISSING:
        value = field.default
    else:
        value = typing.cast(Any, field.default_factory)
        value = value if isinstance(value, type) else value()
    if isinstance(value, type):
        return tables.code(value.__name__ if dataclasses.is_dataclass(value) else "{}")
    if dataclasses.is_dataclass(value):
        return tables.code(type(value).__name__)
    return tables.code(repr(value.value if isinstance(value, enum.Enum) else value))


def _takes(kind: Any, field: dataclasses.Field) -> str:
    """Return in words what a field may hold, its bounds, and its unit."""
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return " ".join(tables.code(repr(choice.value)) for choice in kind)
    if dataclasses.is_dataclass(kind):
        return tables.code(typing.cast(type, kind).__name__)
    declared = field.metadata
    said = words(kind).partition(", such as")[0]
    bounds = " and ".join(f"{word} {bound}" for word, bound in declared.get("bounds", {}).items())
    lengths = " or ".join(map(str, declared.get("lengths", ())))
    parts = [
        said,
        bounds,
        f"{lengths} of them" if lengths else "",
        declared.get("unit") or _UNITS.get(field.name, ""),
    ]
    note = declared.get("note", "")
    return tables.prose(", ".join(filter(None, parts)) + (f"; {note}" if note else ""))


def _elsewhere(name: str) -> str:
    """Return the meaning of a model's field that its family has from another."""
    known = {**_meanings(vit_jax.ResNetConfig), **_meanings(vit_jax.ViTConfig)}
    return known.get(name, "")


def _meanings(cls: type) -> Mapping[str, str]:
    """Return what the docstrings of a class and its bases say of each field."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        text = inspect.cleandoc(base.__dict__.get("__doc__") or "")
        section = text.partition("Attributes:\n")[2]
        for names, meaning in re.findall(
            r"^    ([\w, ]+): (.*?)(?=^    \S|^\S|\Z)", section, re.MULTILINE | re.DOTALL
        ):
            found |= dict.fromkeys(names.split(", "), " ".join(meaning.split()))
    return found
