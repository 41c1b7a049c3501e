# SPDX-License-Identifier: Apache-2.0
"""A sweep whose directory is in a bucket, shared by workers of hosts that share nothing else."""

from pathlib import Path

import pytest

from tests.bucket import Bucket
from tests.unit.sweeps import files
from vit_jax.cli.sweep import main
from vit_jax.sweeps import in_bucket, queue, results
from vit_jax.sweeps.results import State
from vit_jax.workdir import folder as workdir
from vit_jax.workdir import lock as bucket_lock

URL = "gs://bucket/sweeps/lrs"


@pytest.mark.slow
def test_two_hosts_train_each_point_once(
    bucket: Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = files.grid_of(tmp_path / "lrs.py", (0.001, 0.002))
    hosts = []
    for host in ("one", "two"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / host))
        hosts.append(files.start(file, f"--out={URL}"))
    outs = [files.finish(host) for host in hosts]
    assert any("2 runs: 2 finished" in out for out in outs), outs
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "three"))
    assert main(["vit_jax sweep", "status", URL, "--once"]) == 0
    assert main(["vit_jax sweep", "report", URL]) == 0
    assert "2 runs: 2 finished" in capsys.readouterr().out
    assert bucket.get("bucket/sweeps/lrs/report.html")
    for line in files.manifest(workdir.resolve(URL)[0]):
        log = bucket.get(f"bucket/sweeps/lrs/runs/{line['run']}/output.txt") or b""
        assert log.count(b"learning curve: ") == 1


def test_the_queue_and_the_claims_of_a_bucket(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_lock, "BEAT", 0.1)

    def on(host: str) -> Path:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / host))
        place = in_bucket.opened(Path("gs://bucket/sweeps/queue"))
        place.mkdir(parents=True, exist_ok=True)
        return place

    for host in ("one", "two"):
        queue.assign(queue.ask(queue.open_study(on(host)), 2), host)
    one = on("one")
    trials = queue.open_study(one).get_trials()
    assert sorted(trial.user_attrs["run"] for trial in trials) == ["one", "two"]
    assert queue.ask(queue.open_study(one), 2) is None
    with in_bucket.claim(one, one / "runs" / "both") as free:
        assert free
        two = on("two")
        with in_bucket.claim(two, two / "runs" / "both") as free:
            assert not free
        assert in_bucket.holder(two, "both", sure=True).startswith("pid ")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "one"))
    assert in_bucket.holder(on("two"), "both", sure=True) == ""
    (two / "runs" / "both").mkdir(parents=True)
    results.mark_ended(two / "runs" / "both", State.FAILED, "why")
    one = on("one")
    found = results.ended(one / "runs" / "both")
    assert found is not None
    assert found.note == "why"
    metrics, lines = one / "runs" / "both" / "metrics.jsonl", b'{"step": 1}\n{"step": 2}\n'
    bucket.put("bucket/sweeps/queue/runs/both/metrics.jsonl", lines)
    metrics.write_bytes(lines[:12])
    with queue.claim(one, "both") as descriptor:  # in training here, continued at step 1
        assert descriptor is not None
        in_bucket.pull(one)
        assert metrics.read_bytes() == lines[:12]
    in_bucket.pull(one)
    assert metrics.read_bytes() == lines
