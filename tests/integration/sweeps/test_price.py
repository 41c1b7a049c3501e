# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json
from pathlib import Path

import pytest

from configs import resnet_digits, vit_mu_digits
from tests.unit.sweeps import files
from vit_jax import models, trees
from vit_jax.cli.dry_run import dry_run
from vit_jax.cli.sweeps import plan as sweep_plan
from vit_jax.cost import scale
from vit_jax.errors import UserError
from vit_jax.sweeps import price as price_lib
from vit_jax.sweeps.price import find_device, price


def test_a_price_is_what_the_dry_run_says() -> None:
    cfg = vit_mu_digits.get_config()
    cfg.duration = "100 steps"
    cfg.optim.warmup = "10%"
    found = price(cfg)
    assert found.params == trees.num_params(models.abstract(cfg.model)["params"])
    assert (found.steps, found.examples) == (100, 6400)
    assert found.tokens == 6400 * 16
    report, _ = dry_run(cfg)
    assert f"whole run: {found.flops / 1e9:.0f} GFLOP" in report.replace(",", ""), report


def test_a_gradient_taken_twice_costs_twice() -> None:
    cfg = vit_mu_digits.get_config()
    plain = price(cfg)
    cfg.optim.sam_rho = 0.1
    assert price(cfg).flops == 2 * plain.flops


def test_a_network_without_tokens_has_none() -> None:
    assert price(resnet_digits.get_config()).tokens is None


def test_the_examples_of_a_budget_cost_it() -> None:
    cfg = vit_mu_digits.get_config()
    cfg.duration = price_lib.examples(cfg.model, 1e12)
    cfg.optim.warmup = "10%"
    assert price(cfg).flops == pytest.approx(1e12, rel=0.001)
    half = dataclasses.replace(cfg.model, depth=2)
    assert int(price_lib.examples(half, 1e12).split()[0]) > 1.9 * int(cfg.duration.split()[0])


def test_a_device_is_a_chip_a_speed_or_this_machine() -> None:
    assert find_device("v5e", 8).chip is scale.CHIPS["v5e"]
    assert find_device("2e12", 1).flops_per_second == (2e12, 2e12)
    slow, fast = find_device("here", 1).flops_per_second
    assert 1e8 < slow < fast
    with pytest.raises(UserError, match="unknown device 'v5'; did you mean 'v5"):
        find_device("v5", 1)
    with pytest.raises(UserError, match="must be above 0"):
        find_device("-1", 1)


@pytest.mark.parametrize(
    "path", sorted((files.ROOT / "configs" / "sweeps").glob("[!_]*.py")), ids=lambda p: p.stem
)
def test_every_sweep_file_makes_points(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files.ROOT)
    file = sweep_plan.read(path)
    device = find_device("v5e", 1)
    if file.search is not None:
        made = sweep_plan.draw(file, device, {})
        assert len(made) == file.trials
    else:
        made = sweep_plan.points(file, device, {})
        assert sweep_plan.points(file, device, {}) == made  # it can be asked twice
        assert len(made) == len(list(file.sweep()))  # no run twice
    assert len({point.name for point in made}) == len(made)
    text = path.read_text()
    assert f"configs/sweeps/{path.name}" in text


def test_a_terminal_shows_a_table_and_a_pipe_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (made,) = sweep_plan.make_all(
        sweep_plan.read(files.ROOT / "configs/sweeps/pooling_digits.py"),
        [{"config": f"{files.ROOT}/configs/vit_mu_digits.py", "optim.lr": 0.1, "name": "lr=0.1"}],
        find_device("v5e", 1),
    )
    monkeypatch.setattr(sweep_plan, "points", lambda *_: [made])
    file = files.ROOT / "configs/sweeps/pooling_digits.py"
    for terminal, asked, is_table in (
        (True, None, True),
        (False, None, False),
        (True, True, False),
        (False, False, True),
    ):
        monkeypatch.setattr("sys.stdout.isatty", lambda terminal=terminal: terminal)
        sweep_plan.plan(sweep_plan.PlanSweep(file=file, json=asked), {})
        first = capsys.readouterr().out.splitlines()
        if is_table:
            assert first[0].split() == ["run", "parameters", "steps", "examples", "FLOPs", "time"]
            assert first[2].split()[:2] == ["lr=0.1", f"{made.params:,}"]
        else:
            assert json.loads(first[0])["name"] == "lr=0.1"
