# SPDX-License-Identifier: Apache-2.0
"""On which devices a run is, for the line that a restart on others says."""

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from vit_jax.devices import sharding

KEY = "devices"  # in a checkpoint's metadata


def describe(mesh: Mesh) -> dict[str, Any]:
    """Return as JSON what a mesh is of."""
    kind, processes = mesh.devices.flat[0].device_kind, jax.process_count()
    return {"kind": kind, "count": mesh.size, "processes": processes, "mesh": dict(mesh.shape)}


def changed(before: Mapping[str, Any] | None, mesh: Mesh, batch: int) -> str:
    """Return the line about what a restart changed; "" where nothing did.

    Args:
        before: what `describe` returned for the mesh of the checkpoint; None where it has none.
        batch: examples of the global batch.
    """
    now = describe(mesh)
    if not before or before == now:
        return ""
    shards = sharding.batch_shards(mesh)
    was = before["mesh"]["data"] * before["mesh"]["fsdp"]
    each = f"{batch // shards} examples a device"
    each += f", {batch // was} before" if was != shards else " as before"
    return f"now on {_words(now)}, before on {_words(before)}: {each}"


def _words(of: Mapping[str, Any]) -> str:
    axes = ", ".join(f"{axis}={size}" for axis, size in of["mesh"].items() if size > 1)
    place = f" of {of['processes']} processes" if of["processes"] > 1 else ""
    return f"{of['count']} x {of['kind']}{place}{f' ({axes})' if axes else ''}"
