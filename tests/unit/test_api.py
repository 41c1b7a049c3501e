# SPDX-License-Identifier: Apache-2.0
"""What `import vit_jax` offers: every public name, globs of variants, signatures that say types."""

import ast
import dataclasses
import inspect
import types
import typing
from pathlib import Path

import pytest

import vit_jax
from vit_jax import evals, models, objectives
from vit_jax.errors import UserError
from vit_jax.settings import fields
from vit_jax.train import loop


def test_every_public_name_is_what_it_says() -> None:
    assert {*vit_jax.__all__, "__version__"} == set(dir(vit_jax))
    for name in vit_jax.__all__:
        found = getattr(vit_jax, name)
        if isinstance(found, types.ModuleType):
            assert found.__name__ == f"vit_jax.{name}"
        else:
            assert found.__name__ == name
    with pytest.raises(AttributeError, match="vit_jax has no 'nonsense'; dir"):
        vit_jax.nonsense  # noqa: B018


def test_editors_see_the_same_names() -> None:
    tree = ast.parse(Path(vit_jax.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name: f"vit_jax.{alias.name}" if node.module == "vit_jax" else node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == vit_jax._PUBLIC


def groups(kind: typing.Any, found: set[type]) -> set[type]:
    """Collect the dataclasses that an annotation holds, and what their fields do."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind not in found:
        found.add(kind)
        for inner in fields.annotations(kind).values():
            groups(inner, found)
    for inner in typing.get_args(kind):
        groups(inner, found)
    return found


def test_all_groups_of_a_config_are_public() -> None:
    found = groups(vit_jax.Config, set())
    families = map(models.config_class, models.FAMILIES)
    learned = map(objectives.config_class, objectives.OBJECTIVES)
    for kind in (*families, *learned, *evals.EVALUATORS):
        groups(kind, found)
    assert len(found) > 30
    lacking = [kind.__name__ for kind in found if getattr(vit_jax, kind.__name__, None) != kind]
    assert not lacking


def test_models_are_listed_by_globs() -> None:
    assert vit_jax.list_models() == vit_jax.list_models("") == list(models.VARIANTS)
    assert vit_jax.list_models("vit_b16") == ["vit_b16"]
    b16 = vit_jax.list_models("*b16*")
    assert {"vit_b16", "deit_b16", "mixer_b16"} <= set(b16)
    assert all("b16" in name for name in b16)
    for pattern in ("^vit_b", "*b16", "vit_[", "(", "+", "\\", "[!a", "[b-a]", "vit_b1"):
        try:
            assert vit_jax.list_models(pattern)
        except UserError as error:
            text = str(error)
            assert text.startswith(f"unknown model {pattern!r}; ")
            assert text.endswith("A pattern is a glob, such as 'vit_b*' or '*b16*'")


def test_signatures_say_names_and_types() -> None:
    ours = dict(inspect.signature(vit_jax.fit).parameters)
    assert list(ours)[:3] == ["config", "workdir", "overrides"]
    theirs = dict(inspect.signature(loop.fit).parameters)
    typed = [(name, each.annotation, each.default) for name, each in ours.items()][3:]
    assert typed == [(n, each.annotation, each.default) for n, each in theirs.items()][2:]
    public = [vit_jax.create_model, vit_jax.get_config, vit_jax.list_models, vit_jax.load]
    methods = [vit_jax.Model.apply, vit_jax.Model.predict, vit_jax.Model.intermediates]
    for function in (vit_jax.fit, vit_jax.normalize, *public, *methods):
        signature = inspect.signature(function)
        assert signature.return_annotation is not inspect.Signature.empty
        for name, each in signature.parameters.items():
            assert name == "self" or each.annotation is not inspect.Parameter.empty, name
            assert each.kind is not each.VAR_POSITIONAL
