# SPDX-License-Identifier: Apache-2.0
"""Imports go one way, and heavy or foreign packages stay out."""

import ast
import functools
import graphlib
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "vit_jax"
LEVELS = [
    {"errors", "durations", "trees", "waiting", "losses", "startup", "faults", "mup"}
    | {"hardware", "reduction", "fields", "field_names", "signals", "launch", "files", "remote"}
    | {"bucket_folder", "foreign", "array_files", "escapes", "braces", "measures", "out_of_memory"},
    # The drawing that evaluations and training need takes numbers, no model and no run.
    {"sharding", "visual.figures", "visual.curve"},
    {"models", "data", "optim", "checkpoints"},
    {"weights", "evals", "analysis", "aot"},
    {"distill"},
    {"objectives"},
    {"config"},
    {"config_json", "recipes"},
    {"train", "inference"},
    {"sweeps", "distill.write"},
    {"visual"},
    {"inference.page"},  # it shows where a model looked
    {"cli"},
    {"api"},
    {"__main__"},
    {"command"},
]
LEVEL = {name: i for i, names in enumerate(LEVELS) for name in names}
BANNED = {"tensorflow", "torch", "clu", "chex"}


def _level(parts: Sequence[str]) -> int | None:
    """The level of a module: of the file where LEVELS names it, else of its package."""
    return LEVEL.get(".".join(parts[:2]), LEVEL.get(parts[0]))


@functools.cache
def _imports(path: Path) -> set[str]:
    found = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []  # is never run
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


def test_imports_go_down(subtests: pytest.Subtests) -> None:
    for path in FILES:
        with subtests.test(str(path.relative_to(PACKAGE))):
            here = path.relative_to(PACKAGE).with_suffix("").parts
            home, level = here[0], _level(here)
            for name in _imports(path):
                parts = name.split(".")
                if (path.name, parts[0]) != (
                    "torch_file.py",
                    "torch",
                ):  # optional, inside a function
                    assert parts[0] not in BANNED, f"{path} imports {name}"
                if parts[:2] == ["flax", "linen"]:
                    # build.py annotates with nn.Module; all else of Linen is the models' own.
                    assert home == "models" or path.name == "build.py", f"{path} imports {name}"
                other = _level(parts[1:]) if parts[0] == "vit_jax" and len(parts) > 1 else None
                if other is None or level is None or (parts[1] == home and other == level):
                    continue
                # Those of the lowest level are single files, free of each other's internals.
                assert other < level or level == other == 0, f"{path} imports {name}"


def test_every_module_has_a_level() -> None:
    names = {p.relative_to(PACKAGE).parts[0].removesuffix(".py") for p in FILES} - {"__init__"}
    assert names == {name for name in LEVEL if "." not in name}
    for name in set(LEVEL) - names:
        assert (PACKAGE / name.replace(".", "/")).with_suffix(".py").is_file()


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports inside functions count; that a module's package comes before it does not."""
    names = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in FILES
    }
    names = {name.removesuffix(".__init__"): path for name, path in names.items()}
    graph = {}
    for name, path in zip(names, FILES, strict=True):
        found = {each if each in names else each.rpartition(".")[0] for each in _imports(path)}
        graph[name] = (found & set(names)) - {name}
    try:
        tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail(f"imports in a circle: {' <- '.join(error.args[1])}")


def test_files_are_short_and_named_for_what_they_do() -> None:
    for path in FILES:
        assert len(path.read_text().splitlines()) <= 600, f"{path}: split it"
        assert path.stem not in {"utils", "util", "common", "misc", "helpers"}, path


def test_data_files_are_part_of_the_package() -> None:
    tree = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    data = tree["tool"]["setuptools"]["package-data"]
    for path in PACKAGE.rglob("*"):
        if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts:
            package = ".".join(path.parent.relative_to(PACKAGE.parent).parts)
            assert any(map(path.match, data.get(package, ()))), f"{path}: add it to package-data"


def test_annotated_shapes_are_checked(request: pytest.FixtureRequest) -> None:
    *checked, _ = request.config.getoption("--jaxtyping-packages").split(",")
    for path in FILES:
        if any(name.startswith("jaxtyping.") for name in _imports(path)):
            module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
            assert f"{module}.".startswith(tuple(f"{name}." for name in checked)), (
                f"add {module} to --jaxtyping-packages in pyproject.toml"
            )


def test_train_path_imports_neither_tensorflow_nor_torch_nor_matplotlib() -> None:
    code = (
        "import sys; import vit_jax.cli.train, vit_jax.train.loop, vit_jax.data.records;"
        "print([m for m in ('tensorflow', 'torch', 'matplotlib', 'sklearn') if m in sys.modules])"
    )
    env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert out.stdout.strip() == "[]", out.stdout + out.stderr
