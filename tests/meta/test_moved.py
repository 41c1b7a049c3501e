# SPDX-License-Identifier: Apache-2.0
"""Old import paths, of config files and notebooks written for 0.1, are the modules of today."""

import subprocess
import sys
from pathlib import Path

import vit_jax
from vit_jax.version import __version__

ROOT = Path(__file__).parents[2]
CODE = """
import importlib, sys
import vit_jax
heavy = [name for name in sys.modules if name.startswith("vit_jax.") or name == "jax"]
assert heavy == ["vit_jax.version"], heavy
for old, new in vit_jax._MOVED.items():
    here = importlib.import_module(f"vit_jax.{old}")
    assert here is importlib.import_module(f"vit_jax.{new}"), (old, new)
from vit_jax import startup
from vit_jax.fields import value
import vit_jax.analysis.scaling.chinchilla as law
import warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    import vit_jax.aot.hlo
assert [str(each.message) for each in told] == [
    "vit_jax.aot.hlo is vit_jax.cost.hlo now; the old name goes in version 0.4"
], told
assert told[0].category is DeprecationWarning and told[0].filename == "<string>", told[0]
from vit_jax.process import startup as startup_now
from vit_jax.settings import fields
from vit_jax.sweeps.scaling import chinchilla
assert startup is startup_now and value is fields.value and law is chinchilla
try:
    import vit_jax.fieldz
except ModuleNotFoundError:
    print("same")
"""


def test_old_paths_are_the_same_modules_and_nothing_is_imported_before_one_is_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.stdout == "same\n", done.stderr


def test_the_version_is_one() -> None:
    assert vit_jax.__version__ == __version__
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{__version__}] - 2" in (ROOT / "CHANGELOG.md").read_text()
    assert "until 0.4" in (ROOT / "docs" / "compatibility.md").read_text()  # as `_Moved` says
