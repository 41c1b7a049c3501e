# SPDX-License-Identifier: Apache-2.0
"""Imports go one way, and heavy or foreign packages stay out."""

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "vit_jax"
LEVELS = [
    {"errors", "durations", "trees", "losses", "startup", "faults", "mup"}
    | {"hardware", "reduction", "cluster", "fields", "field_names", "signals", "launch"},
    {"sharding"},
    {"models", "data", "optim", "checkpoints"},
    {"weights", "evals", "analysis", "aot"},
    {"distill"},
    {"objectives"},
    {"config"},
    {"config_json"},
    {"train", "inference"},
    {"sweeps"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: i for i, names in enumerate(LEVELS) for name in names}
BANNED = {"tensorflow", "torch", "clu", "chex"}


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    home = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for name in _imports(path):
        parts = name.split(".")
        if (path.name, parts[0]) != ("torch_file.py", "torch"):  # optional, inside a function
            assert parts[0] not in BANNED, f"{path} imports {name}"
        if parts[:2] == ["flax", "linen"]:
            # build.py annotates with nn.Module; everything else of Linen is the models' own.
            assert home == "models" or path.name == "build.py", f"{path} imports {name}"
        if parts[0] != "vit_jax" or home == "__init__" or len(parts) < 2 or parts[1] not in LEVEL:
            continue
        if parts[1] == home:
            continue
        same_level_ok = home in LEVELS[0]  # single files, free of each other's internals
        lower = LEVEL[parts[1]] < LEVEL[home]
        assert lower or (same_level_ok and LEVEL[parts[1]] == 0), f"{path} imports {name}"


def test_every_module_has_a_level() -> None:
    names = {p.relative_to(PACKAGE).parts[0].removesuffix(".py") for p in FILES} - {"__init__"}
    assert names == set(LEVEL)


def test_files_are_short_and_named_for_what_they_do() -> None:
    for path in FILES:
        assert len(path.read_text().splitlines()) <= 320, f"{path}: split it"
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
