# SPDX-License-Identifier: Apache-2.0
"""Long work is announced, programs that compile among it by jax's own events; short work is not."""

import re
import threading
import time

import jax
import jax.numpy as jnp
import pytest

from vit_jax.process import waiting


def _compile() -> None:
    """Compile a program that no cache has."""
    factor = time.time()
    jax.jit(lambda x: jnp.sin(x) * factor)(1.0)
    for thread in threading.enumerate():
        if getattr(thread, "_target", None) is waiting._watch:
            thread.join(timeout=10)


def test_a_program_is_announced_and_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting.say_compilations()
    monkeypatch.setattr(waiting, "_COMPILING", 0.0)
    _compile()
    told = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"compiling <lambda>(, about [\d.]+ s)?", told[0])
    assert re.fullmatch(r"compiling <lambda> took \d+s", told[-1])
    monkeypatch.undo()
    _compile()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("lowering", [0.43, 0.0])
def test_the_estimate_is_that_of_lowering(
    lowering: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "_COMPILING", 0.05)
    waiting._on_end(waiting._LOWER, 0.43)
    if not lowering:
        waiting.by_another_compiler()
    waiting._on_start(waiting._COMPILE, 0.0, fun_name="jit(_step)")
    time.sleep(0.2)
    waiting._on_end(waiting._COMPILE, 0.2)
    time.sleep(0.1)
    about = ", about 20 s" if lowering else ""
    assert capsys.readouterr().err == f"compiling step{about}\ncompiling step took 0s\n"


def test_long_work_is_said_again_and_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "_EVERY", 0.05)
    with waiting.said("sorting", after=0.05):
        time.sleep(0.3)
    first, *again, last = capsys.readouterr().err.splitlines()
    assert (first, last) == ("sorting", "sorting took 0s")
    assert set(again) == {"still sorting, for 0s"}
    assert len(again) >= 2
    with pytest.raises(ZeroDivisionError), waiting.said("sorting", after=0.5):
        _ = 1 / 0
    assert capsys.readouterr().err == ""
