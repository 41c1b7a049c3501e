# SPDX-License-Identifier: Apache-2.0
"""Mistakes on the command line: one line, a suggestion, status 2, before any device work."""

from pathlib import Path

import pytest

from tests.refusals import RANGE, refused_by
from tests.unit.test_configs import load
from vit_jax import config as config_lib
from vit_jax.cli.parsing import flags as cli_flags
from vit_jax.cli.train import main

ROOT = Path(__file__).parents[3]
DIGITS = "--config=configs/vit_mu_digits.py"


KIND = "settings.fields._wrong"
# A value of a field, and what refuses it.
REFUSED = {
    "data.classes=one,two": KIND,
    "data.classes=1.5,2": KIND,
    "data.classes=True,2": KIND,
    "model.image_size=a": KIND,
    "data.mean=a,b": KIND,
    "data.transform.area=a": KIND,
    "optim.milestones=(3,4)": KIND,
    "init.skip=3": KIND,
    "accum_steps=0": RANGE,
    "checkpoint.keep=0": RANGE,
    "checkpoint.keep_best=-1": RANGE,
    "checkpoint.patience=-1": RANGE,
    "faults.max_nonfinite=0": RANGE,
    "faults.spike_sigmas=nan": "settings.fields._check_numbers",
    "faults.hang_seconds=-1": RANGE,
    "checkpoint.metric=test/top1": "checkpoints.config.check_ranking",
    "data.transform.auto_augment=rand-m9-foo1": "data.augment.timm_randaug.read",
    "data.transform.auto_augment=x": "data.augment.parse",
}


@pytest.mark.parametrize("override", REFUSED)
def test_a_value_that_cannot_be_is_named(override: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with refused_by(REFUSED[override], override.partition("=")[0]):
        cli_flags.read_config(["main.py", DIGITS, f"--config.{override}"])


def test_tuples_of_a_config_file_are_checked_too() -> None:
    cfg = load(ROOT / "configs" / "vit_mu_digits.py")
    cfg.data.mean = [0]  # pyright: ignore[reportAttributeAccessIssue]
    config_lib.check(cfg)
    assert cfg.data.mean == (0,)
    cfg.data.mean = ["a"]  # pyright: ignore[reportAttributeAccessIssue]
    with refused_by("settings.fields._wrong", "data.mean"):
        config_lib.check(cfg)


def test_debug_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["main.py", DIGITS, "--debug", "--config.model.patch=3"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_broken_config_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("def get_config():\n    return 1 / 0\n")
    assert main(["main.py", f"--config={broken}"]) == 2
    told = f"error: {broken} cannot be read: ZeroDivisionError: division by zero"
    assert capsys.readouterr().err.strip() == told
