# SPDX-License-Identifier: Apache-2.0
"""`vit_jax doctor`: does this machine train as it should, and a run on it? A line for each check.

What the checks look at is imported in them: it may be missing or broken, which is what they say.
"""

import contextlib
import dataclasses
import functools
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit_jax.cli.checks import cluster, machine
from vit_jax.cli.checks.machine import BROKEN, OK, WARNING, Finding, standing
from vit_jax.cli.parsing import flags, options
from vit_jax.cli.parsing.options import ConfigOptions, flag
from vit_jax.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from vit_jax import data
    from vit_jax.config.tree import Config

_BATCH = 32
_EPOCH = 100  # batches, where only shapes matter
_BEFORE = ("packages", "imports")  # checks before the processes of a job have met


@dataclasses.dataclass(kw_only=True)
class Doctor(ConfigOptions):
    """Checks the install, the devices, a training step and the disk.

    With --config also whether that run fits them and its data can be read. Prints a line for each:
    ok, warning or broken, and what to do. Leaves nothing behind but compiled programs. Started as
    a run of several processes (srun, mpirun), it joins them and compares hosts, clocks and speed.

      vit_jax doctor
      vit_jax doctor --config=configs/vit_mu_digits.py --workdir=runs/digits

    Exit status: 0 nothing is broken, 1 something is, 2 bad usage.
    """

    config: str = flag("", "a run, with overrides such as --config.optim.lr=1e-3", "=FILE")
    workdir: Path = flag(Path(), "where runs are to be kept", "DIR")


def _read(cls: type[Doctor], argv: Sequence[str]) -> tuple[Doctor, Any]:
    """Read a command line whose --config may be left out: then there is no Config."""
    if flags.take("config", argv)[0] is not None:
        return options.read_config(cls, argv)
    return *options.read_options(cls, argv), None


def doctor(given: Doctor, cfg: Any) -> int:
    """Print a line for each check; returns 1 where something is broken, else 0."""
    states, hint = [], "" if cfg else "; --config=FILE also checks a run's data, and if it fits"
    for name, check in _checks(cfg, given.workdir, debug=given.debug):
        speaks = cluster.index() == 0
        if speaks:  # before: a check may hang, or end the process
            print(f"{name:12} ", end="", flush=True)
        state, text, fix = attempt(check, debug=given.debug)
        if speaks or (name in _BEFORE and state != OK):
            start = "" if speaks else f"{name:12} "
            print(f"{start}{state:8} {text}{f'; {fix}' if fix else ''}", flush=True)
        states.append(state)
        if (name, state) == ("imports", BROKEN):
            hint = "; the other checks need what is missing"
            break
    if cluster.index() == 0:
        print(", ".join(f"{states.count(s)} {s}" for s in (OK, WARNING, BROKEN)) + hint)
    return 1 if BROKEN in states else 0


def _checks(cfg: Any, workdir: Path, *, debug: bool) -> Iterator[tuple[str, Callable[[], Finding]]]:
    yield "packages", machine.packages
    yield "imports", machine.imports
    from vit_jax.process import startup

    startup.configure()
    startup.join_cluster()
    if cluster.count() > 1:
        yield "hosts", cluster.hosts
        yield "clocks", cluster.clocks
    yield from (
        (name, functools.partial(cluster.together, functools.partial(attempt, check, debug=debug)))
        if cluster.count() > 1
        else (name, check)
        for name, check in _of_each(cfg, workdir)
    )
    if cluster.count() > 1:
        yield "speed", cluster.speed
        yield "all-reduce", lambda: cluster.all_reduce(cfg and cfg.mesh)


def _of_each(cfg: Any, workdir: Path) -> Iterator[tuple[str, Callable[[], Finding]]]:
    yield "devices", machine.devices
    yield "step", machine.step
    yield "disk", lambda: machine.disk(workdir)
    if cfg is not None:
        yield "size", lambda: size(cfg, workdir)
        yield "dataset", lambda: dataset(cfg)


def attempt(check: Callable[[], Finding], *, debug: bool = False) -> Finding:
    """Run a check; whatever it raises is what is broken."""
    try:
        return check()
    except (Exception, SystemExit) as error:
        if debug:
            traceback.print_exc()
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        return Finding(BROKEN, kind + " ".join(str(error).split())[:500])


def size(cfg: "Config", workdir: Path) -> Finding:
    """Compare what a run takes, by `--dry_run`'s estimate, with what devices and disk have.

    Raises UserError: a mesh, a batch or a kernel that does not fit the devices.
    """
    from vit_jax import config as config_lib
    from vit_jax.cost.tables import format_bytes
    from vit_jax.devices import sharding
    from vit_jax.train import build
    from vit_jax.train.estimate import estimate_memory
    from vit_jax.workdir.folder import resolve

    config_lib.check_kernel(cfg)
    cfg = _fitted(cfg)
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


def _fitted(cfg: "Config") -> "Config":
    """Return the config with what it leaves to the data; where they are missing, as for many."""
    from vit_jax import config as config_lib
    from vit_jax.cli.dry_run import without_writing
    from vit_jax.train import build

    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(None):
        try:
            source = build.open_train(without_writing(cfg, scratch))
        except UserError:  # as the next check will say
            return config_lib.guessed(cfg, 100_000, 1000)
    return config_lib.fitted(cfg, len(source), source.num_classes)


def device_memory() -> int | None:
    """Return the bytes that a run may take of a device; CPU devices share the host's memory."""
    import jax

    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    limits = [each["bytes_limit"] for each in stats if "bytes_limit" in each]
    if limits or "SC_PHYS_PAGES" not in os.sysconf_names:
        return min(limits, default=None)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // len(stats)


def dataset(cfg: "Config") -> Finding:
    """Open a run's splits, and read a batch of each.

    Raises UserError: a split that is not there, classes that are not the model's, a broken image.
    """
    import numpy as np

    from vit_jax import data, models
    from vit_jax.cli.dry_run import without_writing
    from vit_jax.data.sources.base import account_of
    from vit_jax.train import build

    height, width, channels = models.input_shape(cfg.model)
    # What opening them prints would stand in this check's own line.
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(None):
        cfg = without_writing(cfg, scratch)
        source = build.open_train(cfg)
        cfg = build.fitted(cfg, source)
        rules = data.reading(cfg.data)
        of_label = ("value",) if cfg.objective.gives_numbers else ("label",)
        fields = of_label if cfg.objective.uses_labels else ()
        settings = dataclasses.replace(cfg.data, num_workers=0, batch_size=_BATCH)
        size, patch = (height, width), models.native_patch(cfg.model)
        settings.pack = 0  # what is read is the same
        views = data.one_view(settings.transform, size, channels, rules, patch=patch)
        labels = [
            _labels(data.train_batches(source, settings, views=views, seed=cfg.seed, fields=fields))
        ]
        for name, splits in build.open_evals(cfg, source).items():
            each = cfg.evals[name].transform
            views = data.one_view(each, size, channels, rules, patch=patch)
            labels.append(
                _labels(data.eval_batches(splits[""], views, batch_size=_BATCH, fields=fields))
            )
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
        fix = f"vit_jax check-data {cfg.data.name} lists all of it"
        return Finding(WARNING, "; ".join([text, *told, *account.notes]), fix)
    return Finding(OK, text)


def _labels(batches: "data.BatchIterator") -> "np.ndarray":
    """Return the class ids of the first batch, of multi-hot labels too; none if it has none."""
    import numpy as np

    with batches as first:
        label = next(first).get("label", np.zeros(0, int))
    return label if label.ndim == 1 else np.nonzero(label)[1]


main = options.verb(Doctor, doctor, _read)
