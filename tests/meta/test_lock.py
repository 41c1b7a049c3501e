# SPDX-License-Identifier: Apache-2.0
"""The lock files name one version of each package, and the digests of its files."""

import ast
import itertools
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = re.compile(
    r"([\w.-]+)==([\w.+!-]+)[^\\]*\\\n((?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)"
)


@pytest.mark.parametrize(
    "name", ["requirements.txt", "locks/dev.txt", "locks/docs.txt", "locks/oldest.txt"]
)
def test_every_package_is_locked_with_hashes(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "--generate-hashes" in text.splitlines()[1]
    locked = [m[1] for m in PACKAGE.finditer(text)]
    wanted = [line for line in text.splitlines() if "==" in line and not line.startswith(" ")]
    assert len(locked) == len(wanted) >= 60
    for package in ("jax", "flax", "optax", "orbax-checkpoint", "ml-collections"):
        assert package in locked


def test_the_locks_of_one_environment_have_the_same_versions() -> None:
    run, dev, docs = (
        {m[1]: m[2] for m in PACKAGE.finditer((ROOT / name).read_text())}
        for name in ("requirements.txt", "locks/dev.txt", "locks/docs.txt")
    )
    assert {name: dev.get(name, version) for name, version in run.items()} == run
    assert {name: docs.get(name, version) for name, version in dev.items()} == dev


def _imported(folder: Path) -> dict[str, str]:
    """Return the first name of every module that a folder imports, with a file that does."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            found |= {name.partition(".")[0]: str(path.relative_to(ROOT)) for name in names}
    return {n: p for n, p in found.items() if n and n not in sys.stdlib_module_names}


def test_what_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    lines = [*project["dependencies"], *itertools.chain(*extras)]
    declared = {_spelled(re.match(r"[\w.-]+", line)[0]) for line in lines}
    # Read where they are installed, which docs/export.md and docs/weights.md say how to do.
    declared |= {"jax2onnx", "torch", "trackio", "vitjax"}
    packages = packages_distributions()
    missing = {
        name: path
        for name, path in _imported(ROOT / "vit_jax").items()
        if name != "vit_jax" and declared.isdisjoint(map(_spelled, packages.get(name, [name])))
    }
    assert not missing, f"pyproject.toml does not declare {missing}"
    assert {"orbax-checkpoint", "pyyaml"} <= declared  # imported by other names: orbax, yaml


def _spelled(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
