# SPDX-License-Identifier: Apache-2.0
"""`doctor`: a sound machine is told so, and each thing that can be wrong is a line of its own."""

import contextlib
import errno
import importlib
import os
import shutil
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.photos import write_folder, write_images
from tests.refusals import refused_by
from vit_jax.__main__ import main as verb_main
from vit_jax.api import get_config
from vit_jax.cli import doctor
from vit_jax.cli.checks import machine
from vit_jax.cli.checks.machine import BROKEN, OK, WARNING
from vit_jax.process import launch, startup
from vit_jax.train import estimate

ROOT = Path(__file__).parents[3]
DIGITS = f"--config={ROOT}/configs/vit_mu_digits.py"


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
    found = importlib.import_module

    def without(name: str) -> Any:
        if name != "vit_jax.cli.train":  # such as what a config file takes from vit_jax
            return found(name)
        raise ImportError(f"libGL.so.1: cannot open shared object file\n({name})")

    monkeypatch.setattr(machine.importlib, "import_module", without)
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


def test_versions_and_their_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={'.'.join(map(str, launch._LEAST))}"
    assert machine.requirements() == (project["dependencies"], "pyproject.toml")
    assert machine.packages().state == OK
    wanted = ["jax>=0.1", "numpy>=99,<100", "no-such-package>=1", "tf>=1; extra == 'tf'"]
    monkeypatch.setattr(machine, "requirements", lambda: (wanted, "x"))
    state, text, fix = machine.packages()
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
    finding = machine.judge_devices(plugins, files, seen, asked)
    assert told in str(finding)
    assert (finding.state if finding else OK) == state


def test_device_files_and_plugins_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.devices() == (OK, f"8 x cpu; {len(os.sched_getaffinity(0))} CPU cores", "")
    monkeypatch.setattr(startup, "device_files", lambda: NVIDIA)
    monkeypatch.setattr(machine, "version_of", {"libtpu": "0.1"}.get)
    monkeypatch.setattr(machine.importlib.metadata, "entry_points", lambda group: [])
    _, text, fix = machine.devices()  # the tests set JAX_PLATFORMS
    assert text == "JAX_PLATFORMS=cpu hides libtpu, /dev/nvidia0"
    assert fix == "unset it"


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
    monkeypatch.setattr(machine, "_first_loss", lambda *_: next(found))
    state, text, _ = machine.step()
    assert told in text
    assert state == (OK if losses == [2.3, 2.30001] else BROKEN)


def test_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, text, _ = machine.disk(tmp_path / "not" / "there")
    assert (state, text.partition(":")[0]) == (OK, str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    with refused_by("workdir.folder.check_local"):
        machine.disk(Path("hdfs://host/run"))
    if sys.platform == "linux":
        assert machine.disk(Path("/proc/self")).state == BROKEN  # where no file can be made
    usage = shutil.disk_usage(tmp_path)._replace(free=2**20)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage)
        assert machine.disk(tmp_path).text.startswith(f"{tmp_path}: 1.00 MiB free")
        assert machine.disk(tmp_path).state == WARNING
    with monkeypatch.context() as patch:

        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(os, "fsync", full)
        assert "no file can be kept there (No space left" in machine.disk(tmp_path).text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "memory, free, fix",
    [
        (None, 2**40, ""),
        (2**40, 2**40, ""),
        (2**20, 2**40, "raise accum_steps"),
        (2**40, 2**20, "lower checkpoint.keep"),
    ],
)
def test_a_run_that_does_not_fit(
    memory: int | None, free: int, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need = types.SimpleNamespace(device_total=2**30, checkpoint=2**20)
    monkeypatch.setattr(estimate, "estimate_memory", lambda *_: need)
    monkeypatch.setattr(doctor, "device_memory", lambda: memory)
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    found = doctor.size(digits(batch_size=64), tmp_path)
    assert found.state == (WARNING if fix else OK)
    assert fix in found.fix
    assert "about 1.00 GiB on each device" in found.text


def digits(**data: Any) -> Any:
    from configs.vit_mu_digits import get_config

    cfg = get_config()
    for name, value in data.items():
        setattr(cfg.data, name, value)
    return cfg


def test_a_folder_and_what_can_be_wrong_with_it(tmp_path: Path) -> None:
    write_folder(tmp_path, {"train": 40, "val": 3}, ("china", "flower", "sky"))
    cfg = digits(name=f"folder:{tmp_path}", train_split="train")
    cfg.evals = {"val": cfg.evals["val"]}
    cfg.evals["val"].split = "val"
    with refused_by("config.checks.check_classes", "model.num_classes") as caught:
        doctor.dataset(cfg)
    assert "3 classes" in str(caught.value)
    cfg.model.num_classes = 3
    state, text, _ = doctor.dataset(cfg)
    assert state == OK
    assert text.endswith("120 images, 3 classes; train, val can be read")
    for split in ("val", "train"):
        broken = tmp_path / split / "sky" / "1.jpg"
        whole = broken.read_bytes()
        broken.write_bytes(whole[:-200])  # its header is there
        with refused_by("data.stream.batches.Batches._put") as caught:
            doctor.dataset(cfg)
        assert f"{split}/sky/1.jpg" in str(caught.value)
        broken.write_bytes(whole)


def test_what_a_config_leaves_to_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes, batch and duration "auto"; images without labels, and no images at all."""
    write_images(tmp_path, *(f"{i}.png" for i in range(70)))
    seen = []
    need = types.SimpleNamespace(device_total=2**30, checkpoint=2**20)
    monkeypatch.setattr(
        estimate, "estimate_memory", lambda cfg, *_: seen.append(cfg.data.batch_size) or need
    )
    cfg = get_config("unlabelled_folder:mae_small", {"data.name": f"folder:{tmp_path}"})
    assert doctor.size(cfg, tmp_path).state == OK
    state, text, _ = doctor.dataset(cfg)
    assert state == OK
    assert text.endswith("0 classes; train, val can be read")  # no knn
    cfg = get_config("finetune_folder:small", {"data.name": f"folder:{tmp_path}/none"})
    assert doctor.size(cfg, tmp_path).state == OK
    assert seen == [8, 128]


def test_the_classes_of_several_labels() -> None:
    batches: Any = contextlib.nullcontext(iter([{"label": np.array([[0, 1, 1], [1, 0, 0]])}]))
    np.testing.assert_array_equal(doctor._labels(batches), [1, 2, 0])
