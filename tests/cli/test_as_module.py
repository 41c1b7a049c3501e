# SPDX-License-Identifier: Apache-2.0
"""`python -m vit_jax.cli.VERB` is the verb, whose mistakes are one line."""

import runpy
import sys

import pytest

from vit_jax.__main__ import VERBS
from vit_jax.cli import models, prepare, sweep


@pytest.mark.parametrize("verb", [*VERBS, "train"])
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_a_module_of_a_verb_runs_it(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{verb}.py", "--nonsense=1", "--config=no.py"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"vit_jax.cli.{verb}", run_name="__main__")
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")


MISTAKES = {
    "models --patern=vit": "unrecognized arguments: --patern=vit; see python -m vit_jax models",
    "models --debgu": "did you mean --debug?",
    "models a b": "unrecognized arguments: b",
    "prepare": "the following arguments are required: name",
    "prepare digits --data_dir": "--data_dir: expected one argument",
    "sweep": "the following arguments are required: plan|run|status|report",
    "sweep stats DIR": "invalid choice: 'stats'",
    "sweep plan": "the following arguments are required: FILE; see python -m vit_jax sweep plan",
    "sweep run FILE --workers=many": "--workers: invalid int value: 'many'",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    verb, *rest = words.split()
    main = {"models": models, "prepare": prepare, "sweep": sweep}[verb].main
    assert main([f"vit_jax {verb}", *rest]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert MISTAKES[words] in line
