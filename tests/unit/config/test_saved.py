# SPDX-License-Identifier: Apache-2.0
"""A run's config comes back from its JSON, whatever is in it."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import vit_jax
from tests.unit.test_configs import FILES, load
from vit_jax import data
from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config, FaultsConfig
from vit_jax.data import Crop, CropRule
from vit_jax.data.config import OLD_READING
from vit_jax.errors import UserError
from vit_jax.objectives import DistillConfig
from vit_jax.settings.fields import is_free


def test_every_config_comes_back(subtests: pytest.Subtests) -> None:
    for path in FILES:
        with subtests.test(path.stem):
            cfg = load(path)
            saved = json.loads(json.dumps(config_json.to_json(cfg)))
            back = config_json.from_json(copy.deepcopy(saved))
            assert back == cfg
            assert type(back.model) is type(cfg.model)
            if cfg.evals:
                name = next(iter(cfg.evals))
                assert isinstance(back.evals[name].transform.crop, Crop)
            assert type(back.objective) is type(cfg.objective)
            if isinstance(cfg.objective, DistillConfig):
                teacher = cfg.objective.distill.teacher
                assert type(back.objective.distill.teacher) is type(teacher)


def test_what_another_version_wrote() -> None:
    cfg = load(next(path for path in FILES if path.stem == "vit_mu_digits"))
    saved = config_json.to_json(cfg)
    del saved["init"], saved["data"]["mix"]
    saved["data"]["mixup_alpha"] = 0.3
    back = config_json.from_json(saved)
    assert back.data.mix.mixup_alpha == 0.3
    assert back.init == cfg.init
    saved["optim"]["momentun"] = 1
    with pytest.raises(UserError, match=r"optim\.momentun that this version does not have"):
        config_json.from_json(saved)


def test_a_run_of_before_there_were_crop_rules_crops_as_it_did() -> None:
    cfg = load(next(path for path in FILES if path.stem == "deit_imagenet"))
    saved = config_json.to_json(cfg)
    for holder in (saved["data"], *saved["evals"].values()):
        del holder["transform"]["crop_rule"]
    back = config_json.from_json(copy.deepcopy(saved))
    assert cfg.evals["val"].transform.crop_rule is CropRule.TORCH
    assert back.evals["val"].transform.crop_rule is CropRule.TF
    assert config_json.changes(saved, config_json.to_json(cfg)) == []  # and it continues


def test_a_run_of_before_there_were_schedules_of_self_distillation_goes_on() -> None:
    cfg = load(next(path for path in FILES if path.stem == "vit_mu_digits"))
    saved = config_json.to_json(cfg)
    del saved["ema_decay_end"]
    for name in ("weight_decay_end", "hold", "hold_for"):
        del saved["optim"][name]
    assert config_json.from_json(copy.deepcopy(saved)) == cfg
    assert config_json.changes(saved, config_json.to_json(cfg)) == []
    cfg.ema_decay_end, cfg.optim.hold, cfg.optim.hold_for = 1.0, "^head/", "1 epoch"
    now = config_json.to_json(cfg)
    assert config_json.changes(saved, now) == [
        "ema_decay_end: 0.0 -> 1.0",
        "optim.hold: '' -> '^head/'",
        "optim.hold_for: '' -> '1 epoch'",
    ]
    assert config_json.from_json(now) == cfg


def test_what_changes_no_number_may_differ() -> None:
    cfg = load(next(path for path in FILES if path.stem == "vit_mu_digits"))
    saved = config_json.to_json(cfg)
    cfg.data.max_broken, cfg.data.num_workers, cfg.data.prefetch = 9, 3, 5
    cfg.log.every, cfg.checkpoint.keep, cfg.mesh.fsdp = "7 steps", 9, 2
    cfg.model.scan_unroll = 2
    del cfg.evals["val"]
    assert config_json.changes(saved, config_json.to_json(cfg)) == []
    cfg.data.repeats = 2
    assert config_json.changes(saved, config_json.to_json(cfg)) == ["data.repeats: 1 -> 2"]


def test_faults_may_differ_where_they_change_no_number() -> None:
    cfg = load(next(path for path in FILES if path.stem == "vit_mu_digits"))
    saved = config_json.to_json(cfg)
    cfg.faults = FaultsConfig(max_nonfinite=5, spike_sigmas=3.0, hang_seconds=0.0)
    assert config_json.changes(saved, config_json.to_json(cfg)) == []
    cfg.faults.skip_spikes = True
    assert config_json.changes(saved, config_json.to_json(cfg)) == [
        "faults.skip_spikes: False -> True",
        "faults.spike_sigmas: 6.0 -> 3.0",
    ]


def test_the_free_fields_of_a_config() -> None:
    """They change rounding at most, or when the run ends: one more must be one of these kinds."""
    cfg, free = Config(objective=DistillConfig()), set()

    def walk(node: Any, path: str) -> None:
        for field in dataclasses.fields(node):
            value, name = getattr(node, field.name), f"{path}{field.name}"
            if is_free(cfg, name):
                free.add(name)
            elif dataclasses.is_dataclass(value):
                walk(value, f"{name}.")

    walk(cfg, "")
    teacher = "objective.distill"
    assert free == {
        *(
            "log",
            "checkpoint",
            "mesh.data",
            "mesh.fsdp",
            "mesh.tensor",
            "evals",
            f"{teacher}.weights",
        ),
        *("model.scan_unroll", "model.remat", "model.attention"),
        *(f"{teacher}.teacher.scan_unroll", f"{teacher}.teacher.remat"),
        *(
            "data.data_dir",
            "data.bands_shown",
            "data.num_threads",
            "data.num_workers",
            "data.prefetch",
        ),
        *(
            "data.cache",
            "data.max_broken",
            "data.strict",
            "faults.max_nonfinite",
            "faults.hang_seconds",
        ),
    }


def test_a_run_that_knew_no_rules_of_reading_keeps_those_of_its_time() -> None:
    """For training, evaluation and predictions alike: it drops alpha, and turns nothing."""
    saved = config_json.to_json(Config())
    for name in ("background", "upright"):
        del saved["data"][name]
    read = config_json.from_json(saved)
    assert data.reading(read.data) == OLD_READING
    kept, told = config_json.continued(Config(), saved)
    assert data.reading(kept.data) == OLD_READING
    assert {"data.background=drop", "data.upright=False"} <= set(told)
    assert not config_json.changes(saved, config_json.to_json(kept))
    assert config_json.continued(Config(), {}) == (Config(), [])  # a run that begins now
    assert data.reading(config_json.from_json(config_json.to_json(Config())).data) == data.AS_SHOWN


def test_runs_of_before_there_were_rules_keep_theirs() -> None:
    cfg = vit_jax.get_config("vit_mu_digits")
    cfg.data.name = "folder:/data/x"
    cfg.evals["val"].dataset = "csv:/data/y.csv?split_seed=3"
    saved = config_json.to_json(cfg)
    assert config_json.from_json(saved) == cfg
    assert config_json.continued(cfg, saved) == (cfg, [])
    del saved["data"]["strict"]  # as an earlier version wrote it
    old = config_json.from_json(saved)
    assert old.data.name == "folder:/data/x?rules=1"
    assert old.evals["val"].dataset == "csv:/data/y.csv?split_seed=3&rules=1"
    goes_on, said = config_json.continued(cfg, saved)
    assert goes_on == old
    assert said == ["data.name=folder:/data/x?rules=1"]
    # Once continued, by the same command again.
    assert config_json.continued(cfg, config_json.to_json(goes_on)) == (old, said)
    assert not config_json.changes(saved, config_json.to_json(goes_on))
    assert not config_json.changes(config_json.to_json(goes_on), config_json.to_json(old))
    # A dataset of TFDS has none.
    assert config_json.upgraded({"data": {"name": "digits"}})["data"]["name"] == "digits"


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text("[1]")
    with pytest.raises(UserError, match=r"c\.json is no config\.json of a run: what was saved is"):
        config_json.load(tmp_path / "c.json", None)
    file = tmp_path / "mine.py"
    file.write_text("def get_config():\n    return 3\n")
    with pytest.raises(UserError, match=r"mine\.py takes no argument; drop ':384'$"):
        config_json.load(file, "384")
    with pytest.raises(UserError, match=r"mine\.py: get_config\(\) must return a vit_jax\.config"):
        config_json.load(file, None)


@pytest.mark.parametrize(
    "line", ["config.optim.lrr = 1", "config.optim = OptimConfig(lrr=1)", "config.optim.lrr"]
)
def test_a_field_that_a_config_file_mistypes_has_a_suggestion(line: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    imports = "from vit_jax.config import Config\nfrom vit_jax.optim import OptimConfig\n"
    file.write_text(f"{imports}\ndef get_config():\n    config = Config()\n    {line}\n")
    with pytest.raises(
        UserError, match=r"mine.py cannot be read: .*'lrr'; did you mean optim.lr\?"
    ):
        config_json.load(file, None)
