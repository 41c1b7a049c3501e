# SPDX-License-Identifier: Apache-2.0
"""`doctor`: a sound machine is told so, and each thing that can be wrong is a line of its own."""

import errno
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.test_broken_records import labelled, rewritten
from tests.photos import write_folder
from vit_jax import launch, startup
from vit_jax.__main__ import main as verb_main
from vit_jax.cli import check_machine, check_run, doctor
from vit_jax.cli.check_machine import BROKEN, OK, WARNING
from vit_jax.data.digits import prepare
from vit_jax.errors import UserError

ROOT = Path(__file__).parents[2]
DIGITS = f"--config={ROOT}/configs/vit_mu_digits.py"
LINE = re.compile(r"(\w+) +(ok|warning|broken) +(\S.*)")


def run(*args: str, **env: str) -> tuple[int, dict[str, tuple[str, str]], str]:
    """Run the verb in a process of its own: status, {check: (state, text)}, its last line."""
    done = subprocess.run(
        [sys.executable, "-m", "vit_jax", "doctor", *args],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_NUM_CPU_DEVICES": "1", **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    *lines, last = done.stdout.splitlines()
    found = [LINE.fullmatch(line) for line in lines]
    assert all(found), done.stdout + done.stderr
    return done.returncode, {m[1]: (m[2], m[3]) for m in found if m}, last


@pytest.mark.slow
def test_the_page_shows_what_is_printed(tmp_path: Path) -> None:
    env = {"TFDS_DATA_DIR": str(tmp_path)}
    status, found, last = run(DIGITS, f"--workdir={tmp_path / 'runs'}", **env)
    assert status == 0, found
    assert {state for state, _ in found.values()} <= {OK, WARNING}
    assert last.startswith(f"{len(found)} ok") or "warning" in last
    page = (ROOT / "docs" / "doctor.md").read_text()
    shown = page.split("```log\n")[1].split("```")[0].splitlines()
    assert [LINE.fullmatch(line)[1] for line in shown[:-1]] == list(found)
    for line in shown[:-1]:
        _, state, text = LINE.fullmatch(line).groups()
        assert words(text) == words(found[line.split()[0]][1]) or state != OK
    assert words(shown[-1]) == words(last)
    assert list(tmp_path.iterdir()) == []  # neither a workdir nor a dataset


def words(text: str) -> list[str]:
    """Drop what differs between machines: numbers, units, paths."""
    return re.sub(r"(/\S+|[\d.,e+-]*\d|[KMG]iB)", "", text).split()


@pytest.mark.slow
def test_every_check_may_fail(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, found, last = run(
        DIGITS,
        f"--workdir={tmp_path}/file/run",
        JAX_PLATFORMS="no_such_platform",
        XDG_CACHE_HOME=str(tmp_path / "file"),
        JAX_COMPILATION_CACHE_DIR="",
        TFDS_DATA_DIR=str(tmp_path / "file"),
    )
    assert status == 1
    broken = {name for name, (state, _) in found.items() if state == BROKEN}
    assert broken == {"devices", "step", "size", "disk"}
    assert "no_such_platform" in found["devices"][1]
    assert found["disk"][1] == f"{tmp_path}/file is no folder; choose another place"
    assert f"{len(broken)} broken" in last


def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for args, expected in (
        (["--workdri=x"], "did you mean '--workdir'"),
        ([DIGITS, "--config.optim.lrr=1"], "did you mean --config.optim.lr?"),
        (["runs"], "unexpected argument 'runs'"),
    ):
        assert verb_main(["vit_jax", "doctor", *args]) == 2
        out, err = capsys.readouterr()
        assert (out, len(err.splitlines())) == ("", 1), err
        assert expected in err


def test_what_is_missing_ends_it_early(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(name: str) -> Any:
        raise ImportError(f"libGL.so.1: cannot open shared object file\n({name})")

    monkeypatch.setattr(check_machine.importlib, "import_module", without)
    assert doctor.main(["doctor", DIGITS]) == 1
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out[:-1]] == ["packages", "imports"]
    assert "broken   ImportError: libGL.so.1: cannot open shared object file (vit_jax" in out[1]
    assert out[-1] == "1 ok, 0 warning, 1 broken; the other checks need what is missing"


def test_an_error_is_a_line_and_debug_shows_more(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> Any:
        raise ZeroDivisionError("by\nzero")

    def leaves() -> Any:
        sys.exit("gone")

    assert doctor.attempt(fails) == (BROKEN, "ZeroDivisionError: by zero", "")
    assert doctor.attempt(leaves) == (BROKEN, "SystemExit: gone", "")
    assert capsys.readouterr().err == ""
    doctor.attempt(fails, debug=True)
    assert "Traceback" in capsys.readouterr().err


def test_a_command_that_is_cut_short(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped() -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(check_machine, "packages", stopped)
    assert doctor.main(["doctor"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
    done = subprocess.run(
        f"{sys.executable} -m vit_jax doctor | true; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("141\n", "")


def test_versions_and_their_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={'.'.join(map(str, launch._LEAST))}"
    assert check_machine.requirements() == (project["dependencies"], "pyproject.toml")
    assert check_machine.packages().state == OK
    wanted = ["jax>=0.1", "numpy>=99,<100", "no-such-package>=1", "tf>=1; extra == 'tf'"]
    monkeypatch.setattr(check_machine, "requirements", lambda: (wanted, "x"))
    state, text, fix = check_machine.packages()
    assert state == BROKEN
    assert text == (
        f"numpy {np.__version__}, <100,>=99 is needed; no-such-package is missing, >=1 is needed"
    )
    assert fix == "pip install 'numpy<100,>=99' 'no-such-package>=1'"


NVIDIA, TPU = ["/dev/nvidia0"], ["/dev/accel0"]


@pytest.mark.parametrize(
    "plugins, files, seen, asked, state, told",
    [
        ([], [], ["cpu"], "", OK, "None"),
        (["xla_cuda13"], NVIDIA, ["gpu"], "", OK, "None"),
        (["xla_cuda13"], NVIDIA, ["cpu"], "", BROKEN, "/dev/nvidia0 and the plugin xla_cuda13"),
        (["xla_cuda13"], NVIDIA, ["cpu"], "cpu", WARNING, "JAX_PLATFORMS=cpu hides"),
        (["xla_cuda13"], [], ["cpu"], "", WARNING, "no device of it"),
        (["xla_cuda13"], [], ["cpu"], "cpu", OK, "None"),
        ([], NVIDIA, ["cpu"], "", WARNING, "jax[cuda13]"),
        ([], TPU, ["cpu"], "", WARNING, "jax[tpu]"),
        ([], [], ["cpu"], "cpu", OK, "None"),
    ],
)
def test_accelerators(
    plugins: list[str], files: list[str], seen: list[str], asked: str, state: str, told: str
) -> None:
    finding = check_machine.judge_devices(plugins, files, seen, asked)
    assert told in str(finding)
    assert (finding.state if finding else OK) == state


def test_device_files_and_plugins_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_machine.devices() == (OK, f"8 x cpu; {len(os.sched_getaffinity(0))} CPU cores", "")
    monkeypatch.setattr(startup, "device_files", lambda: NVIDIA)
    monkeypatch.setattr(check_machine, "_version", {"libtpu": "0.1"}.get)
    monkeypatch.setattr(check_machine.importlib.metadata, "entry_points", lambda group: [])
    _, text, fix = check_machine.devices()  # the tests set JAX_PLATFORMS
    assert text == "JAX_PLATFORMS=cpu hides what is here (libtpu, /dev/nvidia0)"
    assert fix == "unset it"


def test_a_step_on_all_devices() -> None:
    assert check_machine.step() == (OK, "a tiny ViT trains; the same loss on 8 devices", "")


@pytest.mark.parametrize(
    "losses, told",
    [
        ([2.3, 2.30001], "the same loss on 8 devices"),
        ([2.3, 2.4], "loss is 2.300000 on one device and 2.400000 on 8"),
        ([2.3, np.nan], "on one device and nan on 8"),
        ([np.nan, np.nan], "first step is nan"),
    ],
)
def test_a_step_that_differs(
    losses: list[float], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter(losses)
    monkeypatch.setattr(check_machine, "_first_loss", lambda *_: next(found))
    state, text, _ = check_machine.step()
    assert told in text
    assert state == (OK if losses == [2.3, 2.30001] else BROKEN)


def test_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, text, _ = check_machine.disk(tmp_path / "not" / "there")
    assert (state, text.partition(":")[0]) == (OK, str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="mount the bucket"):
        check_machine.disk(Path("gs://bucket/run"))
    if sys.platform == "linux":
        assert check_machine.disk(Path("/proc/self")).state == BROKEN  # where no file can be made
    usage = shutil.disk_usage(tmp_path)._replace(free=2**20)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage)
        assert check_machine.disk(tmp_path).text.startswith(f"{tmp_path}: 1.00 MiB free")
        assert check_machine.disk(tmp_path).state == WARNING
    with monkeypatch.context() as patch:

        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(os, "fsync", full)
        assert "no file can be kept there (No space left" in check_machine.disk(tmp_path).text
    assert list(tmp_path.iterdir()) == []


def test_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    for broken, told in ((lambda *_: None, "two hold"), (none, "No locks available")):
        monkeypatch.setattr(fcntl, "flock", broken)
        state, text, _ = check_machine.disk(tmp_path)
        assert state == WARNING
        assert told in text


def test_a_run_that_does_not_fit() -> None:
    mesh = {"data": 1}
    assert check_run.judge(10, 20, 5, 9, mesh).state == OK
    assert check_run.judge(10, None, 5, 9, mesh).state == OK
    assert "raise accum_steps" in check_run.judge(21, 20, 5, 9, mesh).fix
    assert "lower checkpoint.keep" in check_run.judge(10, 20, 10, 9, mesh).fix


def digits(**data: Any) -> Any:
    from configs.vit_mu_digits import get_config

    cfg = get_config()
    for name, value in data.items():
        setattr(cfg.data, name, value)
    return cfg


def test_a_run_larger_than_the_machine(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="batch_size=12 cannot be split over 8 devices"):
        check_run.size(digits(batch_size=12), tmp_path)
    cfg = digits(batch_size=2**26)
    assert check_run.size(cfg, tmp_path).state == WARNING
    cfg.mesh.data = 3_000
    with pytest.raises(UserError, match="does not fit 8"):
        check_run.size(cfg, tmp_path)


def test_a_folder_and_what_can_be_wrong_with_it(tmp_path: Path) -> None:
    write_folder(tmp_path, {"train": 40, "val": 3}, ("china", "flower", "sky"))
    cfg = digits(name=f"folder:{tmp_path}", train_split="train")
    cfg.evals = {"val": cfg.evals["val"]}
    cfg.evals["val"].split = "val"
    with pytest.raises(UserError, match=r"has 3 classes; add --config\.model\.num_classes=3"):
        check_run.dataset(cfg)
    cfg.model.num_classes = 3
    state, text, _ = check_run.dataset(cfg)
    assert state == OK
    assert text.endswith("120 images, 3 classes; train, val can be read")
    for split in ("val", "train"):
        broken = tmp_path / split / "sky" / "1.jpg"
        whole = broken.read_bytes()
        broken.write_bytes(whole[:100])
        with pytest.raises(UserError, match=rf"{split}/sky/1.jpg: not a readable image"):
            check_run.dataset(cfg)
        broken.write_bytes(whole)


def test_an_evaluation_without_labels(tmp_path: Path) -> None:
    prepare(tmp_path / "whole")
    rewritten(tmp_path / "whole", tmp_path / "digits", labelled(-1))
    state, text, _ = check_run.dataset(digits(data_dir=str(tmp_path / "digits")))
    assert (state, text.endswith("10 classes, and a label -1")) == (BROKEN, True), text


def test_the_classes_of_several_labels() -> None:
    np.testing.assert_array_equal(
        check_run._classes({"label": np.array([[0, 1, 1], [1, 0, 0]])}), [1, 2, 0]
    )
