# SPDX-License-Identifier: Apache-2.0
"""What a stranger's dataset, weights, run, config and image can do."""

import io
import json
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from PIL import Image

from tests.bucket import Bucket
from tests.faults.strangers.given import HOSTILE, ROOT, WITNESS, outside, refused, tar_of
from tests.refusals import refused_by
from vit_jax.data import open_source
from vit_jax.data.sources.digits import prepare
from vit_jax.errors import UserError
from vit_jax.storage import remote


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
    (home / "data" / "secret.tar").write_bytes(tar_of({"a.jpg": b"x", "a.cls": b"1"}))
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
    (folder / "train-0.tar").write_bytes(tar_of({"a.jpg": b"x", "a.cls": b"1"}))
    assert len(open_source(f"hf:{folder}", split="train")) == 1  # its own name is no pattern


def test_members_of_a_tar(home: Path) -> None:
    """No member is written; a name is a text."""
    folder = home / "data"
    folder.mkdir()
    names = [f"{name}.jpg" for name in HOSTILE if "/" not in name.rpartition("/")[2]]
    (folder / "train.tar").write_bytes(tar_of(dict.fromkeys(names, b"x")))
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
        (folder / f"train-{i}.tar").write_bytes(tar_of(members))

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
    (place / "x" / "train.tar").write_bytes(tar_of({"a.jpg": b"x", "a.cls": b"1"}))
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
