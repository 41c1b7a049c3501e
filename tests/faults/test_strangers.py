# SPDX-License-Identifier: Apache-2.0
"""What a stranger's run, sweep, dataset, weights, config and image can do: a test a row of a table.

It is in docs/reliability.md, "From strangers"; the last test compares both.
"""

import ast
import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from PIL import Image

from tests.bucket import Bucket
from tests.conftest import needs_s3fs
from tests.faults import painted
from tests.refusals import refused_by
from tests.unit.sweeps.test_point import POINT
from vit_jax import __main__
from vit_jax.checkpoints import copies
from vit_jax.data import open_source
from vit_jax.data.sources.digits import prepare
from vit_jax.errors import UserError
from vit_jax.export import card as model_card
from vit_jax.export import folder as folder_lib
from vit_jax.process import startup
from vit_jax.storage import foreign, remote
from vit_jax.sweeps import point
from vit_jax.train.loop import fit

ROOT = Path(__file__).parents[2]
# Names of objects and in lists that would lead out of their folder, or confuse what reads them.
HOSTILE = (
    *("../escaped", "../../escaped", "a/../../../escaped", "a/../b", "./x", "a/./x", "a//x"),
    *("a\\..\\..\\escaped", "C:escaped", "~/escaped", "a/..", "a/\x1b[31mx", "a/\nx"),
)
EVIL = "\x1b[31m=1+1|<b>`$x$\u202e"
WITNESS = "import pathlib\npathlib.Path({!r}).touch()\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a moment, of a class whose name is hostile."""
    root = tmp_path_factory.mktemp("stranger")
    for name in (EVIL.replace("/", ""), "plain"):
        for split in ("train", "val"):
            painted.paint(root / "data" / split / name, (0, 80, 200))
    cfg = painted.get_config(str(root / "data"))
    cfg.duration = "2 steps"
    assert fit(cfg, root / "run").status == 0
    return root / "run"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose every file is known, and the current directory in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    return tmp_path


def command(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = __main__.main(["vit_jax", *map(str, words)])
    return status, *capsys.readouterr()


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Return the one line with which a command ends."""
    status, _, err = command(capsys, *words)
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert status in (2, 65, 66, 74), (status, err)
    assert len(lines) == 1, err
    assert lines[0].isprintable()
    return lines[0]


def outside(home: Path) -> list[str]:
    """List the files that are neither the person's cache nor in the folders of this test."""
    found = (str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())
    kept = ("cache/vit_jax/", "mine/", "data/", "sweep/", "given/")
    escaped = (str(path.relative_to(home)) for path in home.rglob("*escaped*"))
    left = [name for name in found if not name.startswith(kept)]
    return left + [name for name in escaped if not name.startswith(kept[0])]


def manifest_line(**fields: object) -> str:
    return json.dumps({**json.loads(point.to_line(POINT)), **fields})


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


def test_features_of_a_dataset(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, witness = prepare(home / "data"), home / "cache" / "ran"
    (home / "cache").mkdir(exist_ok=True)
    (folder.parents[1] / "evil_module.py").write_text(WITNESS.format(str(witness)))
    (folder.parents[1] / "digits2" / "1.0.0").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(home / "data"))
    good = json.loads((folder / "features.json").read_text())
    text, own = json.dumps(good), "tensorflow_datasets.core.features."
    evil = {"type": "evil_module.X", "content": {}}
    nested = {"jsonFeature": {"json": json.dumps({"a": evil})}}
    cases = [
        text.replace(f"{own}image_feature.Image", "evil_module.X"),
        text.replace(f"{own}features_dict.FeaturesDict", "evil_module.X"),
        text.replace("pythonClassName", "python_class_name").replace(own, "evil_module."),
        text.replace(f"{own}image_feature.Image", f"{own}evil.Image"),
        json.dumps(evil),
        json.dumps({"pythonClassName": f"{own}features_dict.FeaturesDict", **nested}),
        json.dumps({"type": f"{own}features_dict.FeaturesDict", "content": {"image": evil}}),
    ]
    target = home / "data" / "digits2" / "1.0.0"
    for file in folder.iterdir():
        (target / file.name.replace("digits-", "digits2-")).write_bytes(file.read_bytes())
    info = json.loads((target / "dataset_info.json").read_text()) | {"name": "digits2"}
    (target / "dataset_info.json").write_text(json.dumps(info))
    assert len(open_source("digits2", str(home / "data"), "train")) > 1_000
    for case in cases:
        (target / "features.json").write_text(case)
        with refused_by("data.sources.records.check"):
            open_source("digits2", str(home / "data"), "train")
    (target / "features.json").write_text(text)
    for change in ({"moduleName": "evil_module"}, {}):  # which nobody imports
        (target / "dataset_info.json").write_text(json.dumps({**info, **change}))
        assert len(open_source("digits2", str(home / "data"), "train")) > 1_000
    outside_of, of_another = "storage.foreign.checked", "data.sources.records.check"
    for field, value, code in (
        ("name", "../x", outside_of),
        ("name", "a/b", of_another),
        ("configName", "../x", outside_of),
    ):
        (target / "dataset_info.json").write_text(json.dumps({**info, field: value}))
        with refused_by(code):
            open_source("digits2", str(home / "data"), "train")
    for template, code in (
        ("../digits/{SPLIT}", outside_of),
        ("/etc/{SPLIT}", outside_of),
        ("a/{SPLIT}", of_another),
    ):
        splits = [{**split, "filepathTemplate": template} for split in info["splits"]]
        (target / "dataset_info.json").write_text(json.dumps({**info, "splits": splits}))
        with refused_by(code):
            open_source("digits2", str(home / "data"), "train")
    renamed = json.loads(text)
    names = renamed["featuresDict"]["features"]
    names["../../label"] = names.pop("label")  # its classes lie in a file of that name
    (target / "features.json").write_text(json.dumps(renamed))
    with refused_by("storage.foreign.checked"):
        open_source("digits2", str(home / "data"), "train")
    assert not witness.exists()
    assert "evil_module" not in sys.modules


def test_metadata_of_a_dataset_in_a_bucket(bucket: Bucket, home: Path) -> None:
    for i, name in enumerate(HOSTILE):
        root = f"bucket/tfds/{i}"
        bucket.put(f"{root}/scans/1.0.0/features.json", b"{}")
        bucket.put(f"{root}/scans/1.0.0/{name}.json", b"{}")
        with pytest.raises(UserError):
            open_source("scans", f"gs://{root}", "train")
        assert not outside(home)


def test_the_card_of_a_dataset(home: Path) -> None:
    folder = home / "data" / "set[1]{a,b}"
    folder.mkdir(parents=True)
    (home / "data" / "secret.tar").write_bytes(_tar({"a.jpg": b"x", "a.cls": b"1"}))
    for pattern in ("../*.tar", str(home / "data" / "*.tar"), "../{secret,x}.tar", "a/../../*.tar"):
        card = f"---\nconfigs:\n- config_name: default\n  data_files: {json.dumps(pattern)}\n---\n"
        (folder / "README.md").write_text(card)
        with refused_by("storage.foreign.checked"):
            open_source(f"hf:{folder}", split="train")
    aliases = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
    listed = "configs:\n- config_name: *a29\n  data_files: x\n- data_files: *a29\n"
    for head in (f"a0: &a0 x\n{aliases}{listed}", "configs: 3", "configs: [{data_files: [{}]}]"):
        (folder / "README.md").write_text(f"---\n{head}\n---\n")
        with pytest.raises(UserError):
            open_source(f"hf:{folder}", split="train")
    (folder / "README.md").unlink()
    (folder / "train-0.tar").write_bytes(_tar({"a.jpg": b"x", "a.cls": b"1"}))
    assert len(open_source(f"hf:{folder}", split="train")) == 1  # its own name is no pattern


def _tar(members: dict[str, bytes]) -> bytes:
    with tarfile.open(fileobj=(file := io.BytesIO()), mode="w") as archive:
        for name, data in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
    return file.getvalue()


def test_members_of_a_tar(home: Path) -> None:
    """No member is written; a name is a text."""
    folder = home / "data"
    folder.mkdir()
    names = [f"{name}.jpg" for name in HOSTILE if "/" not in name.rpartition("/")[2]]
    (folder / "train.tar").write_bytes(_tar(dict.fromkeys(names, b"x")))
    source = open_source(f"tar:{folder}/train.tar", split="train")
    assert len(source) > 5
    assert all(source.example_id(i).isprintable() for i in range(len(source)))
    assert not outside(home)


def test_an_index_of_others(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = home / "data"
    folder.mkdir()
    for i in range(2):
        members = {f"{j}.{end}": b"%d" % (j % 2) for j in range(9) for end in ("jpg", "cls")}
        (folder / f"train-{i}.tar").write_bytes(_tar(members))

    def labels() -> list[int]:
        return open_source(f"tar:{folder}/train-*.tar", split="train").labels.tolist()

    expected = labels()
    (index,) = folder.glob("vit_jax-index-*.npz")
    good = dict(np.load(index))
    lies = {
        "labels": good["labels"][::-1],
        "starts": good["starts"] + 512,
        "sizes": good["sizes"] * 10**9,
        "crcs": good["crcs"] + 1,
        "names": good["names"][::-1],
        "counts": np.array([1, 17]),
        "shards": good["shards"][::-1],
    }
    forms = [_npz({**good, name: value}) for name, value in lies.items()]
    forms += [_npz(good, np.savez_compressed), b"", b"PK", _npz({"counts": good["counts"]})]
    forms += [_npz({**good, "labels": np.array([{}] * 18, object)}), _npz({**good, "counts": -3})]
    forms += [_npz({**good, "names": np.full(18, b"x" * 2**20)})]
    for i, data in enumerate(forms):
        index.write_bytes(data)
        monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache" / "vit_jax" / str(i)))  # a new user
        assert labels() == expected, i
    assert "is not what the shards hold" in capsys.readouterr().err
    seen = []
    read = remote.read_range
    monkeypatch.setattr(remote, "read_range", lambda *a: seen.append(a) or read(*a))
    assert labels() == expected
    assert not seen  # its own is believed


def _npz(arrays: dict, write=np.savez) -> bytes:
    write(file := io.BytesIO(), **arrays)
    return file.getvalue()


def test_shards_of_weights(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = home / "given"
    folder.mkdir()
    secret = safetensors.numpy.save({"secret": np.ones(3, np.float32)})
    (home / "mine" / "secret.safetensors").write_bytes(secret)
    (folder / "config.json").write_text('{"architecture": "vit_tiny_patch16_224"}')
    names = [f"{name}.safetensors" for name in HOSTILE]
    for name in (*names, "../mine/secret.safetensors", str(home / "mine/secret.safetensors"), 3):
        index = {"weight_map": {"secret": name}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        said = refused(capsys, "predict", f"--from=hub:{folder}", ROOT / "docs/images/digits")
        assert "weight_map must name .safetensors beside it" in said
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model.safetensors").symlink_to("../../blobs/123")
    said = refused(capsys, "predict", f"--from=hub:{folder}", ROOT / "docs/images/digits")
    assert "is a link to ../../blobs/123, which is not there" in said
    (folder / "x.npz").symlink_to("gone")
    said = refused(capsys, "predict", f"--from={folder}/x.npz", "--model=vit_ti16", ROOT / "docs")
    assert "is a link to gone, which is not there" in said


def test_what_a_run_says_of_itself(
    run: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The config and metadata of a run are data: other ones are refused in a line."""
    image = next((run.parent / "data").rglob("*.png"))
    (file,) = (run / "checkpoints" / "2").glob("*METADATA")
    whole = json.loads(file.read_text())
    stored = json.dumps(whole)
    record = json.loads(_record(whole)["record"])
    metadata = record["metadata"]
    changes: list[dict] = [
        {"metadata": {**metadata, "config": 3}},
        {"metadata": {**metadata, "config": {"model": []}}},
        {"metadata": {**metadata, "config": {**metadata["config"], "data": 3}}},
        {"metadata": {**metadata, "config": {**metadata["config"], "evals": [1]}}},
        {"metadata": {**metadata, "class_names": [1, 2]}},
        {"metadata": {**metadata, "base": {"weights": "/etc/passwd"}}},
        {"metadata": {**metadata, "base": 3}},
        {"metadata": []},
        {"leaves": []},
        {"leaves": {"params/x": 3}},
        {"metrics": {"a": "b"}},
    ]
    ranking = ({"mode": "sideways"}, {"mode": ["max"]}, {"metric": 3}, 3, None)
    sizes = ({"image_size": [10**6, 10**6]}, {"channels": 10**9})
    config = metadata["config"]
    for value in ranking:
        changes.append({"metadata": {**metadata, "config": {**config, "checkpoint": value}}})
    for value in sizes:
        model = {**config["model"], **value}
        changes.append({"metadata": {**metadata, "config": {**config, "model": model}}})
    dark = {**config, "data": {**config["data"], "std": [0.0]}}
    changes += [{"metadata": {**metadata, "config": dark}}]
    changes += [{"metadata": {**metadata, "own_parameters": 3}}]
    for i, change in enumerate(changes):
        copy = home / "given" / str(i)
        _copied(run, copy)
        text = json.dumps({**record, **change})
        made = json.dumps(_with_record(json.loads(stored), text, zlib.crc32(text.encode())))
        (copy / "checkpoints" / "2" / file.name).write_text(made)
        refused(capsys, "predict", f"--from={copy}", image)
    # A base that has itself for a base, and bases that any weights would do for.
    place = home / "given" / "base"
    _copied(run, place)
    own = {name: x for name, x in record["leaves"].items() if "head/bias" not in name}
    base = {"weights": f"ckpt:{place}@2", "resize": "auto", "ema": False, "skip": [], "scale": 1.0}
    cases: list[tuple[dict, str]] = [({"digest": "00"}, "is it its own")]
    cases += [(case, "what the run says of its base is damaged") for case in ({}, {"digest": ""})]
    for name, value in (("skip", [3]), ("skip", 3), ("scale", "x"), ("scale", None), ("ema", 1)):
        cases.append(({"digest": "00", name: value}, "what the run says of its base is damaged"))
    for case, told in cases:
        change = {"leaves": own, "metadata": {**metadata, "base": {**base, **case}}}
        text = json.dumps({**record, **change})
        made = json.dumps(_with_record(json.loads(stored), text, zlib.crc32(text.encode())))
        (place / "checkpoints" / "2" / file.name).write_text(made)
        assert told in refused(capsys, "predict", f"--from={place}", image), case


def _record(tree: dict) -> dict:
    """Find what this package keeps in Orbax's metadata."""
    if "record" in tree:
        return tree
    inside = [_record(value) for value in tree.values() if isinstance(value, dict)]
    return next(filter(None, inside), {})


def _with_record(tree: dict, text: str, crc32: int) -> dict:
    _record(tree).update(record=text, crc32=crc32)
    return tree


def _copied(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file():
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())


def test_a_config_json(run: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = home / "given" / "config.json"
    config.parent.mkdir()
    tree = json.loads((run / "config.json").read_text())
    forms = ["[" * 100_000, "3", "{}}", json.dumps({**tree, "model": {"family": "os.system"}})]
    forms += [json.dumps({**tree, "objective": {"family": "__import__('os')"}})]
    forms += [json.dumps({**tree, "exec": "import os"}), json.dumps({**tree, "data": [1]})]
    for text in forms:
        config.write_text(text)
        refused(capsys, "train", f"--config={config}", "--dry_run")


def test_text_in_a_terminal(
    run: Path, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = next((run.parent / "data").rglob("0.png"))
    status, out, err = command(capsys, "predict", f"--from={run}", image)
    assert status == 0
    assert "\\x1b[31m" in out
    for text in (out, err):
        assert all(line.isprintable() for line in text.splitlines())
    status, out, err = command(capsys, "evaluate", f"--from={run}", "--split=val", "--out=report")
    assert status == 0, err
    assert all(line.isprintable() for line in (out + err).splitlines())
    # In a table for programs names stay as they are, but where a person sees it.
    with monkeypatch.context() as patch:
        patch.setattr(sys.stdout, "isatty", lambda: True)
        status, out, _ = command(capsys, "predict", f"--from={run}", "--format=csv", image)
    assert (status, "\x1b" in out, "\\x1b[31m" in out) == (0, False, True)
    (home / "mine" / "\x1b[2Jx.png").write_bytes(b"no image")
    status, out, err = command(capsys, "predict", f"--from={run}", home / "mine")
    assert (status, "\x1b" in out + err) == (1, False)
    assert "\\x1b" in refused(capsys, "predict", f"--from={run}", "\x1b[2J")
    assert "\\x1b" in refused(capsys, "\x1b[2J")


def test_text_in_a_report(run: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = next((run.parent / "data").rglob("0.png"))
    files = [home / "mine" / "=1+1.png", home / "mine" / "@x.png"]
    for file in files:
        file.write_bytes(image.read_bytes())
    words = ["predict", f"--from={run}", "--format=csv", "=1+1.png", "@x.png"]
    status, out, _ = command(capsys, *words)
    assert status == 0
    assert "'=1+1.png," in out
    assert "'@x.png," in out
    assert not re.search(r"(?m)(^|,)\"?[=@]", out)


def test_text_in_a_page(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "<img src=x onerror=alert(1)>\u202e</script><script>alert(2)</script>"
    name = "<script>alert(3)<"
    sweep = home / "sweep"
    lines = []
    for i, run in enumerate((name, "plain")):
        place = sweep / "runs" / run
        place.mkdir(parents=True)
        row = {"step": 5, "val/loss": 1.0 + i, "train/loss": 1.0}
        (place / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        (place / "finished.json").write_text('{"step": 5}')
        lines.append(manifest_line(run=run, name=f"{evil}\x1b[31m{i}", overrides={"optim.lr": i}))
    (sweep / "manifest.jsonl").write_text("\n".join(lines) + "\n")
    status, out, err = command(capsys, "sweep", "report", sweep, f"--title={evil}")
    assert status == 0, err
    assert "\x1b" not in out
    assert "\u202e" not in out
    page = (sweep / "report.html").read_text()
    assert page.count("<script") == 2  # the page's own
    assert "<img src=x" not in page
    assert not set("\x1b\u202e") & set(page)
    status, out, _ = command(capsys, "sweep", "status", sweep, "--once")
    assert (status, "\x1b" in out, "\\x1b" in out) == (0, False, True)


def test_text_in_a_card(run: Path, home: Path) -> None:
    from vit_jax.inference.trained import load

    name = "[x](http://y)<b>|`$"
    trained = load(str(run))
    object.__setattr__(trained, "metrics", {f"{name}\n# head": 0.5})
    description = {
        "dtype": "float32",
        "vit_jax": "0",
        "config": {"data": {"name": f"`{name}\n# x"}},
    }
    change = folder_lib.Change("images", 1, 0.0, 0.0, 1)
    text = model_card.card(trained, "timm", change, description, name)
    outside_code = re.sub(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", "", text)
    assert "<b>" not in outside_code
    assert "](http://y)" not in outside_code
    assert "\n# head" not in text
    assert "\n# x" not in text


def test_text_in_a_picture(run: Path) -> None:
    """A "$" of a class is no formula, and a line break no line."""
    from vit_jax.evals.report import write_report

    names = ["$x$", "a$\\frac{", EVIL, "new\nline"]
    ids = np.arange(4)
    written = write_report(run.parent / "pictures", ids, ids[::-1].copy(), names, title="$\\frac{")
    assert "confusion.png" in written
    table = (run.parent / "pictures" / "per_class.csv").read_text()
    assert not re.search(r"(?m)^[=+@-]", table)


def test_sizes(run: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of ten gigabytes, of holes, are refused before they are read."""
    place = home / "given"
    place.mkdir()

    def holes(name: str, count: int = 10 << 30) -> Path:
        with (place / name).open("wb") as file:
            file.truncate(count)
        return place / name

    sweep = home / "sweep"
    sweep.mkdir()
    holes("config.json").rename(place / "x.json")
    refused(capsys, "train", f"--config={place}/x.json", "--dry_run")
    holes("m").rename(sweep / "manifest.jsonl")
    assert "larger than" in refused(capsys, "sweep", "status", sweep)
    holes("config.json")
    refused(capsys, "predict", f"--from=hub:{place}", ROOT / "docs/images/digits")
    (place / "x").mkdir()
    holes("r").rename(place / "x" / "README.md")
    with refused_by("storage.foreign.read") as caught:
        open_source(f"hf:{place}/x", split="train")
    assert "README.md" in str(caught.value)
    (place / "x" / "train.tar").write_bytes(_tar({"a.jpg": b"x", "a.cls": b"1"}))
    holes("c").rename(place / "x" / "classnames.txt")
    with refused_by("storage.foreign.read") as caught:
        open_source(f"tar:{place}/x/train.tar", split="train")
    assert "classnames.txt" in str(caught.value)


def test_an_image(run: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A text in a PNG that unpacks to a gigabyte costs none; the pixels are read."""
    Image.new("RGB", (16, 16)).save(file := io.BytesIO(), format="PNG")
    plain, bomb = file.getvalue(), zlib.compress(bytes(1 << 28))
    for kind, head in ((b"zTXt", b"k\0\0"), (b"iTXt", b"k\0\1\0\0\0"), (b"iCCP", b"k\0\0")):
        body = kind + head + bomb
        chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
        (home / "mine" / f"{kind.decode()}.png").write_bytes(plain[:33] + chunk + plain[33:])
    code = (
        "import resource; from vit_jax.inference.images import read_image\n"
        "from vit_jax.errors import UserError\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for kind in ('zTXt', 'iTXt', 'iCCP'):\n"
        "    try: read_image(f'{kind}.png', 3)\n    except UserError as error: print(error)\n"
        "used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "assert used < 200_000, used\n"
    )
    words, env = [sys.executable, "-c", code], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_table_has_a_test_a_row() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text()
    section = text.partition("## From strangers")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    listed = [name for row in rows for name in re.findall(r"`(test_\w+)`", row)]
    assert all(re.search(r"`test_\w+`", row) for row in rows)
    tree = ast.parse(Path(__file__).read_text())
    here = [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name[:5] == "test_"]
    assert sorted(listed) == sorted(here[:-1])
