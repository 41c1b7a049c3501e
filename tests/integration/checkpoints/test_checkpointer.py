# SPDX-License-Identifier: Apache-2.0
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.refusals import refused_by
from tests.unit.checkpoints.test_checkpointer import (
    _abstract,
    _assert_equal,
    _data_file,
    _flip,
    _open,
    _save_all,
    _state,
)
from vit_jax.checkpoints import Mode
from vit_jax.checkpoints.checkpointer import CorruptCheckpoints, SaveFailed

ROOT = Path(__file__).parents[3]


def test_round_trip_of_state_and_metadata(tmp_path):
    ck = _open(tmp_path)
    assert ck.restore(_abstract(_state())) is None
    assert ck.latest_step() is None
    metadata = {"config": {"a": [1, 2.5, None]}, "classes": ["é", "0"]}
    ck.save(7, _state(7), metadata=metadata, metrics={"val/top1": 0.5})
    ck.wait()
    again = _open(tmp_path)
    state, step, found = again.restore(_abstract(_state(0)))
    _assert_equal(state, _state(7))
    assert (step, found) == (7, metadata)
    assert again.steps() == [7]
    assert again.metadata(7) == metadata


def test_state_may_be_donated_right_after_save(tmp_path):
    ck = _open(tmp_path)
    big = {"x": jnp.arange(2_000_000.0)}
    expected = np.asarray(big["x"]).copy()
    bump = jax.jit(lambda s: {"x": s["x"] * 0 - 1}, donate_argnums=0)
    bump({"x": jnp.arange(2_000_000.0)})  # compile before, so that the race is as tight as can be
    abstract = _abstract(big)
    ck.save(1, big, metadata={})
    big = bump(big)
    ck.wait()
    np.testing.assert_array_equal(_open(tmp_path).restore(abstract).state["x"], expected)


@pytest.mark.parametrize("shape", [(1, 1), (2, 4), (2, 1)])
def test_restore_on_another_mesh(tmp_path, shape):
    eight = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    state = jax.tree.map(
        lambda x: jax.device_put(x, NamedSharding(eight, P("x") if x.ndim == 2 else P())), _state(3)
    )
    ck = _open(tmp_path)
    ck.save(3, state, metadata={})
    ck.wait()
    devices = jax.devices()[: shape[0] * shape[1]]
    mesh = jax.make_mesh(shape, ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=devices)
    wanted = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(
            x.shape, x.dtype, sharding=NamedSharding(mesh, P("x", "y") if x.ndim == 2 else P())
        ),
        state,
    )
    restored = _open(tmp_path).restore(wanted).state
    _assert_equal(restored, state)
    kernel = restored.params["blocks"]["mlp"]["kernel"]
    assert kernel.sharding == wanted.params["blocks"]["mlp"]["kernel"].sharding


KILLED = """
    import os, signal, sys, threading
    import jax, jax.numpy as jnp
    from vit_jax.checkpoints import CheckpointConfig
    from vit_jax.checkpoints.checkpointer import Checkpointer
    ck = Checkpointer(sys.argv[1], CheckpointConfig())
    ck.save(1, {"x": jnp.full(3_000_000, 1.0)}, metadata={"at": 1})
    ck.wait()
    ck.save(2, {"x": jax.random.normal(jax.random.key(0), (3_000_000,))}, metadata={"at": 2})
    while not any("2.orbax" in name for name in os.listdir(sys.argv[1])):
        pass
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _python(code, *args, **settings):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        **settings,
    )


def test_sigkill_during_an_async_save(tmp_path):
    done = _python(KILLED, tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [f.name for f in tmp_path.iterdir() if "tmp" in f.name], "killed too late to test"
    ck = _open(tmp_path)
    state, step, metadata = ck.restore({"x": jax.ShapeDtypeStruct((3_000_000,), jnp.float32)})
    assert (step, metadata) == (1, {"at": 1})
    np.testing.assert_array_equal(state["x"], np.ones(3_000_000))
    ck.save(2, state, metadata={})
    ck.wait()
    assert sorted(f.name for f in tmp_path.iterdir()) == ["1", "2"]


def test_flipped_byte_names_the_leaf_and_falls_back(tmp_path, caplog, capfd):
    _save_all(tmp_path, [1, 2])
    _flip(_data_file(tmp_path, 2))
    ck = _open(tmp_path)
    with caplog.at_level(logging.WARNING):
        state, step, metadata = ck.restore(_abstract(_state()))
    assert (step, metadata) == (1, {"at": 1})
    _assert_equal(state, _state(1))
    (line,) = [r.getMessage() for r in caplog.records]
    assert "checkpoint 2" in line
    assert "params/blocks/mlp/kernel" in line
    assert "Traceback" not in capfd.readouterr().err
    assert ck.steps() == [1]
    assert ck.latest_step() == 1


def _damages(directory):
    """Every file of the step deleted, cut in half, with a flipped byte."""
    files = sorted(f.relative_to(directory) for f in directory.rglob("*") if f.is_file())
    for name in files:
        yield f"delete {name}", name, lambda f: f.unlink()
        if (directory / name).stat().st_size:
            yield f"cut {name}", name, lambda f: os.truncate(f, f.stat().st_size // 2)
            yield f"flip {name}", name, _flip


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")  # Orbax's, of reads given up
def test_damage_to_any_file_either_falls_back_or_changes_nothing(tmp_path, caplog, capfd):
    _save_all(tmp_path / "whole", [1, 2])
    abstract = _abstract(_state())
    fell_back = []
    for what, name, damage in _damages(tmp_path / "whole" / "2"):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(tmp_path / "whole", copy)
        damage(copy / "2" / name)
        caplog.clear()
        state, step, metadata = _open(copy).restore(abstract)
        assert metadata == {"at": step}, what
        _assert_equal(state, _state(step))
        fell_back += [what] * (step == 1)
        assert len(caplog.records) == (step == 1), what
        assert "\n" not in caplog.text.strip(), what
    shown = capfd.readouterr()
    assert "Traceback" not in shown.out + shown.err
    for part in ("_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt", "/d/"):
        assert any(part in what for what in fell_back), part
    assert len(fell_back) >= 12


def test_missing_directory_and_empty_directory_are_damage(tmp_path, caplog):
    _save_all(tmp_path, [1, 2])
    shutil.rmtree(tmp_path / "2" / "state")
    assert _open(tmp_path).restore(_abstract(_state())).step == 1
    shutil.rmtree(tmp_path / "2")
    (tmp_path / "2").mkdir()
    assert _open(tmp_path).restore(_abstract(_state())).step == 1


def test_damaged_steps_are_saved_anew_and_never_outlive_good_ones(tmp_path, caplog):
    _save_all(tmp_path, [1, 2, 3], keep=3)
    _flip(_data_file(tmp_path, 2))
    _flip(_data_file(tmp_path, 3))
    ck = _open(tmp_path, keep=2)
    assert ck.restore(_abstract(_state())).step == 1
    assert ck.save(2, _state(2), metadata={"at": 2})
    ck.wait()
    assert ck.steps() == [1, 2]  # and not 2 and 3, the newest by number
    assert sorted(os.listdir(tmp_path)) == ["1", "2", "2.damaged", "3.damaged"]
    assert f"checkpoint 3 is damaged and kept as {tmp_path / '3.damaged'}" in caplog.text
    _assert_equal(_open(tmp_path).restore(_abstract(_state())).state, _state(2))


def test_changed_model_is_a_clear_refusal(tmp_path):
    _save_all(tmp_path, [1, 2])
    with refused_by("checkpoints.manifest.check_structure") as caught:
        _open(tmp_path).restore(_abstract(_state(width=32)))
    assert not isinstance(caught.value, CorruptCheckpoints)
    assert "params/blocks/mlp/kernel: float32[64, 64]" in str(caught.value)
    state = _state()
    other = state.replace(opt_state=optax.sgd(0.1, momentum=0.9).init(state.params))
    for wanted, name in ((other, "mu/"), (state.replace(ema=state.params), "ema/")):
        with refused_by("checkpoints.manifest.check_structure") as caught:
            _open(tmp_path).restore(_abstract(wanted))
        assert name in str(caught.value)


def test_keeps_last_and_best_across_a_restart(tmp_path):
    settings = {"keep": 2, "keep_best": 1, "metric": "val/top1"}
    scores = {1: 0.1, 2: 0.9, 3: 0.3, 4: 0.4}
    ck = _open(tmp_path, **settings)
    for step, score in scores.items():
        ck.save(step, _state(step), metadata={}, metrics={"val/top1": score, "val/loss": 1.0})
    ck.wait()
    assert ck.steps() == [2, 3, 4]
    assert ck.best_step() == 2
    ck.wait()
    ck = _open(tmp_path, **settings)
    assert (ck.steps(), ck.best_step(), ck.latest_step()) == ([2, 3, 4], 2, 4)
    ck.restore(_abstract(_state()))
    ck.save(5, _state(5), metadata={}, metrics={"val/top1": 0.5})
    ck.wait()
    assert ck.steps() == [2, 4, 5]
    ck.save(6, _state(6), metadata={}, metrics={"val/top1": 0.95})
    ck.wait()
    assert ck.steps() == [5, 6]
    assert sorted(os.listdir(tmp_path)) == ["5", "6"]


def test_best_by_smallest_ignores_missing_and_nan(tmp_path):
    ck = _open(tmp_path, keep=1, keep_best=1, metric="val/loss", mode=Mode.MIN)
    for step, metrics in enumerate(
        [{"val/loss": x} for x in (0.5, 0.2, float("nan"), float("-inf"))]
        + [None, {"val/loss": 0.3}]
    ):
        ck.save(step, _state(step), metadata={}, metrics=metrics)
    ck.wait()
    assert ck.best_step() == 1
    assert ck.steps() == [1, 5]


QUIET = """
    import gc, sys
    import jax
    jax.config.update("jax_num_cpu_devices", 8)
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec
    from vit_jax.checkpoints import CheckpointConfig
    from vit_jax.checkpoints.checkpointer import Checkpointer, CorruptCheckpoints
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("x"))
    x = jax.ShapeDtypeStruct((256, 256), jnp.float32, sharding=rows)
    try:
        print(Checkpointer(sys.argv[1], CheckpointConfig()).restore({n: x for n in sys.argv[2]}))
    except CorruptCheckpoints as error:
        print(error)
    gc.collect()
"""


def test_reads_that_fail_leave_nothing_else_on_the_screen(tmp_path):
    ck = _open(tmp_path)
    names = "abcdefghijklmnop"
    keys = jax.random.split(jax.random.key(0), len(names))
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    state = {n: jax.random.normal(k, (256, 256)) for n, k in zip(names, keys, strict=True)}
    ck.save(1, jax.device_put(state, NamedSharding(mesh, P("x"))), metadata={})
    ck.wait()
    _data_file(tmp_path, 1).unlink()  # every array fails at once
    done = _python(QUIET, tmp_path, names)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1, done.stdout
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "cannot be read" in done.stderr


LIMITED = """
    import json, os, resource, signal, sys
    import jax
    from vit_jax.checkpoints import CheckpointConfig
    from vit_jax.checkpoints.checkpointer import Checkpointer, SaveFailed
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write past the limit then fails with EFBIG
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    big = {"x": jax.random.normal(jax.random.key(0), (1_000_000,))}
    ck = Checkpointer(sys.argv[1], CheckpointConfig())
    said = []

    def attempt(action):
        try:
            action()
        except SaveFailed as error:
            said.append(str(error))

    ck.save(1, big, metadata={})
    ck.wait()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    attempt(lambda: ck.save(2, big, metadata={}))
    attempt(ck.wait)
    attempt(lambda: ck.save(3, big, metadata={}))
    ck._pending.join()
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    attempt(lambda: ck.save(4, big, metadata={}))  # reports 3, and saves 4
    attempt(ck.wait)
    print(json.dumps({"said": said, "steps": ck.steps(), "files": sorted(os.listdir(sys.argv[1]))}))
"""


def test_write_errors_surface_once_and_the_next_save_works(tmp_path):
    done = _python(LIMITED, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert told["steps"] == [1, 4]
    assert told["files"] == ["1", "4"]
    assert len(told["said"]) == 2
    for step, text in zip((2, 3), told["said"], strict=True):
        assert f"step {step} to {tmp_path}" in text
        assert "newest intact: step 1" in text
        assert "4.0 MB" in text
        assert "File too large" in text
        assert "\n" not in text


REFUSED = """
    import os, shutil, sys
    import jax.numpy as jnp
    from vit_jax.checkpoints import CheckpointConfig
    from vit_jax.checkpoints.checkpointer import Checkpointer, SaveFailed
    ck = Checkpointer(sys.argv[1], CheckpointConfig())
    os.rmdir(sys.argv[1])
    open(sys.argv[1], "w").close()  # no folder can be made in it
    try:
        ck.save(1, {"x": jnp.ones(4)}, metadata={})
        ck.wait()
    except SaveFailed as error:
        print(error)
"""


def test_saves_that_fail_at_once_leave_nothing_else_on_the_screen(tmp_path):
    done = _python(REFUSED, tmp_path / "checkpoints")
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert line.startswith("could not save the checkpoint of step 1 to ")
    assert "there is no other" in line
    assert "Not a directory" in line


def test_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "none", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        ck = _open(disk)
        big = {"x": jax.random.normal(jax.random.key(0), (1_000_000,))}
        ck.save(1, big, metadata={})
        ck.wait()
        ck.save(2, big, metadata={})
        with pytest.raises(SaveFailed, match=r"step 2 .*No space left on device"):
            ck.wait()
        assert os.listdir(disk) == ["1"]
        assert _open(disk).restore(_abstract(big)).step == 1
        subprocess.run(["mount", "-o", "remount,size=12m", str(disk)], check=True)
        ck.save(3, big, metadata={})
        ck.wait()
        assert ck.steps() == [1, 3]
    finally:
        subprocess.run(["umount", str(disk)], check=True)
