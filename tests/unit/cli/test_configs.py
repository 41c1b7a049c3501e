# SPDX-License-Identifier: Apache-2.0
"""`configs` lists the runs in groups, a wrong file suggests one, and a config is shown whole."""

import dataclasses
import re
from pathlib import Path

import pytest

from tests.unit.test_configs import CONFIGS, FILES, arguments, load
from vit_jax.cli import config_files
from vit_jax.cli.configs import main
from vit_jax.cli.summary import show


def test_files_are_listed_in_groups_with_their_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(CONFIGS.parent)
    assert main(["configs"]) == 0
    out = capsys.readouterr().out
    groups = re.split(r"^([A-Z][A-Z, -]+).*$", out, flags=re.MULTILINE)
    listed = {
        name.strip(): re.findall(r"^  (configs/[\w/]+\.py)", text, re.MULTILINE)
        for name, text in zip(groups[1::2], groups[2::2], strict=True)
    }
    assert list(listed) == ["PRETRAIN", "DISTIL", "FINE-TUNE", "SMALL, FOR A LAPTOP", "SWEEPS"]
    files = {f"configs/{path.relative_to(CONFIGS)}" for path in CONFIGS.rglob("[!_]*.py")}
    assert sorted(name for group in listed.values() for name in group) == sorted(files)
    assert "configs/deit3_imagenet.py" in listed["PRETRAIN"]
    assert "configs/cait_imagenet.py" in listed["DISTIL"]
    assert "configs/finetune_vit.py" in listed["FINE-TUNE"]
    assert "configs/tenth_digits.py" in listed["SMALL, FOR A LAPTOP"]
    for path in FILES:
        assert re.search(rf"{path.stem}\.py{':RUN' * bool(arguments(path))} +\S", out), path


def test_the_runs_of_a_docstring_are_those_that_the_file_takes() -> None:
    listed = {file.path: file.runs for file in config_files.read(CONFIGS)}
    for path in FILES:
        assert list(listed[str(path)]) == arguments(path), path


def test_elsewhere_there_is_nothing_to_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["configs"]) == 2
    assert capsys.readouterr().err.startswith("error: no folder configs here")


@pytest.mark.parametrize(
    "old, new",
    [
        ("cait_m36_imagenet.py:384", "'configs/cait_imagenet.py:m36_384'?"),
        ("deit_b16_distilled_384_imagenet.py", "'configs/deit_distilled_imagenet.py:b16_384'?"),
        ("regnety_4gf_imagenet.py", "'configs/regnet_imagenet.py:regnety_4gf'?"),
        ("finetune_cifar10.py", "bit.py:cifar10' or 'configs/finetune_vit.py:cifar10'?"),
        ("vit_mu_digts.py", "'configs/vit_mu_digits.py' or "),
    ],
)
def test_a_name_that_is_gone_suggests_what_it_has_become(
    old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CONFIGS.parent)
    told = str(config_files.unknown(f"configs/{old}"))
    assert told.startswith(f"unknown config file 'configs/{old.split(':')[0]}'; ")
    assert new in told


def test_a_config_is_shown_by_what_is_not_at_its_default() -> None:
    cfg = load(CONFIGS / "vit_mu_digits.py")
    lines = show(cfg)
    assert len(lines) < 40
    assert max(map(len, lines)) <= 100
    text = "\n".join(lines)
    assert re.search(r"^run +duration=80 epochs$", text, re.MULTILINE)
    assert re.search(r"^model +ViTConfig num_classes=10 image_size=32,32 ", text, re.MULTILINE)
    assert re.search(r"^evals\.test +split=test report=true$", text, re.MULTILINE)
    assert "seed" not in text
    whole = "\n".join(show(cfg, everything=True))
    for node in (cfg, cfg.model, cfg.data, cfg.optim, cfg.faults, cfg.mesh):
        for field in dataclasses.fields(node):
            assert re.search(rf"\b{field.name}\b", whole), field.name
