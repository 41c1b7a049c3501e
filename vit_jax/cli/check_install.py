# SPDX-License-Identifier: Apache-2.0
"""Checks of `doctor` on what is installed; nothing of it is imported before it is looked at."""

import importlib
import importlib.metadata
import os
import platform
import shlex
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from vit_jax.cli.finding import BROKEN, OK, WARNING, Finding

_OLDEST = (3, 11)  # requires-python; an older Python could not read it from pyproject.toml
_SHOWN = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
# Which of jax's plugins drives a device file.
_PLUGINS = {
    "nvidia": 'pip install -U "jax[cuda13]"',
    "accel": 'pip install -U "jax[tpu]"',
    "vfio": 'pip install -U "jax[tpu]"',
    "kfd": "install jax's plugin for ROCm",
}


def python() -> Finding:
    """Compare Python's version with the oldest that works."""
    found, oldest = platform.python_version(), ".".join(map(str, _OLDEST))
    if sys.version_info[:2] < _OLDEST:
        return Finding(BROKEN, f"{found}; {oldest} or newer is needed", "make PYTHON=python3.12")
    return Finding(OK, f"{found}, {sys.executable}")


def requirements() -> tuple[list[str], str]:
    """Return the packages that vit_jax asks for, with their ranges, and where that is written."""
    checkout = Path(__file__).parents[2] / "pyproject.toml"
    if checkout.is_file():
        import tomllib  # late: Python 3.10 has none, and is told to be too old

        project = tomllib.loads(checkout.read_text(encoding="utf-8"))["project"]
        if project["name"] == "vit-jax":
            return project["dependencies"], "pyproject.toml"
    return importlib.metadata.requires("vit-jax") or [], "the package's metadata"


def packages() -> Finding:
    """Compare every package's version with its range."""
    return compare(*requirements())


def compare(wanted: Sequence[str], where: str) -> Finding:
    """Compare what is installed with requirements such as "jax>=0.10.2,<0.11".

    Args:
        wanted: the requirements; those of an extra are left out.
        where: they are written, for the message.
    """
    from packaging.requirements import Requirement

    needed = [Requirement(text) for text in wanted]
    needed = [one for one in needed if not one.marker or one.marker.evaluate({"extra": ""})]
    problems, fixes = [], []
    for one in needed:
        version = _version(one.name)
        if version and one.specifier.contains(version, prereleases=True):
            continue
        problems.append(f"{one.name} {version or 'is missing'}, {one.specifier or 'any'} is needed")
        fixes.append(f"{one.name}{one.specifier}")
    if problems:
        return Finding(BROKEN, "; ".join(problems), f"pip install {shlex.join(fixes)}")
    shown = ", ".join(f"{name} {version}" for name in _SHOWN if (version := _version(name)))
    return Finding(OK, f"{len(needed)} as {where} has them: {shown}")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def imports() -> Finding:
    """Import all that a training run imports: a package may be there and not load."""
    for name in ("vit_jax.cli.train", "vit_jax.train.loop", "vit_jax.data.records"):
        importlib.import_module(name)
    return Finding(OK, "all that a training run needs loads")


def accelerator() -> Finding:
    """Compare the plugins and device files of accelerators with what jax sees."""
    import jax

    from vit_jax import startup

    plugins = [entry.name for entry in importlib.metadata.entry_points(group="jax_plugins")]
    plugins += ["libtpu"] if _version("libtpu") else []
    seen = {device.platform for device in jax.local_devices()}
    return judge(
        sorted(set(plugins)), startup.device_files(), seen, os.environ.get("JAX_PLATFORMS", "")
    )


def judge(
    plugins: Sequence[str], files: Sequence[str], seen: Collection[str], asked: str
) -> Finding:
    """Say whether an accelerator that is here is used.

    Args:
        plugins: jax's, that are installed.
        files: device files of accelerators, such as /dev/nvidia0.
        seen: platforms of jax's devices.
        asked: $JAX_PLATFORMS.
    """
    others = sorted(set(seen) - {"cpu"})
    if others:
        return Finding(OK, f"{', '.join(others)} in use")
    on_cpu = "cpu" in asked.split(",")
    if files and on_cpu:
        here = ", ".join([*plugins, files[0]])
        return Finding(WARNING, f"JAX_PLATFORMS={asked} hides what is here ({here})", "unset it")
    if plugins and files:
        return Finding(
            BROKEN,
            f"{files[0]} and the plugin {', '.join(plugins)} are here, but jax sees only a CPU",
            "its warning above says why: a driver older than the plugin wants, a plugin of another "
            "version than jaxlib, or a device that another process holds",
        )
    if plugins and not on_cpu:
        return Finding(
            WARNING,
            f"the plugin {', '.join(plugins)} is installed, but no device of it is here",
            "--compile_for needs none; else is the driver loaded, was the container given the "
            "device (docker run --gpus all)?",
        )
    if files:
        fix = next((fix for name, fix in _PLUGINS.items() if name in files[0]), "")
        return Finding(WARNING, f"{files[0]} is here, but jax has no plugin for it", fix)
    return Finding(OK, "none here; runs use the CPU")
