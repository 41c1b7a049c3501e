# SPDX-License-Identifier: Apache-2.0
"""Processes of one run that would not train the same thing: each says so in one line, and ends."""

import socket
from pathlib import Path

import jax
import pytest

from tests.integration.train.test_processes import start
from vit_jax.cli.parsing import flags as cli_flags
from vit_jax.config import saved as config_json
from vit_jax.errors import UserError
from vit_jax.train.health import peers

CONFIG = "--config=configs/vit_mu_digits.py"


def two(*places: Path) -> list[str]:
    """Start two processes with workdirs of their own; returns the last line of each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    cluster = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": "2"}
    processes = [
        start(place, 1, **cluster, JAX_PROCESS_ID=str(i)) for i, place in enumerate(places)
    ]
    outputs = [p.communicate(timeout=120)[0] for p in processes]
    assert [p.returncode for p in processes] == [2, 2], "\n".join(outputs)
    assert "Traceback" not in "".join(outputs)
    return [next(x for x in out.splitlines() if x.startswith("error: ")) for out in outputs]


@pytest.mark.slow
def test_a_workdir_that_is_not_shared_is_named_by_both(tmp_path: Path) -> None:
    lines = two(tmp_path / "here", tmp_path / "there")
    assert "process 1 on" in lines[0]
    assert f"does not find in {tmp_path / 'here'} what process 0" in lines[0]
    assert f"does not find in {tmp_path / 'there'} what process 0" in lines[1]
    assert not list(tmp_path.glob("*/checkpoints/*"))


def of(*args: str) -> dict:
    argv = ["main.py", CONFIG, *args]
    cfg = cli_flags.read_config(argv)
    split = {"name": args[0] if args else "", "examples": 3, "digest": "aa"}
    return peers.facts(config_json.to_json(cfg), {"train": split}, ["a", "b"])


def test_what_is_compared_and_what_each_host_has_of_its_own() -> None:
    assert peers.differences(of(), of("--config.data.data_dir=/other")) == []
    assert peers.differences(of(), of("--config.data.num_workers=3")) == []
    assert peers.differences(of(), of("--config.mesh.fsdp=2")) == ["mesh.fsdp: 2, not 1"]
    for kind in ("folder", "tar"):
        folders = [f"--config.data.name={kind}:/{host}/images" for host in "ab"]
        assert peers.differences(of(folders[0]), of(folders[1])) == []
    here = of()
    fewer = {**here, "train examples": 2, "train digest": "bb"}
    assert peers.differences(here, fewer) == [
        "train digest: 'bb', not 'aa'",
        "train examples: 2, not 3",
    ]


@pytest.fixture
def _two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(peers, "_PAUSES", (0.0, 0.0))


@pytest.mark.usefixtures("_two_processes")
@pytest.mark.parametrize("index", [0, 1])
def test_other_numbers_are_named_by_both(
    index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [["one", "token", of("--config.model.dim=16")]]
    told += [["two", "", of("--config.model.dim=32", "--config.seed=1")]]
    answers = [told, [True, True]]
    monkeypatch.setattr(jax, "process_index", lambda: index)
    monkeypatch.setattr(peers, "_sees", lambda *_: True)
    monkeypatch.setattr(peers, "gather", lambda own: answers.pop(0))
    line = (
        r"^process 1 on two is about to train something else than process 0 on one: "
        r"model.dim: 32, not 16; seed: 1, not 0; start all with one command"
    )
    with pytest.raises(UserError, match=line):
        peers.agree(told[index][2], tmp_path)
    assert not answers


@pytest.mark.usefixtures("_two_processes")
def test_weights_of_a_hosts_own_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    there = ["ab"]
    monkeypatch.setattr(peers, "gather", lambda own: [own, ["other", there[0]]])
    peers.agree_on_weights("weights to start from", "ab")
    there[0] = "cd"
    with pytest.raises(UserError, match=r"process 1 on other has read other weights to start from"):
        peers.agree_on_weights("weights to start from", "ab")


def test_a_checkpoint_that_another_host_sees_late_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_PAUSES", (0.0, 0.0))
    (tmp_path / "checkpoints" / "40").mkdir(parents=True)
    late = [None, None, 40]
    monkeypatch.setattr(peers, "gather", lambda own: [own, late.pop(0)])
    peers._agree_on_latest(tmp_path, ["one", "two"])
    assert late == []
    late = [None, None, None]
    with pytest.raises(UserError, match=r"process 1 on two finds none .* process 0 on one step 40"):
        peers._agree_on_latest(tmp_path, ["one", "two"])
