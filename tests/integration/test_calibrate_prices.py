# SPDX-License-Identifier: Apache-2.0
"""The constants of predicted step times against the public measurements behind them."""

import pytest

from benchmarks import calibrate_prices as prices
from benchmarks import scale as page
from vit_jax import models
from vit_jax.cost import flops, scale


@pytest.fixture(scope="module")
def results():
    return prices.read()


@pytest.fixture(scope="module")
def counts(results):
    """The rows' counted work, as the results keep it: counting all of them takes a minute."""
    kept = [row["counted"] for row in results["rows"]]
    return [prices.Counted(flops.Work(*found[:-1]), found[-1]) for found in kept]


def test_the_file_has_sources_for_every_chip_and_halves_for_both_uses(results) -> None:
    rows = prices.measured()
    used = prices.used()
    assert len(used) >= 30
    assert {row.chip for row in used} >= {"A100", "H100", "TPU v3", "v4", "v5e", "v5p", "v6e"}
    assert all(row.source and row.note and row.images_per_s > 0 for row in rows)
    assert len(set(rows)) == len(rows)
    tested = sum(row.part == prices.TEST for row in used)
    assert 0.4 < tested / len(used) < 0.6
    assert [row["measured"] for row in results["rows"]] == [row.images_per_s for row in used]


def test_the_constants_are_those_of_the_fit_and_the_errors_what_the_page_says(
    results, counts
) -> None:
    found = prices.calibrated(prices.used(), counts)
    assert found["median_error"] == pytest.approx(results["median_error"], abs=0.003)
    assert found["spread"] == pytest.approx(results["spread"], abs=0.02)
    shares, traffic = found["constants"]["shares"], found["constants"]["traffic"]
    assert {name: shares[name] for name in scale.SHARES} == pytest.approx(scale.SHARES, abs=0.01)
    assert traffic["compiled"] == pytest.approx(scale.TRAFFIC, rel=0.01)
    kept = results["constants"]
    assert {name: kept["shares"][name] for name in scale.SHARES} == scale.SHARES
    assert kept["traffic"]["compiled"] == scale.TRAFFIC
    assert list(scale.SPREAD) == results["spread"]
    text = prices.PAGE.read_text()
    assert page.between(text, prices.MARKS) == prices.table(results)
    said = f"{results['median_error']['test']:.0%} of the time for the half"
    assert said in " ".join(text.split())


def test_a_rows_prediction_is_the_models_own(results, counts) -> None:
    rows = prices.used()
    i = next(i for i, row in enumerate(rows) if (row.chip, row.model) == ("H100", "vit_b16"))
    row = rows[i]
    step = scale.step_seconds(prices.effort(row, counts[i]), scale.CHIPS["H100"])
    hidden, exposed = prices.transfers(row, counts[i])
    rate = row.batch / (max(step, hidden) + exposed)
    assert results["rows"][i]["predicted"] == pytest.approx(rate, rel=1e-3)


@pytest.mark.parametrize("name", ["vit_ti16", "vit_s32"])
def test_rows_are_counted_by_the_projects_own_counters(results, counts, name: str) -> None:
    rows = prices.used()
    i = next(i for i, row in enumerate(rows) if row.model == name)
    assert prices.counted(rows[i]) == counts[i]
    module = models.create(models.looped(models.variant(name)))
    assert counts[i].work.flops == flops.forward_flops(module, 224)


def test_a_stack_counts_what_a_vits_blocks_do() -> None:
    (stack, vit) = (
        prices.count("stack 192x12 mlp768 h3 t197", 224, 2),
        prices.count("vit_ti16", 224, 2),
    )
    patches, head = 2 * 196 * 768 * 192, 2 * 192 * 1000
    assert stack.work.flops == vit.work.flops - patches - head
    assert stack.work.calls == vit.work.calls - 2
