# SPDX-License-Identifier: Apache-2.0
"""What `doctor` says of the findings of several processes; real ones are in tests/engines."""

import pytest

from vit_jax.cli.checks import cluster
from vit_jax.cli.checks.machine import BROKEN, OK, WARNING, Finding

HOSTS = ("n1", "n2", "n3")


def test_who_differs_from_most_is_named() -> None:
    usual, other = {"jax": "0.10.2", "devices": "8 x H100"}, {"jax": "0.10.1"}
    state, text, _ = cluster.judge_facts([usual] * 3, HOSTS)
    assert state == OK
    assert text == "3 processes on 3 host(s), of the same versions, each with 8 x H100"
    for place in range(3):
        facts = [usual] * 3
        facts[place] = usual | other
        state, text, fix = cluster.judge_facts(facts, HOSTS)
        assert state == BROKEN
        assert text == f"process {place} on n{place + 1} has jax 0.10.1, not 0.10.2"
        assert "one environment" in fix


def test_the_clock_that_is_away_is_named() -> None:
    assert cluster.judge_clocks([100.0, 100.5, 99.9], HOSTS) == (
        *(OK, "clocks are within 0.60 s of one another", ""),
    )
    state, text, _ = cluster.judge_clocks([100.0, 90.0, 100.1], HOSTS)
    assert (state, text) == (WARNING, "the clock of process 1 on n2 is -10.0 s from the others'")


def test_the_slow_one_is_named() -> None:
    assert cluster.judge_speed([0.010, 0.012, 0.011], HOSTS, "works").state == OK
    state, text, _ = cluster.judge_speed([0.010, 0.010, 0.030], HOSTS, "works")
    assert state == WARNING
    assert text == "process 2 on n3 works in 30.0 ms, others in 10.0 ms"
    assert cluster.judge_speed([0.010, 0.030], HOSTS, "works").text.startswith("process 1 on n2")


def test_the_worst_finding_is_told_with_who_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [[OK, "fine", ""], [BROKEN, "no disk", "buy one"], [WARNING, "little disk", ""]]
    monkeypatch.setattr(cluster, "gathered", lambda _: found)
    monkeypatch.setattr(cluster, "_hosts", lambda: HOSTS)
    told = cluster.together(lambda: Finding(OK, "fine"))
    assert told == (BROKEN, "process 1 on n2: no disk", "buy one")
    found[1] = found[2] = [OK, "as well", ""]
    assert cluster.together(lambda: Finding(OK, "fine")) == (OK, "fine", "")


@pytest.mark.parametrize(
    "environment, index",
    [
        ({}, 0),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, 1),
        ({"SLURM_PROCID": "1"}, 0),  # no task of srun
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "JAX_NUM_PROCESSES": "1"}, 0),
        ({"JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}, 3),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}, 1),
    ],
)
def test_who_speaks_before_they_have_met(
    environment: dict[str, str], index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cluster.index() == index
