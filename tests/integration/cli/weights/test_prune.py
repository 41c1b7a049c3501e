# SPDX-License-Identifier: Apache-2.0
"""`prune` from the command line: a run that other commands and other runs begin with."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.photos import write_folder
from tests.refusals import refused_by
from tests.unit.models.tiny import TINY
from tests.unit.weights.runs import make_state
from vit_jax import trees, weights
from vit_jax.__main__ import main as verb_main
from vit_jax.checkpoints import CheckpointConfig
from vit_jax.checkpoints.checkpointer import Checkpointer
from vit_jax.cli.parsing import flags
from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config
from vit_jax.data import DataConfig
from vit_jax.inference import pruning as scoring
from vit_jax.inference import trained
from vit_jax.models import pruning
from vit_jax.objectives import MaeConfig, ObjectiveConfig, SupervisedConfig

MODEL = dataclasses.replace(TINY["deit"], num_heads=4, mlp_dim=32)
CLASSES = ("china", "flower", "sky")


def save(folder: Path, photos: Path, objective: ObjectiveConfig | None = None) -> Any:
    """Write a run of random weights, with a moving average, on the photographs."""
    cfg = Config(
        model=MODEL,
        data=DataConfig(name=f"folder:{photos}", batch_size=4),
        objective=objective or SupervisedConfig(),
        ema_decay=0.9,
    )
    state = make_state(MODEL, 7, with_ema=True)
    checkpoints = Checkpointer(folder / "checkpoints", CheckpointConfig())
    metadata = {"config": config_json.to_json(cfg), "class_names": CLASSES}
    checkpoints.save(7, state, metadata=metadata)
    checkpoints.wait()
    return state


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("prune")
    write_folder(root / "photos", {"train": 4}, CLASSES)
    save(root / "run", root / "photos")
    return root


def prune(place: Path, *args: str, run: str = "run") -> int:
    return verb_main(["vit_jax", "prune", f"--from={place / run}", *args])


def params_of(run: Path, model: Any, **given: Any) -> dict[str, np.ndarray]:
    return dict(trees.named_leaves(weights.load(f"ckpt:{run}", model, **given)))


def test_the_result_is_a_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = place / "small"
    sizes = ("--heads=0.25", "--mlp=0.5", "--examples=10", "--batch_size=4", "--noema")
    assert prune(place, *sizes, f"--to={to}") == 0
    out = capsys.readouterr().out
    assert "by 10 of 12 images of" in out
    assert [
        line.split()[-2:] for line in out.splitlines() if line.startswith(("heads", "MLP"))
    ] == [
        ["4", "3"],
        ["32", "16"],
    ]
    found = trained.load(str(to))
    small = pruning.pruned(MODEL, pruning.Shares(0.25, 0.5))
    assert (found.model, found.step, found.class_names) == (small, 7, CLASSES)
    whole = trained.load(f"{place}/run", ema=False)
    scores, _ = scoring.scores(whole, examples=10, seed=0, batch_size=3)
    kept = pruning.keep(scores, MODEL, small)
    expected = dict(trees.named_leaves(pruning.cut(whole.variables["params"], kept, MODEL)))
    for name, value in trees.named_leaves(dict(found.variables["params"])):
        np.testing.assert_array_equal(value, expected[name], err_msg=name)
    # The average is the same network, and the config trains on from the run.
    assert params_of(to, small).keys() == params_of(to, small, ema=True).keys()
    for name, value in params_of(to, small, ema=True).items():
        np.testing.assert_array_equal(value, params_of(to, small)[name], err_msg=name)
    cfg = flags.read_config(["x", f"--config={to}/config.json", "--config.optim.lr=0.5"])
    assert (cfg.model, cfg.init.weights, cfg.optim.lr) == (small, f"ckpt:{to}", 0.5)
    assert json.loads((to / "classes.json").read_text()) == list(CLASSES)


def test_pruning_nothing_is_the_identity(place: Path) -> None:
    assert prune(place, f"--to={place}/same", "--noema") == 0
    found = trained.load(f"{place}/same")
    assert found.model == MODEL
    whole = params_of(place / "run", MODEL)
    for name, value in trees.named_leaves(dict(found.variables)):
        np.testing.assert_array_equal(value, whole[name], err_msg=name)


def test_a_mistake_is_one_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*args: str, run: str = "run") -> str:
        assert prune(place, *args, run=run) == 2
        return capsys.readouterr().err

    assert "where to? add --to=DIR" in told("--mlp=0.5")
    assert "holds files already; choose another" in told("--mlp=0.5", f"--to={place}/photos")
    assert "--heads=0.1 removes 0 of 4 heads" in told("--heads=0.1", f"--to={place}/x")
    assert "--mlp=1 must" in told("--mlp=1", f"--to={place}/x")
    save(place / "mae", place / "photos", MaeConfig())
    assert "learns by MaeConfig, which needs more" in told(
        "--mlp=0.5", f"--to={place}/x", run="mae"
    )
    file = ["vit_jax", "prune", "--from=timm:w.safetensors", "--model=vit_ti16", f"--to={place}/x"]
    assert verb_main(file) == 2
    assert "is no run, whose loss and images say what matters" in capsys.readouterr().err
    assert not (place / "x").exists()


def test_a_config_that_is_no_runs_is_named(place: Path, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text("[1]")
    with refused_by("config.saved.from_json") as caught:
        flags.read_config(["x", f"--config={tmp_path}/c.json"])
    assert "c.json" in str(caught.value)
