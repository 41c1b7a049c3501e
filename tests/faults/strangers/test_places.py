# SPDX-License-Identifier: Apache-2.0
"""What the names in a stranger's bucket and the files of his sweep can do."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.bucket import Bucket
from tests.conftest import needs_s3fs
from tests.faults.strangers.given import (
    HOSTILE,
    ROOT,
    WITNESS,
    command,
    manifest_line,
    outside,
    refused,
)
from tests.unit.sweeps.test_point import POINT
from vit_jax.checkpoints import copies
from vit_jax.process import startup
from vit_jax.storage import foreign


def _put_run(bucket: Bucket, run: Path, name: str) -> None:
    """Put a run into a bucket with the mark of its last checkpoint, as a run there has it."""
    bucket.put_tree(run, name)
    files = copies.described(run / "checkpoints" / "2")
    bucket.put(f"{name}/checkpoints/2.json", json.dumps({"files": files}).encode())


def test_names_of_a_bucket(
    run: Path, bucket: Bucket, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = next((run.parent / "data").rglob("*.png"))
    schemes = ["gs"]
    try:
        needs_s3fs()
        schemes.append("s3")
    except pytest.skip.Exception:
        pass
    for i, name in enumerate(HOSTILE):
        for scheme in schemes if i < 3 else ("gs",):
            place = f"bucket/{scheme}/names/{i}"
            url = f"{scheme}://{place}"
            _put_run(bucket, run, f"{place}/run")
            bucket.put(f"{place}/run/checkpoints/2/{name}", b"taken")
            if foreign.fault(f"a/{name}"):  # elsewhere than at the start ~ means nothing
                said = refused(capsys, "predict", f"--from={url}/run", image)
                assert "is not followed" in said
            bucket.put(f"{place}/sweep/manifest.jsonl", manifest_line().encode() + b"\n")
            bucket.put(f"{place}/sweep/{name}", b"taken")
            assert "is not followed" in refused(capsys, "sweep", "status", f"{url}/sweep", "--once")
            bucket.put(f"{place}/new/{name}", b"taken")
            words = ["--config=vit_mu_digits", f"--workdir={url}/new"]
            assert "is not followed" in refused(capsys, "train", *words)
            assert not outside(home)


def test_lists_in_marks(
    run: Path, bucket: Bucket, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = next((run.parent / "data").rglob("*.png"))
    marks = [json.dumps({"files": {name: 5}}) for name in (*HOSTILE, "/etc/x", "")]
    marks += ["[]", "{", "{}", '{"files": 3}', '{"files": {"a": "b"}}', "[" * 100_000]
    _put_run(bucket, run, "bucket/marks/good")
    assert command(capsys, "predict", "--from=gs://bucket/marks/good", image)[0] == 0
    for i, mark in enumerate(marks):
        _put_run(bucket, run, f"bucket/marks/{i}")
        bucket.put(f"bucket/marks/{i}/checkpoints/2.json", mark.encode())
        refused(capsys, "predict", f"--from=gs://bucket/marks/{i}", image)
        assert not outside(home)
    for url in ("gs://bucket/a/../../../x", "s3://bucket//x", "gs://../x"):
        assert "the name" in refused(capsys, "predict", f"--from={url}", image)


def test_a_bucket_does_not_replace_what_a_directory_has_of_its_own(
    bucket: Bucket, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.put("bucket/hidden/manifest.jsonl", manifest_line().encode() + b"\n")
    for name in (".staging", ".bashrc", "runs/.hidden", ".lock/evil"):
        bucket.put(f"bucket/hidden/{name}", b"taken")
    status, out, _ = command(capsys, "sweep", "status", "gs://bucket/hidden", "--once")
    assert (status, "1 waiting" in out) == (0, True)
    found = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    assert b"taken" not in found


def test_the_config_of_a_sweep(
    bucket: Bucket, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = home / "cache" / "ran"
    place = startup.cache_home() / "vit_jax" / "workdirs" / "gs" / "bucket" / "code"
    (home / "elsewhere.py").write_text(WITNESS.format(str(witness)))
    (home / "mine" / "link.py").symlink_to(home / "elsewhere.py")
    bucket.put("bucket/code/evil.py", WITNESS.format(str(witness)).encode())
    paths = [
        place / "evil.py",
        os.path.relpath(place / "evil.py"),
        home / "elsewhere.py",
        "link.py",
    ]
    paths += [f"{place / 'evil.py'}:argument", "../elsewhere.py"]
    for config in map(str, paths):
        line = manifest_line(config=config)
        bucket.put("bucket/code/manifest.jsonl", f"{line}\n".encode() * 9)
        for words in ((), ("--index=0",)):
            said = refused(capsys, "sweep", "run", "gs://bucket/code", *words)
            assert "add --trust_config" in said
        (home / "sweep").mkdir(exist_ok=True)
        (home / "sweep" / "manifest.jsonl").write_text(f"{line}\n")
        assert "add --trust_config" in refused(capsys, "sweep", "run", home / "sweep")
    # In the sweep itself, though below the current directory.
    monkeypatch.chdir(home)
    (home / "sweep" / "evil.py").write_text(WITNESS.format(str(witness)))
    (home / "sweep" / "manifest.jsonl").write_text(manifest_line(config="sweep/evil.py") + "\n")
    assert "add --trust_config" in refused(capsys, "sweep", "run", "sweep")
    assert not witness.exists()


def test_a_config_that_may_run(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = home / "cache" / "ran"
    monkeypatch.chdir(ROOT)  # whose configs/ the package's runs are
    (home / "sweep").mkdir()
    (home / "cache").mkdir()
    mine = home / "mine" / "own.py"
    mine.write_text(WITNESS.format(str(witness)) + "raise SystemExit(3)\n")
    lines = manifest_line(config=str(mine)) + "\n"
    (home / "sweep" / "manifest.jsonl").write_text(lines)
    refused(capsys, "sweep", "run", home / "sweep")
    assert not witness.exists()
    assert command(capsys, "sweep", "run", home / "sweep", "--trust_config")[0] == 1
    assert witness.exists()
    witness.unlink()
    monkeypatch.chdir(home / "mine")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert command(capsys, "sweep", "run", home / "sweep")[0] == 1
    assert witness.exists()


def test_points_of_a_sweep(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = home / "sweep"
    (sweep / "runs").mkdir(parents=True)
    lines = [manifest_line(run=name) for name in (*HOSTILE, "..", ".", "", "/x", "a/b", ".x", "-x")]
    lines += [manifest_line(**{key: None}) for key in ("run", "name", "config", "overrides")]
    lines += [
        manifest_line(overrides={"a=b --workdir": 1}),
        manifest_line(steps=0),
        "3",
        "[" * 99999,
    ]
    lines += [manifest_line(flops=float("inf")), manifest_line(steps=True), manifest_line(run=[])]
    for line in lines:
        (sweep / "manifest.jsonl").write_text(f"{line}\n{manifest_line()}\n")
        for verb in ("status", "report", "run"):
            assert "is no point of a sweep" in refused(capsys, "sweep", verb, sweep)
    assert not outside(home)


def test_links_in_a_sweep(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep, precious = home / "sweep", home / "mine" / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    for name in (
        "runs",
        f"runs/{POINT.run}",
        f"claims/{POINT.run}",
        "claims",
        "queue.log",
        "points",
    ):
        (sweep / name).parent.mkdir(parents=True, exist_ok=True)
        (sweep / "manifest.jsonl").write_text(manifest_line(config="vit_mu_digits") + "\n")
        if (sweep / name).is_dir():
            shutil.rmtree(sweep / name)
        (sweep / name).unlink(missing_ok=True)
        (sweep / name).symlink_to(precious / "file" if "queue" in name else precious)
        said = refused(capsys, "sweep", "run", sweep, "--index=0")
        assert "is a link" in said
        (sweep / name).unlink()
    for name in ("output.txt", "metrics.jsonl", ".lock", "checkpoints"):
        run = sweep / "runs" / POINT.run
        run.mkdir(parents=True, exist_ok=True)
        (run / name).symlink_to(precious / "file")
        assert "is a link" in refused(capsys, "sweep", "run", sweep, "--index=0")
        if name != "checkpoints":  # a folder on a larger disk
            said = refused(capsys, "train", "--config=vit_mu_digits", f"--workdir={run}")
            assert "is a link" in said
        (run / name).unlink()
    assert [path.name for path in precious.iterdir()] == ["file"]
    assert (precious / "file").read_text() == "mine"
