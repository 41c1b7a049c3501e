# SPDX-License-Identifier: Apache-2.0
"""Handlers are put back, ignored signals stay ignored, and Ctrl-C is found behind other errors."""

import signal
from collections.abc import Iterator

import pytest

from vit_jax.process import signals


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_ignored_signals_stay_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seen = []
    handlers = dict.fromkeys((signal.SIGHUP, signal.SIGINT), lambda number, _: seen.append(number))
    before = signals.heed(handlers)
    signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGINT)
    assert seen == [signal.SIGINT]
    signals.restore(before)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_ctrl_c_raises_again_once_a_command_has_something_to_put_in_order() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signals.end_at_once()
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    signals.interruptible()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_handler_of_the_callers_own_stays() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signals.end_at_once()
    signals.interruptible()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_ctrl_c_is_found_behind_the_errors_that_it_causes() -> None:
    assert signals.interrupted(KeyboardInterrupt())
    assert not signals.interrupted(ImportError())
    assert not signals.interrupted(None)
    error = ImportError()
    error.__context__ = ValueError()
    error.__context__.__cause__ = KeyboardInterrupt()
    assert signals.interrupted(error)
