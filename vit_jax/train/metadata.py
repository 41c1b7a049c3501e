# SPDX-License-Identifier: Apache-2.0
"""Metadata in the workdir and in every checkpoint, and what of it a resumed run must match."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config
from vit_jax.devices import sharding
from vit_jax.errors import UserError, setting, some
from vit_jax.train import data_identity
from vit_jax.version import __version__
from vit_jax.weights.config import AVERAGE, BASE, OWN_PARAMETERS, Base
from vit_jax.workdir import folder as workdir

_EXTRAS = "teacher"  # digest of what an objective reads from outside
_DEVICES = "devices"  # on which a run is, for the line that a restart on others says
TRUNK = "trunk"  # of a run that begins as a branch: the run that it continues, "DIR@STEP"


def describe(
    cfg: Config,
    class_names: Sequence[str],
    splits: Mapping[str, Any],
    digest: str,
    own: Sequence[str],
    mesh: Mesh,
    average: bool = False,
    base: Base | None = None,
) -> dict[str, Any]:
    """Return what a checkpoint says about itself, besides its arrays.

    Args:
        cfg: the run.
        class_names: of the training split.
        splits: of `data_identity.describe`.
        digest: of the objective's `Extras`.
        own: parameters, by the first part of their names, that are the objective's and not the
            model's; who takes the model out of the run leaves them.
        mesh: the devices.
        average: who takes the model out takes the moving average of its parameters.
        base: where the parameters come from that are not saved; None where all are.
    """
    return {
        **({_EXTRAS: digest} if digest else {}),
        **({OWN_PARAMETERS: list(own)} if own else {}),
        **({AVERAGE: True} if average else {}),
        **({BASE: base._asdict()} if base else {}),
        data_identity.KEY: splits,
        "config": config_json.to_json(cfg),
        "class_names": list(class_names),
        "versions": {"vit_jax": __version__, "jax": jax.__version__},
        _DEVICES: describe_devices(mesh),
    }


def write(path: Path, metadata: Mapping[str, Any]) -> None:
    """Write the config and the class names into the workdir."""
    if jax.process_index() != 0:
        return
    (path / workdir.CONFIG).write_text(json.dumps(metadata["config"], indent=2) + "\n")
    (path / workdir.CLASSES).write_text(json.dumps(metadata["class_names"], indent=1) + "\n")


def check_unchanged(
    cfg: Config,
    saved: Mapping[str, Any],
    class_names: Sequence[str],
    splits: Mapping[str, Any],
    path: Path,
    *,
    allow_config_change: bool,
    allow_data_change: bool,
) -> dict[str, float]:
    """Compare a run's config and data with those of its checkpoint.

    Returns:
        The number of allowed changes, as metrics of the step where the run continues.

    Raises UserError: they differ, and no flag allows it.
    """
    if not saved:
        return {}
    settings = config_json.changes(saved["config"], config_json.to_json(cfg))
    moved = data_identity.moved(saved, splits)
    settings = [line for line in settings if line.partition(": ")[0] not in moved]
    trunk = saved.get(TRUNK)
    if settings and trunk and not allow_config_change:
        raise UserError(
            f"optim.branch: {trunk} was trained with another config ({some(settings)}); a branch "
            "has its trunk's but for duration, optim.cooldown_shape and optim.min_lr: set the rest "
            f"as there, or add {setting('allow_config_change')}",
            field="optim.branch",
        )
    if settings and not allow_config_change:
        raise UserError(
            f"{path} was started with another config ({some(settings)}); choose "
            f"another workdir, or add {setting('allow_config_change')} to continue from its "
            "checkpoint anyway"
        )
    files = data_identity.changes(saved, class_names, splits)
    if files and not allow_data_change:
        raise UserError(
            f"{trunk or path} was trained on other data ({some(files)}); bring those back, choose "
            f"another workdir, or add {setting('allow_data_change')} to continue on these"
        )
    if not files and jax.process_index() == 0:  # what the run reads is as it was
        for line in data_identity.other_files(saved, splits):
            print(f"{path}: since it was started, {line}", flush=True)
    found = {"run/config_changed": settings, "run/data_changed": files}
    return {name: float(len(lines)) for name, lines in found.items() if lines}


def check_extras_unchanged(
    digest: str, saved: Mapping[str, Any], path: Path, field: str = "objective.distill.weights"
) -> None:
    """Raise UserError, with both digests, if a run would continue with another teacher.

    Or with whatever else the `field` of its config names.
    """
    before = saved.get(_EXTRAS, "")
    if digest != before:
        raise UserError(
            f"{field} are not those that {path} was started with (digest "
            f"{digest or 'none'}, not {before or 'none'}); choose another workdir, or add "
            f"{setting('allow_config_change')} to continue from its checkpoint anyway",
            field=field,
        )


def describe_devices(mesh: Mesh) -> dict[str, Any]:
    """Return as JSON what a mesh is of."""
    kind, processes = mesh.devices.flat[0].device_kind, jax.process_count()
    return {"kind": kind, "count": mesh.size, "processes": processes, "mesh": dict(mesh.shape)}


def other_devices(saved: Mapping[str, Any], mesh: Mesh, batch: int) -> str:
    """Return the line about the devices that a restart changed; "" where it changed none.

    Args:
        saved: the metadata of the checkpoint, which in old ones tells no devices.
        mesh: the devices now.
        batch: examples of the global batch.
    """
    before, now = saved.get(_DEVICES), describe_devices(mesh)
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
