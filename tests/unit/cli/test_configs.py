# SPDX-License-Identifier: Apache-2.0
"""`configs` lists the runs in groups, a wrong file suggests one, and a config is shown whole."""

import dataclasses
import re
from pathlib import Path

import pytest

from tests.refusals import refused_by
from tests.unit.test_configs import CONFIGS, FILES, arguments, load
from vit_jax.cli.configs import main
from vit_jax.cli.summary import show
from vit_jax.settings import config_files


def test_files_are_listed_in_groups_with_their_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # they come with the package
    assert main(["configs"]) == 0
    out = capsys.readouterr().out
    groups = re.split(r"^([A-Z][A-Z, -]+).*$", out, flags=re.MULTILINE)
    listed = {
        name.strip(): re.findall(r"^  (\w+)", text, re.MULTILINE)
        for name, text in zip(groups[1::2], groups[2::2], strict=True)
    }
    assert list(listed) == ["PRETRAIN", "DISTIL", "FINE-TUNE", "SMALL, FOR A LAPTOP", "SWEEPS"]
    files = [path.stem for path in CONFIGS.rglob("[!_]*.py")]
    assert sorted(name for group in listed.values() for name in group) == sorted(files)
    assert "deit3_imagenet" in listed["PRETRAIN"]
    assert "cait_imagenet" in listed["DISTIL"]
    assert "finetune_vit" in listed["FINE-TUNE"]
    assert "tenth_digits" in listed["SMALL, FOR A LAPTOP"]
    assert "scaling_digits" in listed["SWEEPS"]
    for path in FILES:
        assert re.search(rf"{path.stem}{':RUN' * bool(arguments(path))} +\S", out), path
    assert out.splitlines()[-1] == f"the files: {CONFIGS}"


def test_the_runs_of_a_docstring_are_those_that_the_file_takes() -> None:
    listed = {file.name: file.runs for file in config_files.read()}
    for path in FILES:
        assert list(listed[path.stem]) == arguments(path), path


@pytest.mark.parametrize(
    "name, found",
    [
        ("cait_m36_imagenet.py:384", "cait_imagenet:m36_384"),
        ("deit_b16_distilled_384_imagenet.py", "deit_distilled_imagenet:b16_384"),
        ("deit_s16_imagenet", "deit_imagenet:s16"),
        ("regnety_4gf_imagenet.py", "'regnet_imagenet:regnety_4gf'?"),
        ("finetune_cifar10.py", "'finetune_bit:cifar10' or 'finetune_vit:cifar10'?"),
        ("vit_mu_digts.py", "'vit_mu_digits' or "),
    ],
)
def test_a_name_is_found_by_its_words_or_suggested(name: str, found: str) -> None:
    if "'" not in found:
        path, run = config_files.find(f"configs/{name}")
        assert f"{path.stem}:{run}" == found
        return
    with refused_by("settings.config_files.find") as refused:
        config_files.find(f"configs/{name}")
    assert name.removesuffix(".py") in str(refused.value)
    assert found in str(refused.value)


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
