# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from vit_jax.errors import UserError
from vit_jax.sweeps import queue

optuna = queue.optuna()


def states(study: object) -> list[str]:
    return [trial.state.name for trial in study.get_trials()]


def test_the_first_end_of_a_trial_holds(tmp_path: Path) -> None:
    one, two = queue.open_study(tmp_path), queue.open_study(tmp_path)
    taken = [queue.ask(study, 4) for study in (one, two, one, two)]
    assert states(one) == ["RUNNING"] * 4
    queue.end(one, taken[0], 0.5)
    queue.end(two, taken[1], None)
    queue.drop(one, taken[2])
    queue.end(two, taken[2], 0.5)  # whoever ended it first is right
    assert states(two) == ["COMPLETE", "PRUNED", "FAIL", "RUNNING"]


def test_a_search_makes_no_more_trials_than_asked_for(tmp_path: Path) -> None:
    one, two = queue.open_study(tmp_path), queue.open_study(tmp_path)
    first, second = queue.ask(one, 2), queue.ask(two, 2)
    assert {first.number, second.number} == {0, 1}
    assert queue.ask(one, 2) is None
    queue.end(one, first, None)  # a run that failed or was given up counts
    assert queue.ask(two, 2) is None
    assert states(one) == ["PRUNED", "RUNNING", "FAIL", "FAIL"]


def test_a_dead_workers_parameters_are_tried_again(tmp_path: Path) -> None:
    study = queue.open_study(tmp_path)
    trial = queue.ask(study, 1)
    lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
    assert queue.orphans(study) == []  # it has only just been asked for
    queue.assign(trial, "a")
    ((orphan, run),) = queue.orphans(study)
    assert run == "a"
    queue.again(study, orphan)
    again = queue.ask(study, 1)
    assert again.suggest_float("lr", 1e-4, 1e-1, log=True) == lr
    assert queue.ask(study, 1) is None


def test_workers_do_not_draw_the_same_numbers(tmp_path: Path) -> None:
    def draw(worker: int) -> float:
        sampler = optuna.samplers.RandomSampler(seed=0)
        study = queue.open_study(tmp_path, sampler=sampler)
        queue.begin_sampling(study, worker)
        return queue.ask(study, 9).suggest_float("lr", 0.0, 1.0)

    first = draw(0)
    assert first == pytest.approx(0.5488135)  # the seed's own, so that a search can be repeated
    assert len({first, draw(1), draw(0)}) == 3


def test_workers_share_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert queue.share(0, 2) == {"CUDA_VISIBLE_DEVICES": "4,6"}
    assert queue.share(1, 2) == {"CUDA_VISIBLE_DEVICES": "5,7"}
    assert queue.share(0, 1) == {}
    with pytest.raises(UserError, match="--workers=5, but here are 4 GPUs"):
        queue.share(0, 5)


def test_without_gpus_there_is_nothing_to_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert queue.share(1, 3) == {}
