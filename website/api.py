# SPDX-License-Identifier: Apache-2.0
"""Pages of the API: an entry, for mkdocstrings to fill, of every public name of the package.

Public are `vit_jax.__all__` and the functions and classes that its modules define or gather from
their own files. The code is read, not run.
"""

import contextlib
import functools
from pathlib import Path
from typing import Any

import griffe

import vit_jax

ROOT = Path(__file__).parents[1]
MODULES = ("data", "evals", "models", "objectives", "recipes", "sweeps", "weights")
# The modules of a package without functions of its own that config files import.
_SWEEPS = ("grid", "price", "scaling")
_LEAD = {
    "vit_jax": "What one calls, and what the calls return: `import vit_jax`. "
    "[In Python](../python.md) shows them at work.",
    "configs": "The classes of a config file, and the choices of their fields. "
    "[Config fields](fields.md) has every field with its default and range.",
    "models": "[All models](models.md) is the table of them.",
    "recipes": "Published recipes, as configs: [Reproduce](../reproduce.md).",
    "sweeps": "[Sweeps and scaling laws](../scaling.md) shows them at work.",
    "weights": "[Weights](../weights.md) shows them at work.",
    "data": "[Data](../data.md) is about the datasets.",
    "evals": "[Configs](../configs.md) is about evaluations in a run.",
    "objectives": "[Add an objective](../add_an_objective.md) shows how they fit together.",
}


@functools.cache
def _package() -> Any:
    return griffe.load("vit_jax", search_paths=[str(ROOT)], resolve_aliases=True)


def _object(path: str) -> Any:
    found = _package()[path.partition(".")[2]]
    return found.final_target if found.is_alias else found


def names() -> dict[str, list[str]]:
    """Return the dotted public names of each page, those of `vit_jax` itself first."""
    # In the order of the imports for type checkers, which begins with what one calls.
    own = [name for name in _package().members if name in vit_jax.__all__ and name not in MODULES]
    configs = [name for name in own if _is_config(_object(f"vit_jax.{name}"))]
    pages = {
        "vit_jax": [f"vit_jax.{name}" for name in own if name not in configs],
        "configs": [f"vit_jax.{name}" for name in configs],
    }
    shown = {_object(name).path for page in pages.values() for name in page}
    for module in MODULES:
        inside = {"recipes": _modules("recipes"), "sweeps": _SWEEPS}.get(module, ())
        places = [f"vit_jax.{module}", *(f"vit_jax.{module}.{each}" for each in inside)]
        members = [name for place in places for name in _members(place)]
        pages[module] = [name for name in members if _object(name).path not in shown]
    return pages


def _is_config(found: Any) -> bool:
    return found.is_class and (
        found.name.endswith(("Config", "Eval")) or any("StrEnum" in str(b) for b in found.bases)
    )


def _modules(package: str) -> list[str]:
    """List the modules that a package has or offers, as recipes does those of its folder."""
    found = []
    for name in _package()[package].members:
        with contextlib.suppress(griffe.AliasResolutionError):  # of another library
            target = _object(f"vit_jax.{package}.{name}")
            if target.is_module and target.path.startswith(f"vit_jax.{package}."):
                found.append(name)
    return sorted(found)


def _members(module: str) -> list[str]:
    """List the public functions and classes that a module defines or gathers from its files."""
    found, place = [], _object(module)
    for name in place.members:
        try:
            target = _object(f"{module}.{name}")
        except griffe.AliasResolutionError:  # of another library
            continue
        own = target.path.startswith(f"{place.path}.") and not target.is_module
        if own and not name.startswith("_") and (target.is_function or target.is_class):
            found.append(f"{module}.{name}")
    return sorted(found)


def page(title: str, lead: str, entries: list[str]) -> str:
    """Return the text of a page: one entry of mkdocstrings for each name."""
    listed = [f"::: {name}\n" for name in entries]
    return "\n".join([f"# {title}\n", f"{lead}\n", *listed])


def pages() -> dict[str, str]:
    """Return the pages by their path in the site's sources."""
    made = {}
    for name, entries in names().items():
        title = {"vit_jax": "vit_jax", "configs": "Config classes"}.get(name, f"vit_jax.{name}")
        place = "models_api" if name == "models" else name  # beside the table of models
        made[f"reference/{place}.md"] = page(title, _LEAD[name], entries)
    return made
