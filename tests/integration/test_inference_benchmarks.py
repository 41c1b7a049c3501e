# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of inference run, at tiny sizes, and their page says what was measured."""

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks import inference, prune, token_merging, turns
from tests.integration.test_benchmarks import Here
from vit_jax import config as config_lib

DOCS = token_merging.PICTURE.parent.parent


@pytest.mark.slow
def test_inference_measures_merging_beside_none_at_each_batch_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "Side", Here)
    sizes = ["--batch", "2", "3", "--rounds=1", "--seconds=0", f"--out={tmp_path}"]
    inference.main(["--variant=vit_mu_8x8", *sizes, "--token_merging", "2"])
    (path,) = tmp_path.glob("*.json")
    rows = json.loads(path.read_text())["rows"]
    works = [f"vit_mu_8x8 token_merging=2 forward batch={size} float32" for size in (2, 3)]
    assert [row["work"] for row in rows] == works
    for row in rows:
        assert row["peer"] == "without merging"
        assert row["ours"] > 0
        assert row["ratio"] == pytest.approx(row["ours"] / row["peer_value"], rel=1e-2)


def test_inference_refuses_sizes_of_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        inference.main(["--batch", "4"])
    assert "add --variant" in capsys.readouterr().err


@pytest.mark.slow
def test_token_merging_trains_once_and_measures_every_r(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = token_merging.get_config

    def short(merged: int) -> config_lib.Config:
        cfg = whole(merged)
        cfg.model = dataclasses.replace(cfg.model, depth=1)
        cfg.duration, cfg.optim.warmup, cfg.mesh.data = "1 steps", "0 steps", 1
        cfg.evals = {"test": cfg.evals["test"]}
        return cfg

    monkeypatch.setattr(token_merging, "get_config", short)
    monkeypatch.setattr(token_merging, "TRAINED", (0,))
    out, picture = tmp_path / "rows.json", tmp_path / "rows.png"
    argv = [f"--workdir={tmp_path / 'runs'}", "--rounds=2", "--seconds=0", "--merge", "32"]
    token_merging.main([*argv, f"--out={out}", f"--picture={picture}"])
    plain, merging = token_merging.read(out)
    assert (plain.merged, plain.tokens, plain.speedup) == (0, 64, 1.0)
    assert (merging.merged, merging.tokens) == (32, 32)
    assert merging.mflops < plain.mflops
    for row in (plain, merging):
        assert set(row.top1) == {"0"}
        assert all(0 <= value <= 1 for top1 in row.top1.values() for value in top1)
        assert row.cpu_speedup > 0
    assert picture.is_file()
    times = {path: path.stat().st_mtime for path in (tmp_path / "runs").rglob("metrics.jsonl")}
    assert len(times) == 1
    token_merging.train([0], tmp_path / "runs")
    assert {path: path.stat().st_mtime for path in times} == times


def test_the_table_of_the_page_is_the_one_measured() -> None:
    page = (DOCS / "token_merging.md").read_text().splitlines()
    rows = token_merging.read(token_merging.RESULTS)
    assert [row.merged for row in rows] == list(token_merging.MERGED)
    for line in token_merging.markdown(rows).splitlines():
        assert line in page


def test_the_table_of_pruning_is_the_one_measured() -> None:
    page = (DOCS / "prune.md").read_text().splitlines()
    rows = prune.read(prune.RESULTS)
    assert [(row.heads, row.mlp) for row in rows] == list(prune.SHARES)
    for line in prune.markdown(rows).splitlines():
        assert line in page
