# SPDX-License-Identifier: Apache-2.0
"""Checks of `doctor` on the machine; each imports what it looks at, which may be missing."""

import collections
import importlib
import importlib.metadata
import math
import os
import platform
import shlex
import shutil
import tempfile
import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vit_jax.errors import UserError

OK, WARNING, BROKEN = "ok", "warning", "broken"


class Finding(NamedTuple):
    """One line of the report: OK, WARNING (runs work, but slower) or BROKEN; what to do, if any."""

    state: str
    text: str
    fix: str = ""


SHOWN = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
# The extra of jax that drives a device file.
_EXTRAS = {"nvidia": "cuda13", "accel": "tpu", "vfio": "tpu", "kfd": "rocm7-local"}
_LITTLE_SPACE = 2**30
_LOSS_TOLERANCE = 1e-4


def requirements() -> tuple[list[str], str]:
    """Return the packages that vit_jax asks for, with their ranges, and where that is written."""
    checkout = Path(__file__).parents[3] / "pyproject.toml"
    if checkout.is_file():
        project = tomllib.loads(checkout.read_text(encoding="utf-8"))["project"]
        if project["name"] == "vitjax":
            return project["dependencies"], "pyproject.toml"
    return importlib.metadata.requires("vitjax") or [], "the package's metadata"


def packages() -> Finding:
    """Compare what is installed with the requirements, but for those of an extra."""
    from packaging.requirements import Requirement

    texts, where = requirements()
    needed = [Requirement(text) for text in texts]
    needed = [each for each in needed if not each.marker or each.marker.evaluate({"extra": ""})]
    problems = {}
    for package in needed:
        name, allowed, version = package.name, package.specifier, version_of(package.name)
        if not version or not allowed.contains(version, prereleases=True):
            problem = f"{name} {version or 'is missing'}, {allowed or 'any'} is needed"
            problems[f"{name}{allowed}"] = problem
    if problems:
        return Finding(BROKEN, "; ".join(problems.values()), f"pip install {shlex.join(problems)}")
    shown = ", ".join(f"{name} {version}" for name in SHOWN if (version := version_of(name)))
    about = f"Python {platform.python_version()}, {len(needed)} packages as {where} has them"
    return Finding(OK, f"{about}: {shown}")


def version_of(name: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def imports() -> Finding:
    """Import all that a training run imports: a package may be there and not load."""
    for name in ("vit_jax.cli.train", "vit_jax.train.loop", "vit_jax.data.sources.records"):
        importlib.import_module(name)
    return Finding(OK, "all that a training run needs loads")


def devices() -> Finding:
    """List jax's devices, and compare them with the machine's plugins and device files."""
    import jax

    from vit_jax.devices import hardware
    from vit_jax.process import startup

    plugins = {entry.name for entry in importlib.metadata.entry_points(group="jax_plugins")}
    plugins |= {"libtpu"} if version_of("libtpu") else set()
    here = jax.local_devices()
    seen = {device.platform for device in here}
    platforms = os.environ.get("JAX_PLATFORMS", "")
    unused = judge_devices(sorted(plugins), startup.device_files(), seen, platforms)
    kinds = collections.Counter(device.device_kind for device in here)
    text = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    return unused or Finding(OK, f"{text}; {hardware.num_cores()} CPU cores")


def judge_devices(
    plugins: Sequence[str], files: Sequence[str], seen: Collection[str], platforms: str
) -> Finding | None:
    """Return why an accelerator that is here is not used, or None.

    `files` are device files such as /dev/nvidia0, `seen` the platforms of jax's devices,
    `platforms` is $JAX_PLATFORMS.
    """
    on_cpu, installed = "cpu" in platforms.split(","), ", ".join(plugins)
    if set(seen) != {"cpu"} or not (files or (plugins and not on_cpu)):
        return None
    if on_cpu:
        text = f"JAX_PLATFORMS={platforms} hides {', '.join([*plugins, files[0]])}"
        return Finding(WARNING, text, "unset it")
    if not files:
        text = f"the plugin {installed} is installed, but no device of it is here"
        fix = "load its driver, or give the container the device (docker run --gpus all)"
        return Finding(WARNING, text, f"{fix}; --compile_for needs none")
    if not plugins:
        extra = next(extra for name, extra in _EXTRAS.items() if name in files[0])
        fix = f'pip install -U "jax[{extra}]"'
        return Finding(WARNING, f"{files[0]} is here, but jax has no plugin for it", fix)
    text = f"{files[0]} and the plugin {installed} are here, but jax sees only a CPU"
    fix = "read jax's warning above: the driver may be too old, the plugin not of jaxlib's version"
    return Finding(BROKEN, text, f"{fix}, or another process may hold the device")


def step() -> Finding:
    """Compare the loss of a tiny ViT's first step on one device with that on all of them."""
    import jax

    here = jax.local_devices()
    with jax.default_matmul_precision("highest"):
        one = _first_loss(here[:1], len(here))
        together = _first_loss(here, len(here)) if len(here) > 1 else one
    if not math.isfinite(one):
        text = f"the loss of a tiny ViT's first step is {one}"
        return Finding(BROKEN, text, "try another version of the driver, or another device")
    if not abs(together - one) <= _LOSS_TOLERANCE:  # also where it is NaN
        text = f"the same step's loss is {one:.6f} on one device and {together:.6f} on {len(here)}"
        return Finding(BROKEN, text, "use fewer devices: --config.mesh.data=1")
    same = f"; the same loss on {len(here)} devices" if len(here) > 1 else ""
    return Finding(OK, f"a tiny ViT trains{same}")


def _first_loss(on: Sequence[Any], shards: int) -> float:
    """Train the first step of a tiny run on some devices; returns its loss."""
    import jax
    import numpy as np

    from vit_jax import models
    from vit_jax.config.tree import Config
    from vit_jax.data import DataConfig
    from vit_jax.devices import sharding
    from vit_jax.train import build

    model = models.variant("vit_mu16", image_size=(32, 32), num_classes=10, zero_head=False)
    size = 8 * shards
    cfg = Config(model=model, data=DataConfig(batch_size=size), duration="10 steps")
    rng, mesh = np.random.default_rng(0), sharding.make_mesh(sharding.MeshConfig(), on)
    images = rng.integers(0, 256, (size, *models.input_shape(model)), np.uint8)
    batch = {"image": images, "label": rng.integers(0, model.num_classes, size, np.int32)}
    parts = build.build(cfg, size)
    with jax.set_mesh(mesh):
        compiled = build.compile_steps(parts, mesh)[0]
        batch = sharding.global_batch(batch, mesh, batch_size=size)
        return float(compiled(build.init_state(cfg, parts, mesh), {}, batch)[1]["loss"])


def disk(workdir: Path) -> Finding:
    """Write a file in the nearest folder that is there, of a workdir and those above it."""
    from vit_jax.cost.tables import format_bytes
    from vit_jax.workdir.folder import resolve

    folder = standing(resolve(workdir)[0])
    free = shutil.disk_usage(folder).free
    text, fix = f"{folder}: {format_bytes(free)} free", "choose another --workdir"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(2**20))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        reason = error.strerror or str(error)
        return Finding(BROKEN, f"{text}, and no file can be kept there ({reason})", fix)
    if free < _LITTLE_SPACE:
        return Finding(WARNING, text, f"free some space, or {fix}")
    return Finding(OK, text)


def standing(folder: Path) -> Path:
    """Return the nearest folder that is there, of `folder` and those above it.

    Raises UserError: something else is in the way.
    """
    folder = folder.expanduser().absolute()
    while not folder.is_dir():
        if folder.exists():
            raise UserError(f"{folder} is no folder; choose another place")
        folder = folder.parent
    return folder
