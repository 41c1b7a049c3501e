# SPDX-License-Identifier: Apache-2.0
"""A run that no longer gets better stops with its best parameters, killed in between or not."""

from pathlib import Path

import jax
import numpy as np

from configs import vit_mu_digits
from tests.refusals import refused_by
from vit_jax import config as config_lib
from vit_jax import trees
from vit_jax.checkpoints import CheckpointConfig, Mode
from vit_jax.config.tree import Config
from vit_jax.optim import OptimConfig, Optimizer
from vit_jax.train import early_stop
from vit_jax.train.early_stop import Tally
from vit_jax.train.loop import Result
from vit_jax.train.report.writers import read_jsonl
from vit_jax.workdir import folder as workdir

MAX = Tally("val/top1", Mode.MAX)


def tally_of(values, start=MAX):
    tally = start
    for step, value in enumerate(values, 1):
        tally = tally.after(10 * step, {tally.metric: value, "val/loss": 0.0})
    return tally


def test_counts_measurements_since_the_first_best():
    assert tally_of([0.5, 0.6, 0.4, 0.6]) == Tally("val/top1", Mode.MAX, 0.6, 20, 2)
    assert tally_of([0.5, 0.6, 0.7]).since == 0
    lower = Tally("val/top1", Mode.MIN)
    assert tally_of([0.5, 0.6, 0.4, 0.6], lower) == Tally("val/top1", Mode.MIN, 0.4, 30, 1)


def test_counts_nothing_where_its_metric_was_not_measured():
    tally = tally_of([0.5, 0.4])
    assert tally.after(99, {"test/top1": 0.9, "val/loss": 0.1}) == tally


def test_a_value_that_is_not_finite_is_no_best():
    assert tally_of([float("nan"), 0.5, float("inf")]) == Tally("val/top1", Mode.MAX, 0.5, 20, 1)
    # There would be nothing to restore.
    assert not tally_of([float("nan")] * 5).ends(2)


def test_ends_after_so_many_in_a_row():
    assert not tally_of([0.5, 0.4]).ends(2)
    assert tally_of([0.5, 0.4, 0.5]).ends(2)
    assert tally_of([0.5, 0.4, 0.5, 0.3]).ends(2)
    assert not tally_of([0.5, 0.4, 0.6]).ends(2)
    assert not tally_of([0.5] * 9).ends(0)


def test_goes_on_from_what_a_checkpoint_holds():
    cfg, tally = CheckpointConfig(), tally_of([0.5, 0.4])
    assert early_stop.resume(cfg, early_stop.to_json(tally)) == tally
    assert early_stop.resume(cfg, {}) == MAX
    other = CheckpointConfig(metric="val/loss")
    fresh = Tally(other.metric, Mode.MIN)
    assert early_stop.resume(other, early_stop.to_json(tally)) == fresh


def test_patience_needs_evaluations_along_the_way():
    cfg = vit_mu_digits.get_config()
    cfg.evals["val"].every = ""
    cfg.checkpoint.patience = 3
    with refused_by("checkpoints.config.check_ranking", "checkpoint.patience"):
        config_lib.check(cfg)


def config(patience: int = 2) -> Config:
    """Build a run whose best is step 3: its steps grow until it diverges."""
    cfg = vit_mu_digits.get_config()
    cfg.model.dim, cfg.model.depth, cfg.model.num_heads, cfg.model.mlp_dim = 16, 1, 2, 32
    cfg.data.batch_size = 64
    cfg.data.transform, cfg.data.mix.mixup_alpha = cfg.evals["val"].transform, 0.0
    cfg.optim = OptimConfig(name=Optimizer.SGD, lr=25.0, momentum=0.0, warmup="90%", clip_norm=0.0)
    cfg.duration, cfg.log.every = "30 steps", "1 steps"
    cfg.evals["val"].every = "3 steps"
    cfg.evals["val"].batch_size = cfg.evals["test"].batch_size = 72
    cfg.log.tensorboard = False
    cfg.ema_decay = 0.5
    cfg.mesh.data = 1
    cfg.checkpoint = CheckpointConfig(every="4 steps", keep=1, metric="val/loss", patience=patience)
    return cfg


def digests(result: Result) -> dict[str, bytes]:
    found = {}
    for name, leaf in trees.named_leaves(result.state):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        found[name] = np.asarray(leaf).tobytes()
    return found


def scores(place: Path) -> list[tuple]:
    """List what metrics.jsonl holds but for times, of which each process leaves its own."""
    rows = read_jsonl(place / workdir.METRICS)
    return [
        (r["step"], n, v)
        for r in rows
        for n, v in r.items()
        if n != "step" and not n.startswith("perf/")
    ]
