# SPDX-License-Identifier: Apache-2.0
"""Mistakes on the command line: one line, a suggestion, status 2, before any device work."""

from pathlib import Path

import pytest

from tests.unit.test_configs import load
from vit_jax import config as config_lib
from vit_jax.cli.parsing import flags as cli_flags
from vit_jax.cli.train import main
from vit_jax.errors import UserError

ROOT = Path(__file__).parents[3]
DIGITS = "--config=configs/vit_mu_digits.py"


# Config errors word for word; what is said after "..." is not compared.
SAID = {
    "data.classes=one,two": "data.classes=('one,two',) must be whole numbers, such as 1,3,7",
    "data.classes=1.5,2": "data.classes=(1.5, 2) must be whole numbers, such as 1,3,7",
    "data.classes=True,2": "data.classes=(True, 2) must be whole numbers, such as 1,3,7",
    "model.image_size=a": "model.image_size=('a',) must be whole numbers, such as 224,224",
    "data.mean=a,b": "data.mean=('a,b',) must be numbers, such as 0.5",
    "data.transform.area=a": "data.transform.area=('a',) must be numbers, such as 0.5,1.0",
    "optim.milestones=(3,4)": (
        """optim.milestones=(3, 4) must be strings, such as "('30%','60%','90%')\""""
    ),
    "init.skip=3": """init.skip=(3,) must be strings, such as "('^head',)\"""",
    "optim.milestones=30%,10%": (
        """--config.optim.milestones=30%,10% must be a tuple, such as "('30%','60%','90%')\""""
    ),
    "data.classes=1,%": (
        """--config.data.classes=1,% must be a tuple, such as 1,2 or "('a','b')\""""
    ),
    "data.mix.per_example=maybe": "--config.data.mix.per_example=maybe must be true or false",
    "optim.lr=x": "--config.optim.lr=x must be a number",
    "seed=1.5": "--config.seed=1.5 must be a whole number",
    "accum_steps=0": "accum_steps=0 must be at least 1",
    "checkpoint.keep=0": "checkpoint.keep=0 must be at least 1",
    "checkpoint.keep_best=-1": "checkpoint.keep_best=-1 must be at least 0",
    "checkpoint.patience=-1": "checkpoint.patience=-1 must be at least 0",
    "faults.max_nonfinite=0": "faults.max_nonfinite=0 must be at least 1",
    "faults.spike_sigmas=nan": "faults.spike_sigmas=nan must be finite",
    "faults.hang_seconds=-1": "faults.hang_seconds=-1.0 must be at least 0; 0 turns it off",
    "checkpoint.metric=test/top1": (
        "checkpoint.metric='test/top1' is measured only last; set evals.test.every, or "
        "choose val/loss, val/top1, val/top5"
    ),
    "data.transform.auto_augment=rand-m9-foo1": (
        "data.transform.auto_augment='rand-m9-foo1': no key 'foo1'; keys: m, n, mstd, mmax, inc, p"
    ),
    "data.transform.auto_augment=x": "data.transform.auto_augment='x' is no policy; write ...",
}


@pytest.mark.parametrize("override", SAID)
def test_a_value_that_cannot_be_is_named(override: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    argv = ["main.py", DIGITS, f"--config.{override}"]
    with pytest.raises(UserError) as error:
        cli_flags.read_config(argv)
    start, more, _ = SAID[override].partition("...")
    assert str(error.value).startswith(start)
    assert more or str(error.value) == start


def test_tuples_of_a_config_file_are_checked_too() -> None:
    cfg = load(ROOT / "configs" / "vit_mu_digits.py")
    cfg.data.mean = [0]  # pyright: ignore[reportAttributeAccessIssue]
    config_lib.check(cfg)
    assert cfg.data.mean == (0,)
    cfg.data.mean = ["a"]  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(UserError, match=r"^data.mean=\['a'\] \(list\) must be numbers, such as"):
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
