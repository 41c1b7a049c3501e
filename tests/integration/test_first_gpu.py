# SPDX-License-Identifier: Apache-2.0
"""The first hour on an accelerator, each part of it small and on this machine's CPU."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import first_gpu


@pytest.fixture(scope="module")
def hour(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("hour")
    return out, first_gpu.hour([*first_gpu.PARTS], out, small=True)


def test_every_part_passes(hour) -> None:
    _, content = hour
    parts = content["parts"]
    assert {name: part["status"] for name, part in parts.items()} == dict.fromkeys(
        first_gpu.PARTS, "passed"
    ), json.dumps(parts, indent=1)
    assert parts["parity"]["found"]["vit_ti16"].keys() == {"forward", "gradient", "step", "export"}
    assert 0 < parts["resume"]["found"]["stopped_at"] < parts["resume"]["found"]["steps"]
    (seconds,) = parts["attention"]["found"]["seconds"].values()
    assert seconds.keys() >= {"auto", "xla"}
    (row,) = parts["mfu"]["found"]["vit_ti16"]
    assert row["ours"] > 0
    trained = parts["cifar10"]["found"]
    assert trained["step"] == 4
    assert 0 <= trained["test/top1"] <= 1


def test_an_hour_cut_short_goes_on(hour, capsys) -> None:
    out, content = hour
    (file,) = out.glob("*.json")
    again = {**content, "parts": {**content["parts"], "attention": {"status": "ran out of time"}}}
    file.write_text(json.dumps(again))
    # What has passed is not run again; what has not gets its limit, and says so when that is over.
    found = first_gpu.hour(["parity", "attention"], out, small=True, seconds=0.2)
    told = capsys.readouterr().out
    assert "parity: passed before" in told
    assert found["parts"]["attention"]["status"] == "ran out of time"
    assert json.loads(file.read_text()) == found
    # Another commit's results are no longer those of this one.
    file.write_text(json.dumps({**content, "head": "another"}))
    assert first_gpu.hour([], out, small=True) | {"head": ""} == {
        **content,
        "head": "",
        "parts": {},
    }


def test_a_run_whose_time_is_over_has_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(first_gpu.PARTS, "cifar10", first_gpu.Part(60, first_gpu.cifar10))
    with pytest.raises(RuntimeError, match="time was over at step 0; the same command continues"):
        first_gpu.cifar10(small=True)
