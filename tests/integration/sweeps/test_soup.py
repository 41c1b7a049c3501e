# SPDX-License-Identifier: Apache-2.0
"""`soup`: averages, the greedy choice, and what is refused; a result that is a run."""

import copy
import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import regnet_digits, vit_mu_digits
from tests.unit.weights.runs import make_state
from vit_jax import trees, weights
from vit_jax.__main__ import main
from vit_jax.checkpoints import CheckpointConfig, reader
from vit_jax.checkpoints.checkpointer import Checkpointer
from vit_jax.config import check
from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config
from vit_jax.sweeps import soup
from vit_jax.weights.config import InitConfig

CLASSES = [str(digit) for digit in range(10)]


def config() -> Config:
    """Build a run that is ranked by the loss of its moving average."""
    cfg = vit_mu_digits.get_config()
    cfg.model.dim, cfg.model.depth, cfg.model.num_heads, cfg.model.mlp_dim = 8, 1, 2, 16
    cfg.ema_decay, cfg.data.batch_size = 0.9, 72
    cfg.checkpoint.metric = "val_ema/loss"
    return cfg


def save(folder: Path, cfg: Config, states: dict[int, Any]) -> Path:
    checkpoints = Checkpointer(folder / "checkpoints", CheckpointConfig(keep=9))
    metadata = {"config": config_json.to_json(cfg), "class_names": CLASSES}
    for step, state in states.items():
        checkpoints.save(step, state, metadata=metadata)
        checkpoints.wait()
    return folder


def verb(capsys: pytest.CaptureFixture[str], *args: object, status: int = 0) -> str:
    capsys.readouterr()
    assert main(["vit_jax", "soup", *map(str, args)]) == status
    out, err = capsys.readouterr()
    return out if status == 0 else err


def params_of(place: Path, cfg: Config, **given: Any) -> dict[str, np.ndarray]:
    return dict(trees.named_leaves(weights.load(f"ckpt:{place}", cfg.model, **given)["params"]))


def test_a_soup_is_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cfg = config()
    check(copy.deepcopy(cfg))
    plus, other = (make_state(cfg.model, step, with_ema=True) for step in (1, 3))
    # Weights that are all zero have the loss log(10); only this average has such weights.
    minus = dataclasses.replace(plus, ema=jax.tree.map(jnp.negative, plus.ema))
    a = save(tmp_path / "a", cfg, {1: plus, 2: minus})
    b = save(tmp_path / "b", cfg, {3: other})

    out = verb(capsys, f"--from={a}@all,{b}", f"--to={tmp_path / 'uniform'}", "--noevaluate")
    assert "these runs did not begin with the same weights" in out
    assert "of 3 of 3 checkpoints" in out
    third = {n: np.asarray(x) / 3 for n, x in trees.named_leaves(other.ema["params"])}
    for ema in (True, False):
        for name, value in params_of(tmp_path / "uniform", cfg, ema=ema).items():
            np.testing.assert_allclose(value, third[name], rtol=1e-6, atol=1e-7, err_msg=name)

    to = tmp_path / "greedy"
    out = verb(capsys, f"--from={b},{a}@1,{a}@2", f"--to={to}", "--greedy")
    used, left = (b, f"{a}@") if f"{b}@3: kept" in out else (f"{a}@", b)
    assert "of 2 of 3 checkpoints" in out, out
    assert (used, left) == (f"{a}@", b)
    assert all(not value.any() for value in params_of(to, cfg).values())
    saved = reader.find(to)
    assert saved.step == 2
    assert saved.manifest.metrics["val_ema/loss"] == pytest.approx(math.log(10))
    history = saved.manifest.metadata[soup.HISTORY]
    assert (history["how"], sorted(history["of"])) == ("val_ema/loss", [f"{a}@1", f"{a}@2"])
    assert len(history["each"]) == 3
    # One table, in which each has its numbers, and the soup.
    table = out[out.index("checkpoint ") :]
    assert [line.split()[-1] for line in table.splitlines() if "soup" in line]
    assert main(["vit_jax", "evaluate", f"--from={to}", "--split=train[1293:]"]) == 0
    assert "2.3026" in capsys.readouterr().out
    continued = config_json.load(to / "config.json", None)
    assert continued.init == InitConfig(weights=f"ckpt:{to}")
    check(continued)
    check_refusals(tmp_path, a, b, capsys)


def check_refusals(place: Path, a: Path, b: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wide = config()
    wide.model.dim = 16
    c = save(place / "c", wide, {1: make_state(wide.model, 1, with_ema=True)})
    plain = config()
    plain.checkpoint.metric = "val/loss"
    d = save(place / "d", plain, {1: make_state(plain.model, 1, with_ema=True)})
    rows = {
        f"--from={a},{c}": "is another model than .*a@2 \\(model.dim: 8 -> 16\\)",
        f"--from={a},{d}": "one is a moving average; add --ema or --noema",
        f"--from={a}": "two checkpoints or more",
        f"--from={a}@all,{a}@latest": "twice",
        f"--from={a},{b}@7": "no checkpoint of step 7",
        f"--from={a}@all --greedy --metric=val/top7": "metric of a greedy soup",
        f"--from={a}@all --metric=val/top1": "add --greedy",
        f"--from={a}@all --greedy --noevaluate": "chooses by an evaluation",
    }
    for words, told in rows.items():
        err = verb(capsys, *words.split(), f"--to={place / 'refused'}", status=2)
        assert err.count("\n") == 1, err
        assert re.search(told, err), (words, err)
    assert not (place / "refused").exists()


def test_statistics_of_batch_norm_are_measured_anew(tmp_path: Path) -> None:
    cfg = regnet_digits.get_config()
    cfg.model = dataclasses.replace(cfg.model, depth=2, w0=8, wa=8.0, group_width=8)
    cfg.data.batch_size, cfg.evals = 16, {}
    cfg.data.transform, cfg.data.mix.mixup_alpha = config().evals["val"].transform, 0.0
    states = {step: make_state(cfg.model, step) for step in (1, 2)}
    found = soup.find([f"{save(tmp_path / 'run', cfg, states)}@all"])
    assert soup.needs_data(found[0])
    kitchen = soup.open_kitchen(found[0], measures=False)
    arrays = soup.cook(found, kitchen).arrays
    names = [name for name in arrays if not name.startswith("params/")]
    mean = {
        name: (np.asarray(x) + np.asarray(y)) / 2
        for (name, x), (_, y) in zip(
            *(trees.named_leaves(states[step].model_state) for step in (1, 2)), strict=True
        )
    }
    assert names
    assert set(names) == set(mean)
    last = dict(trees.named_leaves(states[2].model_state))
    again = soup._with_statistics(kitchen, {**arrays, **{n: np.asarray(last[n]) for n in names}})
    for name in names:
        assert np.abs(arrays[name] - mean[name]).max() > 0.1, name
        np.testing.assert_allclose(again[name], arrays[name], rtol=0.1, atol=0.05, err_msg=name)
