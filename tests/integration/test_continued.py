# SPDX-License-Identifier: Apache-2.0
"""Pretraining goes on from weights by what suits them: chosen by name, by images and by size."""

import json
from pathlib import Path

import pytest

from benchmarks import glyphs
from tests.refusals import refused_by
from tests.unit.train import teachers
from vit_jax import models, objectives
from vit_jax.cli.parsing import flags, options
from vit_jax.cli.train import Train
from vit_jax.config import saved
from vit_jax.config.tree import Config
from vit_jax.models.layers.pool import Pool
from vit_jax.objectives import DinoConfig, IJepaConfig, MaeConfig
from vit_jax.recipes import continued, unlabelled
from vit_jax.weights.config import CHECKPOINT

MODEL = models.variant("vit_mu8", image_size=(16, 16), dim=16, depth=4, num_heads=2, mlp_dim=32)


def _read(*words: str) -> Config:
    return options.read_config(Train, ["train", "--config=unlabelled_folder", *words])[1]


def test_names_tell_how_a_network_was_trained() -> None:
    for name, kind in {
        "facebook/dinov2-small": "dino",
        "timm/vit_small_patch16_dinov3.lvd1689m": "dino",
        "facebook/dino-vits16": "dino",
        "facebook/vit-mae-base": "mae",
        "mae_pretrain_vit_base": "mae",
        "facebook/ijepa_vith14_1k": "ijepa",
        "me/lejepa-vit-s": "lejepa",
        "google/siglip2-base-patch16-224": "",
        "timm/vit_base_patch16_224.augreg_in21k": "",
        "someone/imaemodel": "",
    }.items():
        assert continued.kind_of(name) == kind, name


def test_more_images_train_more_of_a_network_for_longer() -> None:
    plans = [continued.plan(count, MODEL, "dino") for count in (60, 900, 9_000, 10**6)]
    assert [each.frozen for each in plans] == [3, 3, 2, 0]
    assert [each.batch for each in plans] == [8, 64, 128, 128]
    assert [each.steps for each in plans] == [500, 500, 1406, 20_000]
    wide, narrow = (
        continued.plan(9_000, models.with_fields(MODEL, {"dim": dim}), "mae").lr
        for dim in (1536, 384)
    )
    assert narrow == pytest.approx(3e-4) == 2 * wide
    assert continued.plan(9_000, MODEL, "dino").lr < continued.plan(9_000, MODEL, "mae").lr


def test_the_command_chooses_and_says_what(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "letters"
    glyphs.main([str(place), "--share=0.01"])
    images = f"--config.data.name=folder:{place / 'unlabelled'}"  # 200
    # Without weights and without a name all is as before; with a name the network is the recipe's.
    assert _read(images).model == unlabelled.images("mae").model
    named = flags.read_config(
        ["train", "--config=unlabelled_folder:dino_small", images, "--config.init.weights=timm:x"]
    )
    assert named.duration == "auto"
    capsys.readouterr()
    # A file of timm's by its name, which is all that is asked of it here.
    cfg = _read(images, "--config.init.weights=timm:vit_small_patch14_dinov2.lvd142m.safetensors")
    told = capsys.readouterr().out
    assert isinstance(cfg.objective, DinoConfig)
    assert cfg.objective.patch_weight == 1
    assert (cfg.model.image_size, cfg.model.num_classes) == ((224, 224), 0)
    assert cfg.objective.small_size == (112, 112)
    assert cfg.data.mean == pytest.approx((0.485, 0.456, 0.406), abs=1e-3)
    assert "by DINO and iBOT: " in told
    assert "the first 9 of 12 blocks stay as they are" in told
    frozen = cfg.optim.freeze
    assert "blocks/(0|1|2|3|4|5|6|7|8)/" in frozen
    assert "only what is new learns: dino_head, ibot_head, mask_token" in told
    # What the command line sets stands.
    words = ["--config.optim.lr=0.5", "--config.optim.freeze=", "--config.duration=7 steps"]
    weights = "--config.init.weights=timm:vit_base_patch16_224.mae"
    cfg = _read(images, weights, *words)
    assert isinstance(cfg.objective, MaeConfig)
    assert (cfg.optim.lr, cfg.optim.freeze, cfg.duration) == (0.5, "", "7 steps")
    assert cfg.model.pool is Pool.GAP
    cfg = _read(images, "--config.init.weights=timm:vit_small_patch16_224.augreg_in21k")
    assert isinstance(cfg.objective, DinoConfig)
    assert cfg.objective.patch_weight == 0
    # A file whose name says nothing.
    with refused_by("recipes.continued._origin", "init.weights"):
        _read(images, "--config.init.weights=timm:mine.safetensors")
    # A run of one's own goes on by its own objective; of labels, by DINO.
    ours = models.with_fields(MODEL, {"num_classes": 10})
    ref = teachers.save(tmp_path / "supervised", ours)
    assert ref.startswith(CHECKPOINT)
    cfg = _read(images, f"--config.init.weights={ref}")
    assert isinstance(cfg.objective, DinoConfig)
    assert cfg.init.skip == ("^head",)  # which the network that learns has not
    assert "labels or captions" in capsys.readouterr().out
    # A run that is continued keeps what it began with, whatever lies there now.
    workdir = tmp_path / "run"
    workdir.mkdir()
    cfg.optim.lr = 0.25
    tree = saved.to_json(cfg)

    (workdir / "config.json").write_text(json.dumps(tree))
    (place / "unlabelled" / "A" / "0.png").unlink()
    again = _read(images, f"--config.init.weights={ref}", f"--workdir={workdir}")
    assert again == cfg
    other = _read(
        images, "--config.init.weights=timm:vit_base_patch16_224.mae", f"--workdir={workdir}"
    )
    assert isinstance(other.objective, MaeConfig)


def test_every_kind_has_a_rate_and_an_objective() -> None:
    own = {"dino": DinoConfig, "mae": MaeConfig, "ijepa": IJepaConfig}
    for kind in {kind for _, kind in continued._KINDS}:
        assert kind in continued._RATES
        made = unlabelled.images(kind).objective
        assert type(made).__name__ in objectives.OBJECTIVES
        assert isinstance(made, own.get(kind, object))
