# SPDX-License-Identifier: Apache-2.0
"""Old import paths, of config files and notebooks written for 0.1, are the modules of today."""

import subprocess
import sys

import vit_jax
from vit_jax.version import __version__

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
import vit_jax.aot.hlo
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
