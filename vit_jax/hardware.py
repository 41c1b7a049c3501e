# SPDX-License-Identifier: Apache-2.0
"""Which device a program is traced for: the machine's own, or one that is only described.

Kernels and forms of layers are chosen while a program is traced. A program for hardware that is not
here (`vit_jax/aot`) must choose as it would there, so nothing asks `jax.default_backend()` itself.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax

_described: contextvars.ContextVar["Target | None"] = contextvars.ContextVar("target", default=None)


@dataclasses.dataclass(frozen=True)
class Target:
    """What the choice of a kernel may depend on.

    Attributes:
        platform: "cpu", "gpu" or "tpu".
        kind: `jax.Device.device_kind`, such as "TPU v5 lite".
        capability: of an NVIDIA GPU, as (9, 0); (0, 0) for anything else.
    """

    platform: str
    kind: str = ""
    capability: tuple[int, int] = (0, 0)

    @property
    def has_cudnn(self) -> bool:
        """Whether cuDNN's flash attention runs there: on NVIDIA's GPUs from Ampere on."""
        return self.capability >= (8, 0)


def target() -> Target:
    """Return what is traced for: what `tracing_for` describes, else the first local device."""
    described = _described.get()
    return of(jax.local_devices()[0]) if described is None else described


def of(device: Any) -> Target:
    """Describe a device of jax."""
    # "9.0" and the like; "gfx942" of AMD, nothing of a CPU or TPU.
    major, _, minor = getattr(device, "compute_capability", "").partition(".")
    known = major.isdecimal() and minor.isdecimal()
    capability = (int(major), int(minor)) if known else (0, 0)
    return Target(device.platform, device.device_kind, capability)


@contextlib.contextmanager
def tracing_for(described: Target) -> Iterator[None]:
    """Trace what is inside for a described device instead of the machine's own.

    jax's caches of traces do not know of it: trace for one target with objects (modules, jitted
    functions) that are not traced for another, or call `jax.clear_caches()` between them.
    """
    token = _described.set(described)
    try:
        yield
    finally:
        _described.reset(token)
