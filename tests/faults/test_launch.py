# SPDX-License-Identifier: Apache-2.0
"""A command before its own code runs: Ctrl-C at any moment, an old Python, a missing package."""

import ast
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vit_jax.cli.parsing import flags as cli_flags
from vit_jax.process import launch
from vit_jax.process.preemption import Preemption
from vit_jax.sweeps.trial import Stopping

ROOT = Path(__file__).parents[2]
DIGITS = f"--config={ROOT}/configs/vit_mu_digits.py"
COMMANDS = {
    "main.py": ["main.py", DIGITS, "--dry_run"],
    "verb": ["-m", "vit_jax", "summary", DIGITS],
}
# Python looks for it at its start. It has the process interrupted as it imports a module, or ends.
HOOK = """
import atexit, os, signal, sys

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

class Finder:
    def find_spec(self, name, *_):
        if name == os.environ["INTERRUPT_AT"]:
            interrupt()

sys.meta_path.insert(0, Finder())
if os.environ["INTERRUPT_AT"] == "exit":
    atexit.register(interrupt)
"""
# In the order in which main.py imports them: of Python, of absl, of ours, of jax, of the loop.
MOMENTS = [
    "vit_jax",
    "vit_jax.process.launch",
    "absl",
    "vit_jax.cli.parsing.flags",
    "numpy",
    "jax._src.core",
]
MOMENTS += ["flax", "vit_jax.cli.dry_run", "verb: vit_jax.cli.summary", "verb: jax._src.core"]


@pytest.fixture
def hook(tmp_path: Path) -> str:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    return f"{tmp_path}:{ROOT}"


def run(args: list[str], **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_at_an_import_is_one_line(moment: str, hook: str) -> None:
    command, _, module = moment.rpartition(": ")
    done = run(COMMANDS[command or "main.py"], PYTHONPATH=hook, INTERRUPT_AT=module)
    assert done.returncode == 130, done.stderr
    assert done.stderr in ("", "interrupted\n")
    assert done.stdout == ""


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("args", [["main.py"], ["-m", "vit_jax", "sumary"]])
def test_ctrl_c_at_the_end_is_one_line(args: list[str], hook: str) -> None:
    done = run(args, PYTHONPATH=hook, INTERRUPT_AT="exit")
    assert done.returncode == 130, done.stderr
    error, last = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert last == "interrupted"


def test_ctrl_c_is_ignored_where_a_script_has_it_so(hook: str) -> None:
    command = ["sh", "-c", f"trap '' INT; exec {sys.executable} main.py"]
    env = {**os.environ, "PYTHONPATH": hook, "INTERRUPT_AT": "vit_jax.cli.parsing.flags"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("error: which run? add --config=FILE")
    assert "interrupted" not in done.stderr


@pytest.mark.parametrize("kept", [Preemption, Stopping])
def test_a_run_heeds_no_signal_that_it_is_to_ignore(
    kept: type[Preemption] | type[Stopping],
) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        with kept():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not terminate
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is terminate
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_an_error_that_ctrl_c_caused_is_told_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    def half_imported() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            raise ImportError("numpy.core.multiarray failed to import") from error

    assert cli_flags.run(half_imported, ["main.py"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


OLD = "is Python 3.10.4, and this needs Python 3.11 or newer"


def test_an_old_python_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4, "final", 0))
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as end:
            launch.begin()
        assert end.value.code == 2
        assert capsys.readouterr().err == f"error: {sys.executable} {OLD}\n"
        (python := tmp_path / ".venv" / "bin" / "python").parent.mkdir(parents=True)
        python.symlink_to(sys.executable)
        with pytest.raises(SystemExit):
            launch.begin()
        assert capsys.readouterr().err.endswith("; .venv/bin/python is here, start with that\n")
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_old_python_can_read_what_says_so() -> None:
    for file in (
        "main.py",
        "vit_jax/__init__.py",
        "vit_jax/process/launch.py",
        "vit_jax/process/signals.py",
    ):
        ast.parse((ROOT / file).read_text(), feature_version=(3, 7))
    ast.parse((ROOT / "vit_jax" / "__main__.py").read_text(), feature_version=(3, 7))


def _older() -> list[tuple[str, str]]:
    """List the Pythons before 3.11 that run here, with what they call themselves."""
    pyenv = Path("~/.pyenv/versions").expanduser()
    found = [shutil.which(f"python3.{minor}") for minor in (7, 8, 9, 10)]
    found += [f"{path}/bin/python" for path in sorted(pyenv.glob("3.[789].*"))]
    told = []
    for python in filter(None, found):
        try:
            done = subprocess.run([python, "--version"], capture_output=True, text=True)
        except OSError:
            continue
        told += [(python, done.stdout.strip())] if done.returncode == 0 else []
    return told


@pytest.mark.parametrize("args", [["main.py", DIGITS], ["-m", "vit_jax", "models"]])
def test_a_python_of_another_version_says_so(args: list[str]) -> None:
    olders = _older()
    if not olders:
        pytest.skip("no Python older than 3.11 is installed")
    old, version = olders[0]
    done = subprocess.run([old, *args], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert f" is {version}, and this needs Python 3.11 or newer" in line


@pytest.mark.parametrize("args", [["main.py", DIGITS], ["-m", "vit_jax", "models"]])
def test_a_missing_package_is_named(args: list[str]) -> None:
    done = run(["-S", *args])  # without what is installed
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: the package ")
    assert f"; {sys.executable} -m pip install -e '{ROOT}' installs it" in line
