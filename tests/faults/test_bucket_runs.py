# SPDX-License-Identifier: Apache-2.0
"""A run of two processes that share no disk, its workdir in a bucket, goes on at a new host."""

import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.bucket import Bucket
from tests.integration.train.test_processes import ARGS, CONFIG, NO_REPORT, ROOT, start
from vit_jax.checkpoints import reader
from vit_jax.cli.parsing import flags as cli_flags
from vit_jax.train.loop import fit
from vit_jax.train.report.writers import read_jsonl

PAIR = (
    "--config.mesh.fsdp=2",  # of each array a part on each host
    "--config.duration=60 steps",
    "--config.checkpoint.every=20 steps",
    "--config.checkpoint.keep_best=0",
    "--config.evals.val.every=60 steps",
    NO_REPORT,
)


def _pair(name: str, cache: Path, bucket: Bucket) -> list[subprocess.Popen]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**bucket.env, "XDG_CACHE_HOME": str(cache), "JAX_NUM_PROCESSES": "2"}
    env["JAX_COORDINATOR_ADDRESS"] = f"127.0.0.1:{port}"
    run = f"gs://{name}"
    return [start(run, 1, *PAIR, **env, JAX_PROCESS_ID=str(i)) for i in range(2)]


@pytest.mark.slow
def test_processes_that_share_no_disk(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, cache = "bucket/runs/pair", tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "reader"))
    first, deadline = _pair(name, cache, bucket), time.monotonic() + 200
    while bucket.get(f"{name}/checkpoints/20.json") is None:
        assert [p.poll() for p in first] == [None, None], first[0].communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for process in first:
        process.kill()
        process.communicate()
    shutil.rmtree(cache / "vit_jax" / "workdirs_1")  # a new host in place of the second
    second = _pair(name, cache, bucket)
    outputs = [p.communicate(timeout=240)[0] for p in second]
    assert [p.returncode for p in second] == [0, 0], outputs
    assert "continuing" in outputs[0], outputs[0]
    cfg = cli_flags.read_config(["main.py", f"--config={ROOT}/{CONFIG}", *ARGS[1:], *PAIR])
    cfg.mesh.data = 1  # on two of this process's devices
    assert fit(cfg, tmp_path / "one").status == 0
    pair, one = (reader.find(run) for run in (f"gs://{name}", tmp_path / "one"))
    assert pair.step == one.step
    assert pair.manifest.leaves == one.manifest.leaves  # and so their digests
    names = {name for name in pair.manifest.leaves if name.startswith("params/")}
    arrays = reader.load(pair, names)  # verified by them
    assert arrays.keys() == names
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_bytes(bucket.get(f"{name}/metrics.jsonl") or b"")
    losses = [
        [row["train/loss"] for row in read_jsonl(file) if "train/loss" in row]
        for file in (metrics, tmp_path / "one" / "metrics.jsonl")
    ]
    assert losses[0] == losses[1]
