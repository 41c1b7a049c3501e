# SPDX-License-Identifier: Apache-2.0
"""Checks of `doctor` on one run: does it fit the machine, and can its data be read?"""

import contextlib
import dataclasses
import os
import shutil
import tempfile
from pathlib import Path

import jax
import numpy as np

from vit_jax import config as config_lib
from vit_jax import data, models
from vit_jax.cli.reports.check_machine import BROKEN, OK, WARNING, Finding, standing
from vit_jax.cli.reports.dry_run import without_writing
from vit_jax.config.tree import Config
from vit_jax.cost.tables import format_bytes
from vit_jax.data.sources.base import account_of
from vit_jax.devices import sharding
from vit_jax.train import build
from vit_jax.train.estimate import estimate_memory
from vit_jax.workdir.folder import resolve

_BATCH = 32
_EPOCH = 100  # batches, where only shapes matter


def size(cfg: Config, workdir: Path) -> Finding:
    """Compare what a run takes, by `--dry_run`'s estimate, with what devices and disk have.

    Raises UserError: a mesh, a batch or a kernel that does not fit the devices.
    """
    config_lib.check_kernel(cfg)
    mesh = sharding.make_mesh(cfg.mesh)
    config_lib.check_batch(cfg, sharding.batch_shards(mesh))
    need = estimate_memory(cfg, build.build(cfg, _EPOCH * cfg.data.batch_size), mesh)
    memory, free = device_memory(), shutil.disk_usage(standing(resolve(workdir)[0])).free
    checkpoints = need.checkpoint * (cfg.checkpoint.keep + cfg.checkpoint.keep_best + 1)
    limit = "" if memory is None else f" of {format_bytes(memory)}"
    text = f"about {format_bytes(need.device_total)} on each device{limit}"
    text += f", checkpoints of {format_bytes(checkpoints)} at most; mesh {dict(mesh.shape)}"
    if memory is not None and need.device_total > memory:
        return Finding(WARNING, text, "raise accum_steps or mesh.fsdp, or set model.remat=full")
    if checkpoints > free:
        fix = f"only {format_bytes(free)} of disk are free: lower checkpoint.keep, or free some"
        return Finding(WARNING, text, fix)
    return Finding(OK, text)


def device_memory() -> int | None:
    """Return the bytes that a run may take of a device; CPU devices share the host's memory."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    limits = [each["bytes_limit"] for each in stats if "bytes_limit" in each]
    if limits or "SC_PHYS_PAGES" not in os.sysconf_names:
        return min(limits, default=None)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // len(stats)


def dataset(cfg: Config) -> Finding:
    """Open a run's splits, and read a batch of each.

    Raises UserError: a split that is not there, classes that are not the model's, a broken image.
    """
    height, width, channels = models.input_shape(cfg.model)
    # What opening them prints would stand in this check's own line.
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(None):
        cfg = without_writing(cfg, scratch)
        source = build.open_train(cfg)
        rules = data.reading(cfg.data)
        settings = dataclasses.replace(cfg.data, num_workers=0, batch_size=_BATCH)
        views = data.one_view(settings.transform, (height, width), channels, rules)
        labels = [_labels(data.train_batches(source, settings, views=views, seed=cfg.seed))]
        for name, splits in build.open_evals(cfg, source).items():
            views = data.one_view(cfg.evals[name].transform, (height, width), channels, rules)
            labels.append(_labels(data.eval_batches(splits[""], views, batch_size=_BATCH)))
    text = f"{source.name}: {len(source):,} images, {source.num_classes:,} classes"
    classes = np.concatenate(labels)
    wrong = classes[(classes < 0) | (classes >= source.num_classes)]
    if len(wrong):
        text += f", and a label {wrong[0]}"
        return Finding(BROKEN, text, "prepare the dataset again; labels are 0 to classes - 1")
    text += f"; {', '.join(['train', *cfg.evals])} can be read"
    account = account_of(source)
    if account and (account.lost or account.notes):
        told = [account.why_left_out()] if account.lost else []
        fix = f"vit_jax prepare {cfg.data.name} --check lists all of it"
        return Finding(WARNING, "; ".join([text, *told, *account.notes]), fix)
    return Finding(OK, text)


def _labels(batches: data.BatchIterator) -> np.ndarray:
    """Return the class ids of the first batch, of multi-hot labels too."""
    with batches as first:
        label = next(first)["label"]
    return label if label.ndim == 1 else np.nonzero(label)[1]
