# SPDX-License-Identifier: Apache-2.0
"""Checks of `doctor` on one run: does it fit the machine, and can its data be read?"""

import dataclasses
import os
import shutil
import tempfile
from pathlib import Path

import jax
import numpy as np

from vit_jax import config as config_lib
from vit_jax import data, models, sharding
from vit_jax.analysis.tables import format_bytes
from vit_jax.cli.check_machine import BROKEN, OK, WARNING, Finding, standing
from vit_jax.cli.dry_run import estimate_memory, without_writing
from vit_jax.config import Config
from vit_jax.train import build

_BATCH = 32
_EPOCH = 100  # batches, where only shapes matter


def size(cfg: Config, place: Path) -> Finding:
    """Compare what a run takes, by `--dry_run`'s estimate, with what devices and disk have.

    Raises UserError: a mesh, a batch or a kernel that does not fit the devices.
    """
    config_lib.check_kernel(cfg)
    mesh = sharding.make_mesh(cfg.mesh)
    config_lib.check_batch(cfg, sharding.batch_shards(mesh))
    parts = build.build(cfg, _EPOCH * cfg.data.batch_size)
    need = estimate_memory(cfg, parts, mesh)
    kept = need.checkpoint * (cfg.checkpoint.keep + cfg.checkpoint.keep_best + 1)
    free = shutil.disk_usage(standing(place)).free
    return judge(need.device_total, device_memory(), kept, free, dict(mesh.shape))


def device_memory() -> int | None:
    """Return the bytes that a run may take of a device; CPU devices share the host's memory."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    limits = [one["bytes_limit"] for one in stats if "bytes_limit" in one]
    if limits or "SC_PHYS_PAGES" not in os.sysconf_names:
        return min(limits, default=None)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // len(stats)


def judge(need: int, here: int | None, kept: int, free: int, mesh: dict[str, int]) -> Finding:
    """Judge a run's size, in bytes.

    Args:
        need: on each device.
        here: what each has; None is not known.
        kept: of all checkpoints that are kept, and one that is being written.
        free: on their disk.
        mesh: sizes of its axes.
    """
    text = f"about {format_bytes(need)} on each device"
    text += f" of {format_bytes(here)}" if here is not None else ""
    text += f", checkpoints of {format_bytes(kept)} at most; mesh {mesh}"
    if here is not None and need > here:
        return Finding(WARNING, text, "raise accum_steps or mesh.fsdp, or set model.remat=full")
    if kept > free:
        fix = f"only {format_bytes(free)} of disk are free: lower checkpoint.keep, or free some"
        return Finding(WARNING, text, fix)
    return Finding(OK, text)


def dataset(cfg: Config) -> Finding:
    """Open a run's splits, and read a batch of each.

    Raises UserError: a split that is not there, classes that are not the model's, a broken image.
    """
    with tempfile.TemporaryDirectory() as scratch:
        cfg = without_writing(cfg, scratch)
        source = build.open_train(cfg)
        labels = _read_training(cfg, source)
        for name, splits in build.open_evals(cfg, source).items():
            labels = np.append(labels, _read_first(cfg, name, splits[""]))
    text = f"{source.name}: {len(source):,} images, {source.num_classes:,} classes"
    wrong = labels[(labels < 0) | (labels >= source.num_classes)]
    if len(wrong):
        text += f", and a label {wrong[0]}"
        return Finding(BROKEN, text, "prepare the dataset again; labels are 0 to classes - 1")
    return Finding(OK, f"{text}; {', '.join(['train', *cfg.evals])} can be read")


def _read_training(cfg: Config, source: data.Source) -> np.ndarray:
    """Read the first training batch; returns its class ids."""
    height, width, channels = models.input_shape(cfg.model)
    settings = dataclasses.replace(cfg.data, num_workers=0, batch_size=_BATCH)
    batches = data.train_batches(
        source,
        settings,
        views=data.one_view(settings.transform, (height, width), channels),
        seed=cfg.seed,
    )
    with batches:
        return _classes(next(batches))


def _read_first(cfg: Config, name: str, source: data.Source) -> np.ndarray:
    """Read the first batch of an evaluation's split; returns its class ids."""
    height, width, channels = models.input_shape(cfg.model)
    batches = data.eval_batches(
        source,
        data.one_view(cfg.evals[name].transform, (height, width), channels),
        batch_size=_BATCH,
    )
    with batches:
        return _classes(next(batches))


def _classes(batch: data.Batch) -> np.ndarray:
    """Return the class ids of a batch's labels, multi-hot ones too."""
    label = batch["label"]
    return label if label.ndim == 1 else np.nonzero(label)[1]
