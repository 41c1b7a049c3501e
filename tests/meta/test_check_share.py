# SPDX-License-Identifier: Apache-2.0
"""Checks stay a small part of the code: ranges belong to the fields (`vit_jax.settings.fields`).

Readers of what others wrote (shards, tables, archives, metadata) refuse more than most files do.

`python tests/meta/test_check_share.py` prints the share of every file, the largest first.
"""

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "vit_jax"
LIMIT = 0.06
_CHECK = re.compile(r"_*(check|validate|require)")


def check_lines(source: str) -> int:
    """Count the lines inside `raise` statements and functions named check, validate or require."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node, ast.Raise) or (is_function and _CHECK.match(node.name)):
            found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(found)


def counts() -> dict[Path, tuple[int, int]]:
    """Return, for every file of the package, its lines of checks and all its lines."""
    texts = {path: path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
    return {path: (check_lines(text), text.count("\n")) for path, text in texts.items()}


def test_lines_of_a_check_are_counted_once() -> None:
    check = "def _check_a(x):\n    if x:\n        raise A(\n            x\n        )\n"
    assert check_lines(f"{check}\ndef b():\n    raise B\n") == 6


def test_checks_are_a_small_part_of_the_package() -> None:
    checks, lines = map(sum, zip(*counts().values(), strict=True))
    assert checks < LIMIT * lines, f"{checks} of {lines} lines are checks ({checks / lines:.1%})"


if __name__ == "__main__":
    for path, (checks, lines) in sorted(counts().items(), key=lambda item: -item[1][0]):
        print(f"{checks:5} of {lines:4}  {path.relative_to(PACKAGE)}")
