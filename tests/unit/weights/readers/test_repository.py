# SPDX-License-Identifier: Apache-2.0
"""Files of a repository: the Hub's own client against a server on this machine, and folders."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from tests.refusals import refused_by
from tests.unit.weights import hub_server
from tests.unit.weights.hub_server import Hub, commit, serving
from tests.unit.weights.networks import put
from vit_jax.errors import UserError
from vit_jax.weights.readers import repository

NAME = "me/net"


def weights(value: float) -> bytes:
    return safetensors.numpy.save({"a": np.full(3, value, np.float32)})


def files(value: float) -> dict[str, bytes]:
    config = json.dumps({"value": value}).encode()
    return {"config.json": config, "model.safetensors": weights(value)}


REPOSITORIES = {
    NAME: {"main": files(1.0), "v2": files(2.0)},
    "me/pickle": {"main": {"config.json": b"{}", "pytorch_model.bin": b"code"}},
    "me/bare": {"main": {"README.md": b"text"}},
    "me/large": {"main": {"config.json": b" " * (repository._MAX_JSON + 1)}},
    "me/broken": {"main": {"config.json": b"{", "model.safetensors": weights(1)[:40]}},
}


@pytest.fixture(scope="module")
def client() -> None:
    """Open the client's session before a test runs: what it imports starts ldconfig."""
    pytest.importorskip("huggingface_hub", reason="needs the extra [hub]")
    from huggingface_hub.utils import get_session

    get_session()


@pytest.fixture
def hub(client: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    repositories = {name: dict(revisions) for name, revisions in REPOSITORIES.items()}
    with serving(repositories) as found:
        hub_server.use(monkeypatch, found.address, tmp_path / "cache")
        yield found


def values(path: str) -> tuple[float, float]:
    found = repository.opened(path)
    tree = found.json("config.json")
    assert tree is not None
    with found.weights() as source:
        assert source.shapes == {"a": (3,)}
        return tree["value"], float(source.read("a")[0])


def test_a_repository_is_downloaded_once_and_asked_again(hub: Hub) -> None:
    assert values(NAME) == (1.0, 1.0)
    downloads = [line for line in hub.seen if line.startswith("GET")]
    hash_ = commit(NAME, "main")
    # The commit of the first file is that of all others.
    assert [line.split()[-1] for line in downloads] == list(files(1.0))
    assert downloads[-1] == f"GET {NAME} {hash_} model.safetensors"
    del hub.seen[:]
    assert values(NAME) == (1.0, 1.0)
    assert hub.seen == [f"HEAD {NAME} main config.json"]


def test_a_revision_is_a_branch_or_a_commit(hub: Hub) -> None:
    assert values(f"{NAME}@v2") == (2.0, 2.0)
    hash_ = commit(NAME, "v2")
    assert repository.opened(f"{NAME}@v2").ref == f"{NAME}@{hash_}"
    del hub.seen[:]
    assert values(f"{NAME}@{hash_}") == (2.0, 2.0)
    assert hub.seen == []  # a commit does not change


def test_the_cache_serves_without_a_network(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert values(NAME) == (1.0, 1.0)
    hub_server.offline(monkeypatch)
    del hub.seen[:]
    assert values(NAME) == (1.0, 1.0)
    for path in (f"{NAME}@v2", "me/pickle"):
        with pytest.raises(UserError, match=r"is not in the cache, and HF_HUB_OFFLINE is set$"):
            repository.opened(path)
    assert hub.seen == []


def test_a_hub_that_cannot_be_reached_is_said(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("huggingface_hub", reason="needs the extra [hub]")
    with serving({}) as gone:
        pass
    hub_server.use(monkeypatch, gone.address, tmp_path)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)  # 24 in all
    with pytest.raises(UserError, match=r"me/net at main is not in the cache, .*cannot be reached"):
        repository.opened(NAME)


REFUSED = {
    "me/none": "the Hugging Face Hub has no such repository, or not for you: run `hf auth login`",
    f"{NAME}@v3": "me/net has no branch, tag or commit 'v3'",
    hub_server.GATED: "meta/gated gives its files to those who accepted its terms",
    "me/large": "me/large/config.json has 16,777,217 bytes; at most 16,777,216 are read",
}


@pytest.mark.parametrize("path", REFUSED)
def test_what_the_hub_refuses_is_one_line(path: str, hub: Hub) -> None:
    with pytest.raises(UserError) as error:
        repository.opened(path)
    assert REFUSED[path] in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_are_not_there_or_not_whole(hub: Hub) -> None:
    assert repository.opened("me/bare").json("config.json") is None
    with (
        pytest.raises(UserError, match=r"me/pickle holds no model\.safetensors; .*run code"),
        repository.opened("me/pickle").weights(),
    ):
        pass
    with pytest.raises(UserError, match=r"me/broken/config\.json: no JSON"):
        repository.opened("me/broken").json("config.json")
    with (
        refused_by("weights.readers.safetensors_file.opened"),
        repository.opened("me/broken").weights(),
    ):
        pass


def test_a_folder_needs_no_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    put(tmp_path / "net@1", files(3.0))
    assert values(f"{tmp_path}/net@1") == (3.0, 3.0)
    monkeypatch.chdir(tmp_path)
    assert values("./net@1") == values("net@1") == (3.0, 3.0)
    with pytest.raises(UserError, match=r"pip install .*\[hub\]'; a folder"):
        repository.opened(NAME)


@pytest.mark.parametrize("path", ["./none", "/none/there", "name", "a/b/c", "", "me/net x"])
def test_neither_a_folder_nor_a_repository(path: str) -> None:
    with pytest.raises(UserError, match="is no folder, and no repository"):
        repository.opened(path)


def test_weights_of_several_files(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    put(
        tmp_path,
        {
            "model.safetensors.index.json": json.dumps(index).encode(),
            "model-1.safetensors": weights(1),
            "model-2.safetensors": safetensors.numpy.save({"b": np.ones((2, 2), np.float32)}),
        },
    )
    with repository.opened(str(tmp_path)).weights() as source:
        assert source.shapes == {"a": (3,), "b": (2, 2)}
        assert [source.read(key).sum() for key in "ab"] == [3, 4]
    # What two files hold is where the index says, whichever comes first.
    both = {"a": np.full(3, 7, np.float32), "b": np.ones((2, 2), np.float32)}
    put(tmp_path, {"model-2.safetensors": safetensors.numpy.save(both)})
    for place, total in (("model-1.safetensors", 3), ("model-2.safetensors", 21)):
        index["weight_map"]["a"] = place
        index["weight_map"]["c"] = "model-1.safetensors"  # which no file holds
        put(tmp_path, {"model.safetensors.index.json": json.dumps(index).encode()})
        with repository.opened(str(tmp_path)).weights() as source:
            assert source.read("a").sum() == total
    (tmp_path / "model-2.safetensors").unlink()
    with (
        pytest.raises(UserError, match=r"names model-2\.safetensors, which is not there"),
        repository.opened(str(tmp_path)).weights(),
    ):
        pass


@pytest.mark.parametrize(
    "places", [None, {}, {"a": "../x.safetensors"}, {"a": "/etc/passwd"}, {"a": 1}, ["x"]]
)
def test_an_index_names_files_beside_it(places: object, tmp_path: Path) -> None:
    data = json.dumps({"weight_map": places}).encode()
    put(tmp_path, {"model.safetensors.index.json": data})
    with (
        pytest.raises(UserError, match=r"weight_map must name \.safetensors beside it"),
        repository.opened(str(tmp_path)).weights(),
    ):
        pass


@pytest.mark.parametrize("data", [b"[1]", b"\xff", b"[" * 100_000, b"NaN"])
def test_json_that_is_no_object(data: bytes, tmp_path: Path) -> None:
    put(tmp_path, {"config.json": data})
    with pytest.raises(UserError, match=r"config\.json(: no JSON| must hold an object)"):
        repository.opened(str(tmp_path)).json("config.json")
