# SPDX-License-Identifier: Apache-2.0
"""Configs, docs and notebooks import what the package offers, so that its files can move."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import vit_jax

ROOT = Path(__file__).parents[2]
PUBLIC = ("vit_jax", "vit_jax.recipes", "vit_jax.sweeps")
_IMPORT = re.compile(
    r"^\s*from (vit_jax[\w.]*) import (\([^)]*\)|[^\n#]+)|^\s*import (vit_jax[\w.]*)", re.MULTILINE
)
# A file that a page adds to the package imports modules, as its neighbours there do.
_NEW_FILE = re.compile(r"new file `\w+\.py` in `vit_jax/[^`]*`.*?```python\n.*?^```$", re.M | re.S)


def wrong(text: str) -> Iterator[str]:
    """Find the imports of a text that go past what is public."""
    for line in _IMPORT.finditer(text):
        module, names = line[1] or line[3], re.findall(r"(\w+)(?: as \w+)?", line[2] or "")
        private = module == "vit_jax" and not {*names} <= {*vit_jax.__all__, "__version__"}
        if module not in PUBLIC or private:
            yield " ".join(line[0].split())


def texts() -> Iterator[tuple[Path, str]]:
    for path in (ROOT / "configs").rglob("*.py"):
        yield path, path.read_text()
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        yield path, _NEW_FILE.sub("", path.read_text())
    for path in (ROOT / "examples").glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        yield path, "\n".join("".join(cell["source"]) for cell in cells)


def test_only_public_names_are_imported() -> None:
    found = list(texts())
    assert sum(len(_IMPORT.findall(text)) for _, text in found) > 100
    failures = [f"{path.relative_to(ROOT)}: {line}" for path, text in found for line in wrong(text)]
    assert not failures, (
        f"import from {', '.join(PUBLIC)}; a name that is missing goes into vit_jax/__init__.py: "
        f"{failures}"
    )


def test_others_are_found() -> None:
    many = "import vit_jax\nfrom vit_jax import (\n    Config,\n    models as m,\n)\n"
    assert not list(wrong(many))
    assert not list(wrong("    from vit_jax.recipes import digits\nfrom vit_jax import Config\n"))
    lines = [
        "from vit_jax.config import Config",
        "import vit_jax.data",
        "from vit_jax import Config, sharding",
        "from vit_jax.recipes.digits import STUDY",
    ]
    for line in lines:
        assert list(wrong(f"x = 1\n    {line}\n")) == [line]
    new = "A new file `x.py` in `vit_jax/models` is:\n\n```python\nfrom vit_jax.a import b\n```\n"
    assert list(wrong(new)) == ["from vit_jax.a import b"]
    assert not list(wrong(_NEW_FILE.sub("", new)))
