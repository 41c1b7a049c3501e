# SPDX-License-Identifier: Apache-2.0
"""Mistakes on any command line: one line, soon; `--debug` shows where from."""

import signal
from pathlib import Path

import pytest

from vit_jax.__main__ import VERBS
from vit_jax.__main__ import main as verb_main
from vit_jax.cli.parsing import flags as cli_flags
from vit_jax.cli.train import main as train_main

ROOT = Path(__file__).parents[2]
DIGITS = f"--config={ROOT}/configs/vit_mu_digits.py"
# What every verb refuses.
WRONG = {
    **{verb: ["--from=/nowhere"] for verb in VERBS},
    "models": ["("],
    "summary": [DIGITS, "--config.model.patch=3"],
    "cache_teacher": [DIGITS, "--config.model.patch=3"],
    "doctor": [DIGITS, "--config.model.patch=3"],
    "visualize": ["--weights", "--from=/nowhere"],
    "prepare": ["no_such_dataset"],
    "sweep": ["status", "/nowhere"],
}


def last_line(err: str) -> str:
    return err.strip().splitlines()[-1]


@pytest.mark.parametrize("verb", VERBS)
def test_debug_shows_the_traceback(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb_main(["vit_jax", verb, *WRONG[verb]]) == 2
    plain = capsys.readouterr().err
    assert len(plain.strip().splitlines()) == 1
    assert plain.startswith("error: ")
    assert verb_main(["vit_jax", verb, *WRONG[verb], "--debug"]) == 2
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert last_line(err) == plain.strip()


LONG = "a" * 300  # no file system takes a name so long


@pytest.mark.parametrize(
    "args",
    [
        [f"--config={LONG}.py"],
        [DIGITS, f"--config.init.weights=npz:{LONG}", "--workdir=x"],
        [DIGITS, f"--config.init.weights=ckpt:{LONG}", "--workdir=x"],
        [DIGITS, f"--config.data.name=folder:/{LONG}", "--workdir=x"],
        [DIGITS, f"--config.data.data_dir=/{LONG}", "--workdir=x"],
        [DIGITS, f"--workdir=/{LONG}"],
    ],
)
def test_names_that_are_too_long(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert train_main(["main.py", *args]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert LONG in err


def test_a_name_of_two_lines_is_told_in_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert train_main(["main.py", DIGITS, "--workdir=hdfs://bucket\nand/more"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: workdir ")


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_is_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli_flags.run(lambda: signal.raise_signal(signal.SIGINT), ["main.py"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_batch_that_the_devices_here_cannot_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workdir = tmp_path / "run"
    args = [DIGITS, f"--workdir={workdir}", "--config.data.batch_size=12"]
    assert train_main(["main.py", *args]) == 2
    err = capsys.readouterr().err
    assert "data.batch_size=12 cannot be split over 8 devices" in err
    assert "the nearest that can is 16, and this one can over 6" in err
    assert len(err.splitlines()) == 1
    assert not workdir.exists()


def test_a_changed_config_is_refused_and_may_be_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ("dim=16", "depth=1", "num_heads=2", "mlp_dim=32", "scan_unroll=1")

    def train(*args: str) -> tuple[int, str]:
        status = train_main(
            [
                "main.py",
                DIGITS,
                f"--workdir={tmp_path / 'run'}",
                "--config.duration=2 steps",
                "--config.optim.warmup=1 steps",
                "--config.mesh.data=1",
                "--config.log.tensorboard=false",
                *(f"--config.model.{size}" for size in sizes),
                *args,
            ]
        )
        return status, capsys.readouterr().err

    longer = "--config.duration=3 steps"
    assert train()[0] == 0
    status, err = train("--config.model.depth=2", "--config.optim.lr=0.5")
    assert status == 2
    assert "model.depth: 1 -> 2" in last_line(err)
    assert "optim.lr: 0.004 -> 0.5" in last_line(err)
    assert "--allow_config_change" in last_line(err)
    # What the checkpoint cannot hold stays refused, by name.
    status, err = train("--config.model.depth=2", longer, "--allow_config_change")
    assert status == 2
    assert last_line(err).startswith("error: ")
    assert "blocks/" in last_line(err)
    assert "Traceback" not in err
    status, err = train("--config.faults.skip_spikes=true", longer, "--allow_config_change")
    assert status == 2
    assert "faults.skip_spikes needs: losses/count: nothing saved" in last_line(err)
    assert last_line(err).endswith(f" --config.init.weights=ckpt:{tmp_path / 'run'}")
    assert train("--config.optim.lr=0.5", longer, "--allow_config_change")[0] == 0
