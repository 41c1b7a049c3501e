# SPDX-License-Identifier: Apache-2.0
"""`doctor`: a sound machine is told so, and each thing that can be wrong is a line of its own."""

import contextlib
import dataclasses
import errno
import fcntl
import os
import re
import resource
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.faults.test_broken_records import labelled, rewritten
from tests.photos import write_folder
from vit_jax import startup
from vit_jax.__main__ import main as verb_main
from vit_jax.cli import check_compute, check_disk, check_install, check_run, doctor
from vit_jax.cli.finding import BROKEN, OK, WARNING
from vit_jax.data.digits import prepare
from vit_jax.errors import UserError
from vit_jax.train import build

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
    devices = {"accelerator", "devices", "float32", "bfloat16", "step", "memory", "size"}
    assert broken == devices | {"disk"}
    assert "no_such_platform" in found["devices"][1]
    assert found["disk"][1] == f"{tmp_path}/file is no folder; choose another place"
    assert found["cache"][0] == WARNING
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

    monkeypatch.setattr(check_install.importlib, "import_module", without)
    assert doctor.main(["doctor", DIGITS]) == 1
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out[:-1]] == ["python", "packages", "imports"]
    assert "broken   ImportError: libGL.so.1: cannot open shared object file (vit_jax" in out[2]
    assert out[-1] == "2 ok, 0 warning, 1 broken; the other checks need what is missing"


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

    monkeypatch.setattr(doctor, "_INSTALL", (("python", stopped),))
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


def test_versions_and_their_ranges() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={'.'.join(map(str, check_install._OLDEST))}"
    assert check_install.requirements() == (project["dependencies"], "pyproject.toml")
    assert check_install.packages().state == OK
    wanted = ["jax>=0.1", "numpy>=99,<100", "no-such-package>=1", "tf>=1; extra == 'tf'"]
    state, text, fix = check_install.compare(wanted, "x")
    assert state == BROKEN
    assert text == (
        f"numpy {np.__version__}, <100,>=99 is needed; no-such-package is missing, >=1 is needed"
    )
    assert fix == "pip install 'numpy<100,>=99' 'no-such-package>=1'"


def test_a_python_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 14))
    assert check_install.python().state == BROKEN
    monkeypatch.setattr(sys, "version_info", (3, 11, 0))
    assert check_install.python().state == OK


NVIDIA, TPU = ["/dev/nvidia0"], ["/dev/accel0"]


@pytest.mark.parametrize(
    "plugins, files, seen, asked, state, told",
    [
        ([], [], ["cpu"], "", OK, "none here"),
        (["xla_cuda13"], NVIDIA, ["gpu"], "", OK, "gpu in use"),
        (["xla_cuda13"], NVIDIA, ["cpu"], "", BROKEN, "/dev/nvidia0 and the plugin xla_cuda13"),
        (["xla_cuda13"], NVIDIA, ["cpu"], "cpu", WARNING, "JAX_PLATFORMS=cpu hides"),
        (["xla_cuda13"], [], ["cpu"], "", WARNING, "no device of it"),
        (["xla_cuda13"], [], ["cpu"], "cpu", OK, "none here"),
        ([], NVIDIA, ["cpu"], "", WARNING, "jax[cuda13]"),
        ([], TPU, ["cpu"], "", WARNING, "jax[tpu]"),
        ([], [], ["cpu"], "cpu", OK, "none here"),
    ],
)
def test_accelerators(
    plugins: list[str], files: list[str], seen: list[str], asked: str, state: str, told: str
) -> None:
    finding = check_install.judge(plugins, files, seen, asked)
    assert finding.state == state
    assert told in f"{finding.text}; {finding.fix}"


def test_device_files_and_plugins_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "device_files", lambda: NVIDIA)
    monkeypatch.setattr(check_install, "_version", {"libtpu": "0.1"}.get)
    monkeypatch.setattr(check_install.importlib.metadata, "entry_points", lambda group: [])
    _, text, fix = check_install.accelerator()  # the tests set JAX_PLATFORMS
    assert text == "JAX_PLATFORMS=cpu hides what is here (libtpu, /dev/nvidia0)"
    assert fix == "unset it"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_product_that_is_wrong(dtype: str) -> None:
    assert check_compute.matmul(dtype).state == OK
    exact = np.ones((4, 4))
    for off in (0.02, np.nan, np.inf):
        found = exact.copy()
        found[2, 3] += off
        assert check_compute.near(found, exact, dtype).state == BROKEN


def test_a_device_that_multiplies_in_less(monkeypatch: pytest.MonkeyPatch) -> None:
    multiply = check_compute.jnp.matmul
    half = np.dtype(np.float16)
    monkeypatch.setattr(
        check_compute.jnp, "matmul", lambda x, y, **_: multiply(x.astype(half), y.astype(half))
    )
    assert check_compute.matmul("float32").state == BROKEN


def test_rounding_to_float32_tells_a_shorter_dtype() -> None:
    exact = np.linspace(0, 1, 16)
    assert check_compute.near(exact.astype(np.float32), exact, "float32").state == OK
    assert check_compute.near(exact.astype(np.float16), exact, "float32").state == BROKEN


def test_a_step_on_all_devices() -> None:
    state, text, _ = check_compute.training_step()
    assert state == OK
    assert text == "a tiny ViT's step twice: the same bits; the same loss on 8 devices"


def test_a_step_that_goes_otherwise_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    init, seeds = build.init_state, iter([0, 1, 0])

    def other(cfg: Any, *rest: Any) -> Any:
        return init(dataclasses.replace(cfg, seed=next(seeds)), *rest)

    monkeypatch.setattr(build, "init_state", other)
    state, text, _ = check_compute.training_step()
    assert state == BROKEN
    # All but the counters: gradients reach every parameter.
    assert re.fullmatch(
        r"the same step twice gave other bits \(opt_state/.*, 60 of 62 arrays\)", text
    )


def test_a_step_that_is_not_repeated() -> None:
    one, other = {"w": b"ab", "b": b"c"}, {"w": b"aB", "b": b"c"}
    judge = check_compute.compare
    assert judge((one, 2.3), (one, 2.3), 2.30001, 8, "cpu").state == OK
    assert judge((one, 2.3), (one, 2.3), None, 1, "cpu").state == OK
    assert judge((one, 2.3), (other, 2.3), None, 1, "cpu").state == BROKEN
    assert judge((one, 2.3), (other, 2.3), None, 1, "cpu").text.endswith("(w, 1 of 2 arrays)")
    assert "deterministic" in judge((one, 2.3), (other, 2.3), None, 1, "gpu").fix
    assert judge((one, 2.3), (one, 2.3), 2.4, 8, "gpu").state == BROKEN
    assert judge((one, 2.3), (one, 2.3), np.nan, 8, "tpu").state == BROKEN
    assert judge((one, np.nan), (one, np.nan), None, 1, "cpu").state == BROKEN


def test_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, text, _ = check_disk.disk(tmp_path / "not" / "there")
    assert (state, text.partition(":")[0]) == (OK, str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="mount the bucket"):
        check_disk.disk(Path("gs://bucket/run"))
    if sys.platform == "linux":
        assert check_disk.disk(Path("/proc/self")).state == BROKEN  # where no file can be made
    usage = shutil.disk_usage(tmp_path)._replace(free=2**20)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage)
        assert check_disk.disk(tmp_path).text.startswith(f"{tmp_path}: 1.00 MiB free")
        assert check_disk.disk(tmp_path).state == WARNING
    with monkeypatch.context() as patch:

        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(os, "fsync", full)
        assert "no file can be kept there (No space left" in check_disk.disk(tmp_path).text
    with monkeypatch.context() as patch:
        patch.setattr(os, "urandom", lambda n: bytearray(n) if n else b"")
        patch.setattr(os, "fsync", lambda fd: os.pwrite(fd, b"x", 5))
        assert "reads other bytes" in check_disk.disk(tmp_path).text
    assert list(tmp_path.iterdir()) == []


@contextlib.contextmanager
def compiling_to(place: Any) -> Iterator[None]:
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", None if place is None else str(place))
    try:
        yield
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with compiling_to(None):
        assert "not kept: every start compiles anew" in check_disk.cache().text
        assert check_disk.cache().state == WARNING
    with compiling_to("gs://bucket/cache"):
        assert check_disk.cache() == (OK, "gs://bucket/cache, not looked at", "")
    (tmp_path / "file").write_text("")
    with compiling_to(tmp_path / "file" / "cache"):
        state, text, _ = check_disk.cache()
        assert state == WARNING
        assert f"cannot be written ({tmp_path / 'file'} is no folder" in text
    place = tmp_path / "made" / "later"
    with compiling_to(place):
        assert check_disk.cache().state == OK
        assert f"{place}: 0 compiled programs, " in check_disk.cache().text
        jax.config.update("jax_enable_compilation_cache", False)
        assert check_disk.cache().fix == "unset it"
        jax.config.update("jax_enable_compilation_cache", True)
        place.mkdir(parents=True)
        (place / "a-cache").write_text("")
        assert f"{place}: 1 compiled programs, " in check_disk.cache().text
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        full = check_disk.cache()
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert full.state == WARNING
        assert "cannot be written (File too large)" in full.text
        usage = shutil.disk_usage(place)._replace(free=2**20)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
        assert check_disk.cache().state == WARNING
        assert check_disk.cache().text.endswith("1.00 MiB free")
    assert [path.name for path in place.iterdir()] == ["a-cache"]


def test_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    for broken, told in ((lambda *_: None, "two hold"), (none, "No locks available")):
        monkeypatch.setattr(fcntl, "flock", broken)
        state, text, _ = check_disk.disk(tmp_path)
        assert state == WARNING
        assert told in text


def test_memory_of_a_container(tmp_path: Path) -> None:
    assert check_compute.available(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:   8000 kB\n")
    assert check_compute.available(tmp_path) == 8000 * 1024
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    limit = tmp_path / "sys/fs/cgroup/memory.max"
    limit.write_text("max\n")
    assert check_compute.available(tmp_path) == 8000 * 1024
    limit.write_text("4096\n")
    assert check_compute.available(tmp_path) == 4096
    limit.unlink()
    limit = tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes"  # of the older kind
    limit.parent.mkdir()
    limit.write_text("9223372036854771712\n")
    assert check_compute.available(tmp_path) == 8000 * 1024
    limit.write_text("8192\n")
    assert check_compute.available(tmp_path) == 8192


def test_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for left, state in ((2**20, WARNING), (2**32, OK), (None, OK)):
        monkeypatch.setattr(check_compute, "available", lambda left=left: left)
        assert check_compute.memory().state == state
    assert check_compute.memory().text == "not known"


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
    assert "120 images, 3 classes; train, val read at " in text
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


def test_labels_out_of_range() -> None:
    assert check_run.out_of_range(np.array([0, 2]), 3) is None
    assert check_run.out_of_range(np.array([0, 3]), 3) == 3
    assert check_run.out_of_range(np.array([-1]), 3) == -1
    np.testing.assert_array_equal(
        check_run._classes({"label": np.array([[0, 1, 1], [1, 0, 0]])}), [1, 2, 0]
    )
