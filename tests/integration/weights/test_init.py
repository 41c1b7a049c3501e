# SPDX-License-Identifier: Apache-2.0
"""A run starts from the weights that `init` names, once, and on any mesh alike."""

import copy
import dataclasses
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import vit_jax
from configs.vit_mu_digits import get_config
from tests.photos import write_folder
from tests.refusals import refused_by
from tests.unit.models.tiny import TINY
from tests.unit.weights.test_init import EIGHT, small
from vit_jax import config as config_lib
from vit_jax import models, trees, weights
from vit_jax.cli.parsing import flags as cli_flags
from vit_jax.cli.train import main as train_main
from vit_jax.config.tree import Config
from vit_jax.data import DataConfig
from vit_jax.devices import sharding
from vit_jax.errors import UserError, of_command_line
from vit_jax.train import build as build_lib
from vit_jax.train.initial_state import initial_state
from vit_jax.train.loop import fit
from vit_jax.train.report.writers import read_jsonl
from vit_jax.weights import export
from vit_jax.weights.config import InitConfig


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps on the digits."""
    workdir = tmp_path_factory.mktemp("source") / "run"
    fit(small(get_config()), workdir)
    return workdir


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    write_folder(root, {"train": 16}, ("china", "flower", "sky"))
    return root


def fine_tuning(source: Path, photos: Path) -> Config:
    """Three classes instead of ten, images of 48 x 40 pixels instead of 32 x 32."""
    cfg = small(get_config())
    cfg.data = DataConfig(
        name=f"folder:{photos}", train_split="train", batch_size=16, mean=(0.5,), std=(0.5,)
    )
    cfg.model = dataclasses.replace(cfg.model, num_classes=3, image_size=(48, 40))
    cfg.init = InitConfig(weights=f"ckpt:{source}", skip=("^head/",))
    return cfg


def plain(tree: Any) -> dict[str, np.ndarray]:
    leaves = [(name, leaf) for name, leaf in trees.named_leaves(tree) if name != "rng"]
    return {name: np.asarray(leaf) for name, leaf in leaves}


def start(cfg: Config) -> tuple[Any, str]:
    config_lib.check(cfg)
    mesh = sharding.make_mesh(cfg.mesh)
    with jax.set_mesh(mesh):
        parts = build_lib.build(cfg, 48)
        if not cfg.init.weights:
            return build_lib.init_state(cfg, parts, mesh), ""
        return initial_state(cfg, parts, mesh)


def test_the_state_of_step_0(source: Path, photos: Path) -> None:
    cfg = fine_tuning(source, photos)
    cfg.mesh = EIGHT
    state, told = start(cfg)
    scratch = copy.deepcopy(cfg)
    scratch.init = InitConfig()
    fresh, nothing = start(scratch)
    loaded = weights.read(cfg.init.weights, cfg.model, skip=cfg.init.skip)
    assert loaded["params/pos_embed"].shape == (1, 6 * 5, 16)
    found, expected = plain(state), plain(fresh)
    for name, value in found.items():
        inner = re.sub(r"^ema/", "", name)
        np.testing.assert_array_equal(value, loaded.get(inner, expected[name]), err_msg=name)
    changed = [n for n in loaded if not np.array_equal(loaded[n], expected[n])]
    assert {"params/pos_embed", "params/blocks/attn/qkv/kernel", "params/norm/bias"} <= {*changed}
    assert "head/kernel" not in "".join(loaded)
    np.testing.assert_array_equal(found["ema/params/pos_embed"], found["params/pos_embed"])
    assert nothing == ""
    assert told == (
        f"starting from 17 arrays of ckpt:{source}; started anew: params/head/bias, "
        "params/head/kernel"
    )
    # Every leaf lies where it would have lain, and is a buffer of its own.
    places = [[leaf.sharding for leaf in jax.tree.leaves(tree)] for tree in (state, fresh)]
    assert places[0] == places[1]
    state.params["pos_embed"].delete()
    assert not state.ema["params"]["pos_embed"].is_deleted()


def test_weights_of_images_normalised_otherwise_are_told(
    source: Path, photos: Path, tmp_path: Path
) -> None:
    cfg = fine_tuning(source, photos)
    cfg.data.mean, cfg.data.std = (0.5,), (0.25,)
    told = start(cfg)[1].splitlines()[1]
    assert told == (
        f"warning: ckpt:{source} is of images normalised otherwise, by that run; "
        "set data.mean=0.5 and data.std=0.5"
    )
    cfg.data.std = (0.5,)
    assert "warning" not in start(cfg)[1]
    # A name that timm publishes: ImageNet's mean; another name is a guess, and says nothing.
    for name, warned in (("deit_tiny_patch16_224.fb_in1k", True), ("mine", False)):
        file = tmp_path / f"{name}.safetensors"
        model = vit_jax.create_model("deit_ti16", depth=1, num_classes=3, image_size=48)
        model.save(file)
        cfg.model, cfg.init.weights = model.config, f"timm:{file}"
        cfg.init.skip = ()
        told = start(cfg)[1]
        assert ("set data.mean=0.485,0.456,0.406 and data.std=0.229,0.224,0.225" in told) == warned


def test_the_moving_average_of_the_other_run(source: Path, photos: Path) -> None:
    cfg = fine_tuning(source, photos)
    cfg.init.ema = True
    average = weights.read(cfg.init.weights, cfg.model, skip=cfg.init.skip, ema=True)
    last = weights.read(cfg.init.weights, cfg.model, skip=cfg.init.skip)
    state, _ = start(cfg)
    name = "params/blocks/mlp/fc1/kernel"
    np.testing.assert_array_equal(plain(state)[name], average[name])
    assert not np.array_equal(average[name], last[name])


def test_fine_tuning_is_the_same_on_any_mesh_and_reads_once(
    source: Path, photos: Path, tmp_path: Path
) -> None:
    cfg = fine_tuning(source, photos)
    other = copy.deepcopy(cfg)
    other.mesh = EIGHT
    gone = tmp_path / "gone"
    shutil.copytree(source, gone)
    other.init.weights = f"ckpt:{gone}"
    losses = {}
    for name, run in {"one": cfg, "eight": other}.items():
        assert fit(run, tmp_path / name).step == 2
        rows = read_jsonl(tmp_path / name / "metrics.jsonl")
        losses[name] = [row["train/loss"] for row in rows if "train/loss" in row]
    assert losses["eight"] == pytest.approx(losses["one"], abs=1e-5)
    shutil.rmtree(gone)
    assert fit(other, tmp_path / "eight").metrics == {}  # finished
    other.duration = "3 steps"
    assert fit(other, tmp_path / "eight", allow_config_change=True).step == 3
    # Another start would be another run.
    cfg.init.skip = ("^head/", "pos_embed")
    with pytest.raises(UserError, match=r"another config \(init.skip: "):
        fit(cfg, tmp_path / "one")
    with refused_by("checkpoints.reader._checkpoints", "init.weights") as caught:
        fit(other, tmp_path / "new")
    assert str(gone) in str(caught.value)
    assert not (tmp_path / "new").exists()


@pytest.fixture
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])


@pytest.mark.usefixtures("at_root")
def test_the_hint_for_another_head_can_be_pasted(source: Path, photos: Path) -> None:
    args = [
        "main.py",
        "--config=configs/vit_mu_digits.py",
        f"--config.init.weights=ckpt:{source}",
        "--config.model.num_classes=3",
        "--config.model.dim=16",
        "--config.model.depth=2",
        "--config.model.num_heads=2",
        "--config.model.mlp_dim=32",
        "--config.model.pos_embed=learned",
        "--config.model.scan_unroll=1",
    ]

    def cfg(*more: str) -> Config:
        argv = [*args, *more]
        return cli_flags.read_config(argv)

    with of_command_line(), refused_by("weights.apply._check_keys", "init.weights") as caught:
        start(cfg())
    hint = re.search(r"--config\.init\.skip=\S+", str(caught.value))
    assert hint is not None
    pasted = shlex.split(hint[0])
    assert pasted == ["--config.init.skip=('^head',)"]
    _, told = start(cfg(*pasted))
    assert told.endswith("started anew: params/head/bias, params/head/kernel")


@pytest.mark.usefixtures("at_root")
def test_a_dry_run_looks_for_the_weights(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--config=configs/vit_mu_digits.py", "--config.init.weights=timm:no.safetensors"]
    assert train_main(["main.py", "--dry_run", *args]) == 2
    assert "no.safetensors: no such file" in capsys.readouterr().err


@pytest.mark.usefixtures("at_root")
def test_a_dry_run_compares_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cfg = TINY["swin"]
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), models.abstract(cfg))
    export.save(tmp_path / "swin.safetensors", weights.to_timm(params, cfg))
    args = ["--config=configs/vit_mu_digits.py", f"--config.init.weights=timm:{tmp_path}/swin"]
    args[1] += ".safetensors"
    assert train_main(["main.py", "--dry_run", *args]) == 2
    assert "swin.safetensors lacks blocks.0.attn.p" in capsys.readouterr().err
