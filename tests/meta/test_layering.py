# SPDX-License-Identifier: Apache-2.0
"""Imports go one way, and heavy or foreign packages stay out."""

import ast
import collections
import graphlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "vit_jax"
# Each imports from those before it alone; of one line none knows another.
ORDER = """
    errors version trees
    settings storage
    devices process
    checkpoints figures
    models text
    data optim
    cost
    weights evals
    distill
    objectives
    workdir
    config
    recipes
    train inference
    visual export sweeps
    api demo
    cli
    __main__
    command
"""
LEVEL = {name: i for i, line in enumerate(ORDER.strip().splitlines()) for name in line.split()}
BANNED = {"tensorflow", "torch", "clu", "chex"}
FILES = sorted(PACKAGE.rglob("*.py"))


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


def _graph() -> dict[str, set[str]]:
    """Return which modules each module imports, those inside of functions included."""
    names = {path: _name(path) for path in FILES}
    known = set(names.values())
    graph = {}
    for path, name in names.items():
        found = {each if each in known else each.rpartition(".")[0] for each in _imports(path)}
        graph[name] = (found & known) - {name}
    return graph


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def _no_circle(graph: Mapping[str, set[str]], what: str) -> None:
    try:
        tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail(f"{what} in a circle: {' <- '.join(error.args[1])}")


def test_imports_go_down() -> None:
    """From room to room as in ORDER, and without a circle of rooms or of files in each room."""
    graph = _graph()
    rooms = {name.split(".")[1] for name in graph if "." in name}
    assert rooms == set(LEVEL)
    failed = []
    for name, found in graph.items():
        for other in found:
            here, there = (each.split(".")[1:2] for each in (name, other))
            if here and there and here != there and LEVEL[there[0]] >= LEVEL[here[0]]:
                failed.append(f"{name} imports {other}")
    assert not failed, "\n".join(failed)
    # Imports of files; that a file's package comes before it does not count.
    _no_circle(graph, "files")
    for folder in {path.parent for path in FILES}:
        inside = f"{_name(folder / '__init__.py')}."
        children = collections.defaultdict(set)
        for name, found in graph.items():
            here, *others = (
                each.removeprefix(inside).split(".")[0] if each.startswith(inside) else ""
                for each in (name, *found)
            )
            children[here] |= {other for other in others if other} - {here}
        children.pop("", None)
        _no_circle(children, f"what is in {folder}")


def test_contributing_has_a_map_of_the_rooms() -> None:
    page = (PACKAGE.parent / "CONTRIBUTING.md").read_text()
    rooms = re.findall(r"^\| `(\w+)` \| .+\? \|$", page, re.MULTILINE)
    missing = [room for room in LEVEL if room not in rooms]
    assert not missing, f"the map of CONTRIBUTING.md lacks {missing}"
    assert rooms == list(LEVEL), "the map of CONTRIBUTING.md has the rooms in the order of ORDER"


def test_heavy_and_foreign_packages_stay_out() -> None:
    failed = []
    for path in FILES:
        for name in _imports(path):
            first = name.split(".")[0]
            optional = (path.name, first) == ("torch_file.py", "torch")  # inside a function
            if first in BANNED and not optional:
                failed.append(f"{path} imports {name}")
            # build.py annotates with nn.Module; everything else of Linen is the models' own.
            theirs = "models" in path.relative_to(PACKAGE).parts or path.name == "build.py"
            if name.startswith("flax.linen") and not theirs:
                failed.append(f"{path} imports {name}")
    assert not failed, "\n".join(failed)


def test_rooms_are_of_a_size_to_know() -> None:
    failed = []
    for path in FILES:
        if len(path.read_text().splitlines()) > 600:
            failed.append(f"{path} has more than 600 lines; split it")
        if path.stem in {"utils", "util", "common", "misc", "helpers"}:
            failed.append(f"{path}: name it for what it does")
    for folder in {path.parent for path in FILES}:
        if len(list(folder.glob("*.py"))) > 20:
            failed.append(f"{folder} holds more than 20 files")
    loose = sorted(path.name for path in PACKAGE.glob("*.py"))
    if len(loose) > 6:
        failed.append(f"{loose} are more than 6 loose modules")
    assert not failed, "\n".join(failed)


def test_a_class_name_stands_for_one_thing() -> None:
    defined = collections.defaultdict(list)
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    twice = {name: places for name, places in defined.items() if len(places) > 1}
    assert not twice, twice


def test_data_files_are_part_of_the_package() -> None:
    tree = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    data = tree["tool"]["setuptools"]["package-data"]
    packed = set()
    for package, patterns in data.items():
        folder = PACKAGE.parent.joinpath(*package.split("."))
        packed.update(path for pattern in patterns for path in folder.glob(pattern))
    for path in PACKAGE.rglob("*"):
        if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts:
            assert path in packed, f"{path}: add it to package-data"


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
        "import sys; import vit_jax.cli.train, vit_jax.train.loop, vit_jax.data.sources.records;"
        "print([m for m in ('tensorflow', 'torch', 'matplotlib', 'sklearn') if m in sys.modules])"
    )
    env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert out.stdout.strip() == "[]", out.stdout + out.stderr
