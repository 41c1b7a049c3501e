# SPDX-License-Identifier: Apache-2.0
"""Checks of `doctor` on what computes: devices, dtypes, a training step, memory."""

import collections
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import models, sharding, trees
from vit_jax.analysis.tables import format_bytes
from vit_jax.cli.finding import BROKEN, OK, WARNING, Finding
from vit_jax.config import Config
from vit_jax.data import DataConfig
from vit_jax.sharding import MeshConfig
from vit_jax.train import build

_SIDE = 256
# Largest error over the largest element: of sums of _SIDE products, rounded once to the dtype.
_TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2}
_LOSS_TOLERANCE = 1e-4
_LITTLE_MEMORY = 2**30
_WRONG = "the device or its driver computes wrongly; try another version of it, or another device"

# The bits of a state and its loss.
Outcome = tuple[Mapping[str, bytes], float]


def devices() -> Finding:
    """Name the devices of this process."""
    kinds = collections.Counter(device.device_kind for device in jax.local_devices())
    found = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    affinity = getattr(os, "sched_getaffinity", None)  # Linux: the cores this process may use
    return Finding(OK, f"{found}; {len(affinity(0)) if affinity else os.cpu_count()} CPU cores")


def matmul(dtype: str) -> Finding:
    """Compare a product of matrices in a dtype with that of the same numbers in float64."""
    a, b = np.random.default_rng(0).standard_normal((2, _SIDE, _SIDE))
    x, y = jnp.asarray(a, dtype), jnp.asarray(b, dtype)
    exact = np.asarray(x, np.float64) @ np.asarray(y, np.float64)
    found = np.asarray(jnp.matmul(x, y, precision="highest"), np.float64)
    return near(found, exact, dtype)


def near(found: np.ndarray, exact: np.ndarray, dtype: str) -> Finding:
    """Say whether a product is what its dtype's rounding allows."""
    error = float(np.abs(found - exact).max() / np.abs(exact).max())
    if not error <= _TOLERANCE[dtype]:  # NaN is not
        return Finding(
            BROKEN,
            f"a product of matrices is off by {error:.1e} of its largest element",
            _WRONG,
        )
    return Finding(OK, f"a product of matrices is within {error:.0e} of float64's")


def training_step() -> Finding:
    """Train a tiny ViT one step, twice from the same state, and on all devices of this process."""
    here = jax.local_devices()
    cfg = _tiny(len(here))
    parts = build.build(cfg, cfg.data.batch_size)
    rng, size = np.random.default_rng(0), cfg.data.batch_size
    batch = {
        "image": rng.integers(0, 256, (size, *models.input_shape(cfg.model)), np.uint8),
        "label": rng.integers(0, cfg.model.num_classes, size, np.int32),
    }
    with jax.default_matmul_precision("highest"):
        once, again = _steps(cfg, parts, batch, here[:1], times=2)
        together = _steps(cfg, parts, batch, here, times=1)[0][1] if len(here) > 1 else None
    return compare(once, again, together, len(here), here[0].platform)


def _tiny(num_devices: int) -> Config:
    # Of a head of zeros no gradient would reach what is below it.
    sizes = {"image_size": (32, 32), "num_classes": 10, "zero_head": False}
    model = models.variant("vit_mu16", dropout_rate=0.1, **sizes)
    batch_size = num_devices * math.ceil(8 / num_devices)
    return Config(model=model, data=DataConfig(batch_size=batch_size), duration="10 steps")


def _steps(
    cfg: Config, parts: build.Parts, batch: Mapping[str, np.ndarray], on: Sequence[Any], times: int
) -> list[Outcome]:
    """Train the first step of a run `times` times, from the beginning each time."""
    mesh = sharding.make_mesh(MeshConfig(), on)
    outcomes = []
    with jax.set_mesh(mesh):
        step = build.compile_step(parts, mesh)
        there = sharding.global_batch(batch, mesh, batch_size=cfg.data.batch_size)
        for _ in range(times):
            state, metrics = step(build.init_state(cfg, parts, mesh), {}, there)
            leaves = trees.named_leaves({"params": state.params, "opt_state": state.opt_state})
            bits = {name: np.asarray(leaf).tobytes() for name, leaf in leaves}
            outcomes.append((bits, float(metrics["loss"])))
    return outcomes


def compare(
    once: Outcome, again: Outcome, together: float | None, num_devices: int, platform: str
) -> Finding:
    """Judge a step that was done twice on one device, and once on all.

    Args:
        once: of the first time.
        again: of the second.
        together: the loss on all devices, None where there is but one.
        num_devices: how many those are.
        platform: of the devices.
    """
    (bits, loss), (others, _) = once, again
    differ = [name for name, value in bits.items() if others[name] != value]
    those = f"{', '.join(differ[:1])}, {len(differ)} of {len(bits)} arrays"
    if not math.isfinite(loss):
        return Finding(BROKEN, f"the loss of a tiny ViT's first step is {loss}", _WRONG)
    if together is not None and not abs(together - loss) <= _LOSS_TOLERANCE:
        return Finding(
            BROKEN,
            f"the same step's loss is {loss:.6f} on one device and {together:.6f} on {num_devices}",
            "the devices do not talk to each other as they should; use fewer: --config.mesh.data=1",
        )
    if differ and platform == "gpu":
        return Finding(
            WARNING,
            f"the same step twice gave other bits ({those}): a run that was killed ends near, not "
            "at, the same weights",
            "export XLA_FLAGS=--xla_gpu_deterministic_ops=true",
        )
    if differ:
        return Finding(
            BROKEN,
            f"the same step twice gave other bits ({those})",
            "memory or processor may be at fault; test the machine",
        )
    alike = f"; the same loss on {num_devices} devices" if together is not None else ""
    return Finding(OK, f"a tiny ViT's step twice: the same bits{alike}")


def memory() -> Finding:
    """Say how much memory the host and its devices have to give."""
    left, each = available(), device_limit()
    text = f"{format_bytes(left)} of the host's can be had" if left is not None else "not known"
    text += f", {format_bytes(each)} on each device" if each is not None else ""
    if left is not None and left < _LITTLE_MEMORY:
        return Finding(WARNING, text, "end other programs, or give the container more")
    return Finding(OK, text)


def available(root: Path = Path("/")) -> int | None:
    """Return the bytes of the host's memory that can be had, by Linux and by its container."""
    found = []
    try:
        fields = (root / "proc/meminfo").read_text().split()
        found.append(int(fields[fields.index("MemAvailable:") + 1]) * 1024)
    except (OSError, ValueError, IndexError):
        return None  # no Linux
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # of cgroups 2 and 1
        try:
            found.append(int((root / "sys/fs/cgroup" / name).read_text()))
        except (OSError, ValueError):  # none, or "max"
            continue
    return min(found)


def device_limit() -> int | None:
    """Return the bytes that a run may take of a device; None of a CPU, which has the host's."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    limits = [one["bytes_limit"] for one in stats if "bytes_limit" in one]
    return min(limits, default=None)
