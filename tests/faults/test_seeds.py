# SPDX-License-Identifier: Apache-2.0
"""A run is a function of its config: the seed decides every bit, another one is another run."""

from pathlib import Path

from tests.unit.train.test_early_stop import config, digests
from vit_jax.train.loop import fit


def final(seed: int, workdir: Path) -> dict[str, bytes]:
    cfg = config(patience=0)
    cfg.seed, cfg.duration, cfg.evals = seed, "3 steps", {}
    cfg.model.dropout_rate, cfg.data.mix.mixup_alpha = 0.1, 0.2
    cfg.data.transform.degrees = 15.0
    cfg.checkpoint.keep_best = 0
    return digests(fit(cfg, workdir))


def test_the_seed_decides_every_bit(tmp_path: Path) -> None:
    first, again, other = (final(seed, tmp_path / str(i)) for i, seed in enumerate([7, 7, 8]))
    assert first == again
    assert first.keys() == other.keys()
    same = {name for name in first if first[name] == other[name]}
    assert same == {"step", *(name for name in first if name.endswith("/count"))}
