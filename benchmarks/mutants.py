# SPDX-License-Identifier: Apache-2.0
"""What share of small faults in the code the tests notice: mutants, drawn at random, by cosmic-ray.

It needs cosmic-ray beside the project's own packages, in an environment of its own, and an hour or
more of a core; no test runs it:

    python3.11 -m venv .venv-mutants
    realpath .venv/lib/python3*/site-packages > .venv-mutants/lib/python3.11/site-packages/own.pth
    .venv-mutants/bin/pip install cosmic-ray
    .venv-mutants/bin/python -m benchmarks.mutants [--each 35] [--again]

In each folder places in the code are drawn by hashes of their lines: the sample is the same in
every run, and a file that moves inside a folder keeps its mutants. They are tested in a copy of the
checkout, without checks of shapes: first all by the unit tests that mirror the file; then the
survivors by the unit tests that import it; then those left by the integration tests that mirror or
import it, of its folder and of less than `QUICK` seconds, without their slow ones.
`results/mutants.json` keeps what came out: no mutant is tested twice, but survivors by `--again`.
"""

import argparse
import ast
import collections
import contextlib
import hashlib
import importlib
import importlib.util
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "mutants.json"
FOLDERS = ("train", "data", "checkpoints", "weights", "optim", "objectives")
SEED = 35
QUICK, LONG = 25, 100  # seconds of CPU time
LIBRARIES = "jax flax.linen optax orbax.checkpoint grain cv2 hypothesis tensorflow_datasets".split()
PYTEST = "-x -q -p no:nbmake -p no:anyio -p no:cacheprovider --jaxtyping-packages="


def draw(folder: str, each: int) -> list[dict[str, Any]]:
    """Return a mutant for each of the `each` places in a folder whose hashes are the smallest."""
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
        (key, operator, occurrence), before = min(ways), path.read_text()
        code = mutate_code(before, kinds[operator], occurrence)
        with contextlib.suppress(SyntaxError):  # of ** before arguments, taken for a power
            if len(drawn) < each and _without_types(code) != _without_types(before):
                row = {"id": key, "file": str(path.relative_to(ROOT)), "line": line}
                row |= {"operator": operator, "was": before.splitlines()[line - 1].strip()}
                drawn.append(row | {"is": code.splitlines()[line - 1].strip(), "code": code})
        if len(drawn) == each:
            break
    return drawn


def _hash(*words: Any) -> str:
    return hashlib.sha256("|".join(map(str, (SEED, *words))).encode()).hexdigest()[:16]


def _without_types(code: str) -> str:
    tree = ast.parse(code)
    for node in ast.walk(tree):
        for name in {"annotation", "returns"} & set(node._fields):
            setattr(node, name, None)
    return ast.dump(tree)


@cache
def stages_of(file: str) -> tuple[list[list[str]], ...]:
    """Return what to run together: tests that mirror a file, that import it, of integration."""
    elsewhere = importlib.import_module("tests.meta.test_mirror").ELSEWHERE
    inner = Path(file).relative_to("vit_jax")
    name = f"test_{inner.name.replace('__init__', 'init')}"
    named = [f"tests/{home}/{inner.parent}/{name}" for home in ("unit", "integration")]
    named += [test for pattern, test in elsewhere.items() if fnmatch(str(inner), pattern)]
    package = ".".join(Path(file).parts[:-1])
    imports = re.compile(rf"{package}(\.| import (\([^)]*|.*)\b){inner.stem}\b")
    tests = {str(p.relative_to(ROOT)): p.read_text() for p in ROOT.glob("tests/*/**/test_*.py")}
    using = sorted(test for test, text in tests.items() if imports.search(text))
    unit = [test for test in named if test in tests and test.startswith("tests/unit/")]
    others = [test for test in using if test.startswith("tests/unit/") and test not in unit]
    near = [test for test in using if test.startswith(f"tests/integration/{inner.parent}/")]
    near += [test for test in named if test in tests and test.startswith("tests/integration/")]
    return [unit] if unit else [], [others] if others else [], [[test] for test in sorted({*near})]


def passes(cpu: int, *words: str) -> bool | None:
    """Run tests in a child of this process; return None where they do not end."""
    child = os.fork()
    if not child:
        os.setsid()
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
        pytest = importlib.import_module("pytest")
        os._exit(pytest.main([*PYTEST.split(), "-m", "not slow", *words]))
    code, end = None, time.monotonic() + 4 * cpu  # of a machine that has other work
    while code is None and time.monotonic() < end:
        time.sleep(0.05)
        pid, status = os.waitpid(child, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if pid else None
    with contextlib.suppress(ProcessLookupError):  # and what it has started
        os.killpg(child, signal.SIGKILL)
    if code is None:
        os.waitpid(child, 0)
    return None if code is None or code < 0 else code in (0, 5)  # 5: all of its tests are slow


@cache
def is_quick(test: str) -> bool:
    """Return whether a file of tests passes in time while no mutant is there."""
    return passes(QUICK, test) is True


def measure(path: Path, code: str, runs: list[list[str]]) -> tuple[str, str]:
    """Return what becomes of a mutant of a file, and the test files that notice it."""
    before = path.read_text()
    for tests in runs:
        if tests[0].startswith("tests/unit/") or is_quick(tests[0]):
            _write(path, code)
            passed = passes(LONG, *tests)
            _write(path, before)
            if not passed:
                return "timed out" if passed is None else "killed", " ".join(tests)
    return "survived", ""


def _write(path: Path, code: str) -> None:
    path.write_text(code)
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)  # of the same second


def main() -> None:
    """Draw mutants, test those that were not tested yet, and print the share killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=35, help="mutants of each folder")
    parser.add_argument("--again", action="store_true", help="test the survivors anew")
    args = parser.parse_args()
    os.nice(15)
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    known = {r["id"]: r for r in rows if not (args.again and r["outcome"] == "survived")}
    mutants = [row for folder in FOLDERS for row in draw(folder, args.each)]
    codes = {row["id"]: row.pop("code") for row in mutants}
    mutants = [
        known.get(row["id"], row | {"outcome": "survived", "by": "", "stage": 0}) | row
        for row in mutants
    ]
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "runs"), symlinks=True)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = sys.path[0] = str(copy)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(ROOT / ".cache" / "jax")
        for library in ("tests.conftest", *LIBRARIES):  # the first prepares for jax
            importlib.import_module(library)
        for stage in range(3):
            for row in sorted(mutants, key=lambda row: row["id"]):
                if row["outcome"] == "survived" and row["stage"] == stage:
                    runs = stages_of(row["file"])[stage]
                    found = measure(copy / row["file"], codes[row["id"]], runs)
                    row["outcome"], row["by"], row["stage"] = *found, stage + 1
                    print(*row.values(), sep=" | ", flush=True)
                    RESULTS.write_text(json.dumps(mutants, indent=1) + "\n")
        used = sorted({test for row in mutants for test in row["by"].split() if "/unit/" in test})
        print("these tests pass without a mutant:", passes(20 * LONG, *used), *used)
    for folder in (*FOLDERS, ""):
        of = [row["outcome"] for row in mutants if row["file"].startswith(f"vit_jax/{folder}")]
        share = 1 - of.count("survived") / max(len(of), 1)
        print(f"{folder or 'all':12} {len(of):4} mutants, {share:.1%} killed")


if __name__ == "__main__":
    main()
