# SPDX-License-Identifier: Apache-2.0
"""What share of small faults in the code the tests notice: mutants, drawn at random, by cosmic-ray.

It needs cosmic-ray in an environment beside the project's, and an hour of a core; no test runs it:

    python3.11 -m venv .venv-mutants
    realpath .venv/lib/python3*/site-packages > .venv-mutants/lib/python3.11/site-packages/own.pth
    .venv-mutants/bin/pip install cosmic-ray
    .venv-mutants/bin/python -m benchmarks.mutants [--again]

Places in the code are drawn by hashes of their lines: the sample is the same in every run, and a
file that moves inside its folder keeps its mutants. They are tested in a copy of the checkout: all
by the unit tests that mirror the file, the survivors by the unit tests that import it, then by its
integration tests that are not slow. What `results/mutants.json` has is not tested twice, except
survivors by `--again`.
"""

import ast
import collections
import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tests.meta.test_mirror import ELSEWHERE

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "mutants.json"
FOLDERS = ("train", "data", "checkpoints", "weights", "optim", "objectives", "workdir")
SEED, EACH = 35, 35  # mutants of each folder
LIMITS = {"unit": 300, "integration": 60}  # seconds, of one run
PYTEST = "-x -q -p no:nbmake -p no:anyio -p no:cacheprovider --jaxtyping-packages="


def draw(folder: str) -> list[dict[str, Any]]:
    """Return a mutant for each of the `EACH` places in a folder whose hashes are the smallest."""
    from cosmic_ray import plugins  # pyright: ignore[reportMissingImports]
    from cosmic_ray.ast import ast_nodes, get_ast_from_path  # pyright: ignore[reportMissingImports]
    from cosmic_ray.mutating import mutate_code  # pyright: ignore[reportMissingImports]

    # Most decorators are @dataclass(frozen=True), and without it little differs.
    kinds = {name: plugins.get_operator(name) for name in plugins.operator_names()}
    kinds = {n: kind() for n, kind in kinds.items() if not kind.arguments() and "Decor" not in n}
    places, drawn = collections.defaultdict(list), []
    for path in sorted(ROOT.glob(f"vit_jax/{folder}/**/*.py")):
        lines, nodes = path.read_text().splitlines(), list(ast_nodes(get_ast_from_path(path)))
        for operator, kind in kinds.items():
            found = (start for node in nodes for start, _ in kind.mutation_positions(node))
            for occurrence, (line, column) in enumerate(found):
                place = _hash(*lines[line - 3 : line + 1], column)
                places[place, path, line].append((_hash(place, operator), operator, occurrence))
    for (_, path, line), ways in sorted(places.items()):
        if len(drawn) == EACH:
            break
        (key, operator, occurrence), before = min(ways), path.read_text()
        code = mutate_code(before, kinds[operator], occurrence)
        with contextlib.suppress(SyntaxError):  # of ** before arguments, taken for a power
            if _without_types(code) != _without_types(before):
                row = {"id": key, "file": str(path.relative_to(ROOT)), "line": line}
                row |= {"operator": operator, "was": before.splitlines()[line - 1].strip()}
                drawn.append(row | {"is": code.splitlines()[line - 1].strip(), "code": code})
    return drawn


def _hash(*words: Any) -> str:
    return hashlib.sha256("|".join(map(str, (SEED, *words))).encode()).hexdigest()[:16]


def _without_types(code: str) -> str:
    tree = ast.parse(code)
    for node in ast.walk(tree):
        for name in {"annotation", "returns"} & set(node._fields):
            setattr(node, name, None)
    return ast.dump(tree)


def stages_of(file: str) -> tuple[list[tuple[str, ...]], ...]:
    """Return the runs of each stage, of one test file or more."""
    inner, package = Path(file).relative_to("vit_jax"), ".".join(Path(file).parts[:-1])
    name = f"{inner.parent}/test_{inner.name.replace('__init__', 'init')}"
    named = [f"tests/unit/{name}", f"tests/integration/{name}"]
    named += [test for pattern, test in ELSEWHERE.items() if fnmatch(str(inner), pattern)]
    imports = re.compile(rf"{package}(\.| import (\([^)]*|.*)\b){inner.stem}\b")
    stages: tuple[list[str], ...] = ([], [], [])
    for path in sorted(ROOT.glob("tests/*/**/test_*.py")):
        test, text = str(path.relative_to(ROOT)), path.read_text()
        home = test.split("/")[1]
        near = path.parent == ROOT / "tests" / home / inner.parent
        uses = imports.search(text) or (near and f"{package} import" in text)
        if home == "unit" and (test in named or uses):
            stages[0 if test in named else 1].append(test)
        elif home == "integration" and (test in named or (near and imports.search(text))):
            stages[2].append(test)
    return (*([tuple(tests)] if tests else [] for tests in stages[:2]), [(t,) for t in stages[2]])


def passes(*tests: str) -> bool | None:
    """Run tests without checks of shapes; return None where they take too long."""
    limit = str(LIMITS[tests[0].split("/")[1]])
    command = ["timeout", limit, sys.executable, "-m", "pytest", *PYTEST.split(), *tests]
    code = subprocess.run([*command, "-m", "not slow"], capture_output=True).returncode
    return None if code == 124 else code in (0, 5)  # 5: all of its tests are slow


holds = functools.cache(passes)  # without a mutant


def measure(path: Path, code: str, runs: list[tuple[str, ...]]) -> tuple[str, str]:
    """Return what becomes of a mutant of a file, and the tests that notice it."""
    before, cached = path.read_text(), Path(importlib.util.cache_from_source(str(path)))
    for tests in runs:
        path.write_text(code)
        cached.unlink(missing_ok=True)  # it may be of the same second
        passed = passes(*tests)
        path.write_text(before)
        cached.unlink(missing_ok=True)
        if not passed and holds(*tests):
            return "killed" if passed is False else "timed out", " ".join(tests)
    return "survived", ""


def main() -> None:
    """Test the mutants that were not tested yet, and print the share killed."""
    os.nice(15)
    rows = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    known = {row["id"]: row for row in rows}
    mutants = [row for folder in FOLDERS for row in draw(folder)]
    codes = {row["id"]: row.pop("code") for row in mutants}
    fresh = {"outcome": "survived", "by": "", "stage": 0}
    mutants = [row | {key: known.get(row["id"], fresh)[key] for key in fresh} for row in mutants]
    for row in mutants if "--again" in sys.argv else []:
        row["stage"] = 0 if row["outcome"] == "survived" else row["stage"]
    with tempfile.TemporaryDirectory() as copy:
        ignored = shutil.ignore_patterns(".*", "runs")
        shutil.copytree(ROOT, copy, ignore=ignored, symlinks=True, dirs_exist_ok=True)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = copy
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(ROOT / ".cache" / "jax")
        for stage in range(3):
            for row in mutants:
                if row["outcome"] == "survived" and row["stage"] <= stage:
                    runs = stages_of(row["file"])[stage]
                    found = measure(Path(row["file"]), codes[row["id"]], runs)
                    row["outcome"], row["by"], row["stage"] = *found, stage + 1
                    print(*row.values(), sep=" | ", flush=True)
                    RESULTS.write_text(json.dumps({"rows": mutants}, indent=1) + "\n")
    for folder in (*FOLDERS, ""):
        of = [row["outcome"] for row in mutants if row["file"].startswith(f"vit_jax/{folder}")]
        print(f"{folder or 'all':12} {1 - of.count('survived') / len(of):.1%} of {len(of)} killed")


if __name__ == "__main__":
    main()
