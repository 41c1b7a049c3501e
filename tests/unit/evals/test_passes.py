# SPDX-License-Identifier: Apache-2.0
"""Work is started some items ahead of what is asked for."""

from vit_jax.evals.passes import ahead


def test_as_many_as_wanted_are_started_ahead() -> None:
    started = []

    def start(item: int) -> str:
        started.append(item)
        return str(item)

    results = ahead(range(5), start, 2)
    assert next(results) == "0"
    assert started == [0, 1, 2]
    assert list(results) == ["1", "2", "3", "4"]


def test_nothing_to_do_is_nothing_done() -> None:
    assert list(ahead([], str, 3)) == []
