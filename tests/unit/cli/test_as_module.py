# SPDX-License-Identifier: Apache-2.0
"""`python -m vit_jax.cli.VERB` is the verb, whose mistakes are one line."""

import runpy
import sys

import pytest

from vit_jax import __version__
from vit_jax.__main__ import VERBS, module
from vit_jax.__main__ import main as vit_jax
from vit_jax.cli import models, prepare, sweep


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_a_module_of_a_verb_runs_it(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{verb}.py", "--nonsense=1", "--config=no.py"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module(verb), run_name="__main__")
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")


MISTAKES = {
    "models --patern=vit": "unknown flag '--patern'; valid: --debug.",
    "models --debgu": "did you mean '--debug'?",
    "models a b": "unexpected argument 'b'; flags are written --name=value",
    "prepare": "which dataset? name one of TFDS, such as cifar10",
    "prepare digits --data_dir": "Missing value for flag --data_dir",
    "sweep": "sweep what? add one of: plan, run, status, report",
    "sweep stats DIR": "unknown sweep verb 'stats'; did you mean 'status'?",
    "sweep plan": "which sweep? name a FILE: one of configs/sweeps, or one of your own",
    "sweep plan FILE --config.seed=1 --foo": "unknown flag '--foo'",
    "sweep run FILE --workers=many": "--workers=many must be a whole number",
    "sweep run FILE --workers=0": "--workers=0 must be at least 1",
    "sweep run FILE --out=--index": "--out=--index looks like a flag; name a file or a folder",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    verb, *rest = words.split()
    main = {"models": models, "prepare": prepare, "sweep": sweep}[verb].main
    assert main([f"vit_jax {verb}", *rest]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert MISTAKES[words] in line


@pytest.mark.parametrize("word", ["--version", "-V", "version"])
def test_the_version(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert vit_jax(["vit_jax", word]) == 0
    assert capsys.readouterr().out == f"vitjax {__version__}\n"
