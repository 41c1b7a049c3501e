# SPDX-License-Identifier: Apache-2.0
"""Checks of `doctor` on the machine; each imports what it looks at, which may be missing."""

import collections
import fcntl
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
    """One line of the report.

    Attributes:
        state: "ok"; "warning": runs work, but slower or with less than one may think; "broken".
        text: what was found.
        fix: what to do, where there is something.
    """

    state: str
    text: str
    fix: str = ""


_SHOWN = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
# Which of jax's plugins drives a device file.
_PLUGINS = {
    "nvidia": 'pip install -U "jax[cuda13]"',
    "accel": 'pip install -U "jax[tpu]"',
    "vfio": 'pip install -U "jax[tpu]"',
    "kfd": "install jax's plugin for ROCm",
}
_LITTLE_SPACE = 2**30
_LOSS_TOLERANCE = 1e-4


def requirements() -> tuple[list[str], str]:
    """Return the packages that vit_jax asks for, with their ranges, and where that is written."""
    checkout = Path(__file__).parents[2] / "pyproject.toml"
    if checkout.is_file():
        project = tomllib.loads(checkout.read_text(encoding="utf-8"))["project"]
        if project["name"] == "vit-jax":
            return project["dependencies"], "pyproject.toml"
    return importlib.metadata.requires("vit-jax") or [], "the package's metadata"


def packages() -> Finding:
    """Compare what is installed with the requirements, but for those of an extra."""
    from packaging.requirements import Requirement

    wanted, where = requirements()
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
    about = f"Python {platform.python_version()}, {len(needed)} packages as {where} has them"
    return Finding(OK, f"{about}: {shown}")


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


def devices() -> Finding:
    """Name jax's devices, and compare them with the machine's plugins and device files."""
    import jax

    from vit_jax import startup

    plugins = {entry.name for entry in importlib.metadata.entry_points(group="jax_plugins")}
    plugins |= {"libtpu"} if _version("libtpu") else set()
    here = jax.local_devices()
    kinds = collections.Counter(device.device_kind for device in here)
    affinity = getattr(os, "sched_getaffinity", None)  # Linux: the cores this process may use
    cores = len(affinity(0)) if affinity else os.cpu_count()
    text = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    unused = judge_devices(
        sorted(plugins),
        startup.device_files(),
        {device.platform for device in here},
        os.environ.get("JAX_PLATFORMS", ""),
    )
    return unused or Finding(OK, f"{text}; {cores} CPU cores")


def judge_devices(
    plugins: Sequence[str], files: Sequence[str], seen: Collection[str], platforms: str
) -> Finding | None:
    """Return why an accelerator that is here is not used, or None.

    `plugins` are jax's, `files` device files such as /dev/nvidia0, `seen` the platforms of jax's
    devices, `platforms` is $JAX_PLATFORMS.
    """
    on_cpu = "cpu" in platforms.split(",")
    if set(seen) != {"cpu"} or not (files or (plugins and not on_cpu)):
        return None
    if on_cpu:
        here = ", ".join([*plugins, files[0]])
        return Finding(WARNING, f"JAX_PLATFORMS={platforms} hides {here}", "unset it")
    if not files:
        return Finding(
            WARNING,
            f"the plugin {', '.join(plugins)} is installed, but no device of it is here",
            "--compile_for needs none; else is the driver loaded, was the container given the "
            "device (docker run --gpus all)?",
        )
    if not plugins:
        fix = next((fix for name, fix in _PLUGINS.items() if name in files[0]), "")
        return Finding(WARNING, f"{files[0]} is here, but jax has no plugin for it", fix)
    return Finding(
        BROKEN,
        f"{files[0]} and the plugin {', '.join(plugins)} are here, but jax sees only a CPU",
        "its warning above has the reason: a driver too old for the plugin, a plugin of another "
        "version than jaxlib, or a device that another process holds",
    )


def step() -> Finding:
    """Compare the loss of a tiny ViT's first step on one device with that on all of them."""
    import jax

    here = jax.local_devices()
    with jax.default_matmul_precision("highest"):
        one = _first_loss(here[:1], len(here))
        together = _first_loss(here, len(here)) if len(here) > 1 else one
    if not math.isfinite(one):
        return Finding(
            BROKEN,
            f"the loss of a tiny ViT's first step is {one}",
            "the device or its driver computes wrongly; try another version, or another device",
        )
    if not abs(together - one) <= _LOSS_TOLERANCE:  # NaN is not
        return Finding(
            BROKEN,
            f"the same step's loss is {one:.6f} on one device and {together:.6f} on {len(here)}",
            "the devices do not communicate as they should; use fewer: --config.mesh.data=1",
        )
    same = f"; the same loss on {len(here)} devices" if len(here) > 1 else ""
    return Finding(OK, f"a tiny ViT trains{same}")


def _first_loss(on: Sequence[Any], parts_of_batch: int) -> float:
    """Train the first step of a tiny run on some devices; returns its loss."""
    import jax
    import numpy as np

    from vit_jax import models, sharding
    from vit_jax.config import Config
    from vit_jax.data import DataConfig
    from vit_jax.train import build

    model = models.variant("vit_mu16", image_size=(32, 32), num_classes=10, zero_head=False)
    size = parts_of_batch * math.ceil(8 / parts_of_batch)
    cfg = Config(model=model, data=DataConfig(batch_size=size), duration="10 steps")
    rng, mesh = np.random.default_rng(0), sharding.make_mesh(sharding.MeshConfig(), on)
    batch = {
        "image": rng.integers(0, 256, (size, *models.input_shape(model)), np.uint8),
        "label": rng.integers(0, model.num_classes, size, np.int32),
    }
    parts = build.build(cfg, size)
    with jax.set_mesh(mesh):
        compiled = build.compile_step(parts, mesh)
        there = sharding.global_batch(batch, mesh, batch_size=size)
        return float(compiled(build.init_state(cfg, parts, mesh), {}, there)[1]["loss"])


def disk(place: Path) -> Finding:
    """Write a file where runs are kept, and see whether locks work there.

    The place itself is not made: the nearest folder above that is there stands for it.
    """
    from vit_jax.analysis.tables import format_bytes
    from vit_jax.train import workdir

    workdir.check(place)
    folder = standing(place)
    free = shutil.disk_usage(folder).free
    text, elsewhere = f"{folder}: {format_bytes(free)} free", "choose another --workdir"
    try:
        with tempfile.NamedTemporaryFile(prefix=".doctor-", dir=folder) as file:
            file.write(bytes(2**20))
            file.flush()
            os.fsync(file.fileno())
            lock = _lock_fails(file)
    except OSError as error:
        reason = error.strerror or str(error)
        return Finding(BROKEN, f"{text}, and no file can be kept there ({reason})", elsewhere)
    if lock:
        fix = "start no second run on the same workdir: it would not be noticed"
        return Finding(WARNING, f"{text}, but files cannot be locked ({lock})", fix)
    if free < _LITTLE_SPACE:
        return Finding(WARNING, text, f"free some space, or {elsewhere}")
    return Finding(OK, f"{text}; locks work")


def standing(place: Path) -> Path:
    """Return the nearest folder that is there, of a place and those above it.

    Raises UserError: something else is in the way.
    """
    place = place.expanduser().absolute()
    while not place.is_dir():
        if place.exists():
            raise UserError(f"{place} is no folder; choose another place")
        place = place.parent
    return place


def _lock_fails(file: Any) -> str:
    """Return why a lock does not keep a second one out; "" where it does."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with open(file.name, "rb") as second:
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return ""
    except OSError as error:
        return error.strerror or str(error)
    return "two hold the same lock"
