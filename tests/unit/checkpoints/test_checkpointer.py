# SPDX-License-Identifier: Apache-2.0
import os
import shutil
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.checkpoints import CheckpointConfig
from vit_jax.checkpoints.checkpointer import Checkpointer, CorruptCheckpoints
from vit_jax.errors import UserError
from vit_jax.train.state import TrainState


def _params(seed, width=64):
    kernel = jax.random.normal(jax.random.key(seed), (64, width))
    return {"blocks": {"mlp": {"kernel": kernel}}, "head": {"bias": jnp.ones(4, jnp.bfloat16)}}


def _state(step=0, width=64):
    params = _params(step, width)
    return TrainState(
        step=jnp.int32(step),
        params=params,
        model_state={},
        opt_state=optax.adam(0.1).init(params),
        ema=None,
        rng=jax.random.key(step),
    )


def _abstract(state):
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )


def _plain(tree):
    return jax.tree.map(
        lambda x: np.asarray(
            jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        ),
        tree,
    )


def _assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, _plain(a), _plain(b))
    assert jax.tree.structure(a) == jax.tree.structure(b)


def _open(directory, **settings):
    return Checkpointer(directory, CheckpointConfig(**settings))


def _save_all(directory, steps, **settings):
    ck = _open(directory, **settings)
    for step in steps:
        assert ck.save(step, _state(step), metadata={"at": step})
    ck.wait()


def _data_file(directory, step):
    """The file with the arrays' bytes: the largest."""
    files = [f for f in (directory / str(step)).rglob("*") if f.is_file()]
    return max(files, key=lambda f: f.stat().st_size)


def _flip(file, at=0.5):
    raw = bytearray(file.read_bytes())
    raw[int(len(raw) * at)] ^= 16
    file.write_bytes(raw)


def test_metadata_reads_no_arrays(tmp_path):
    _save_all(tmp_path, [1])
    _data_file(tmp_path, 1).unlink()
    assert _open(tmp_path).metadata(1) == {"at": 1}


def test_save_returns_before_the_work_behind_it_is_done(tmp_path, monkeypatch):
    original, returned = Checkpointer._remove, threading.Event()

    def slow(self, steps):
        assert returned.wait(60)
        original(self, steps)

    monkeypatch.setattr(Checkpointer, "_remove", slow)
    ck = _open(tmp_path)
    ck.save(1, _state(1), metadata={})  # returns, though nothing can be removed yet
    waiting = threading.Thread(target=ck.wait)
    waiting.start()
    assert waiting.is_alive()
    returned.set()
    waiting.join(60)
    assert not waiting.is_alive()


def test_abstract_tree_without_shardings_restores_to_one_device(tmp_path):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    state = jax.device_put(_state(3), NamedSharding(mesh, P()))
    ck = _open(tmp_path)
    ck.save(3, state, metadata={})
    ck.wait()
    restored = _open(tmp_path).restore(jax.eval_shape(_state)).state
    _assert_equal(restored, state)
    assert restored.params["head"]["bias"].sharding.device_set == {jax.local_devices()[0]}


def test_all_damaged_lists_each_reason(tmp_path):
    _save_all(tmp_path, [1, 2])
    _flip(_data_file(tmp_path, 2))
    (tmp_path / "1" / "_CHECKPOINT_METADATA").unlink()
    with pytest.raises(CorruptCheckpoints) as caught:
        _open(tmp_path).restore(_abstract(_state()))
    text = str(caught.value)
    assert isinstance(caught.value, UserError)
    assert "step 2: params/blocks/mlp/kernel" in text
    assert "step 1: its metadata" in text
    assert "\n" not in text


def test_unreadable_metadata_does_not_count_as_the_latest_step(tmp_path):
    _save_all(tmp_path, [1, 2])
    (tmp_path / "2" / "_CHECKPOINT_METADATA").write_text("{}")
    ck = _open(tmp_path)
    assert ck.latest_step() == 1
    assert ck.metadata(1) == {"at": 1}
    with pytest.raises(CorruptCheckpoints, match="metadata is damaged"):
        ck.metadata(2)
    with pytest.raises(UserError, match="no checkpoint of step 3"):
        ck.metadata(3)


def test_changed_metadata_is_damage(tmp_path):
    _save_all(tmp_path, [1, 2])
    file = tmp_path / "2" / "_CHECKPOINT_METADATA"
    changed = file.read_text().replace(r"\"at\": 2", r"\"at\": 3")
    assert changed != file.read_text()
    file.write_text(changed)
    assert _open(tmp_path).restore(_abstract(_state())).metadata == {"at": 1}


def test_restore_step(tmp_path):
    _save_all(tmp_path, [1, 2])
    ck = _open(tmp_path)
    state, step, metadata = ck.restore_step(_abstract(_state()), 1)
    assert (step, metadata) == (1, {"at": 1})
    _assert_equal(state, _state(1))
    with pytest.raises(UserError, match=r"no checkpoint of step 9.*there: 1, 2"):
        ck.restore_step(_abstract(_state()), 9)
    _flip(_data_file(tmp_path, 2))
    with pytest.raises(CorruptCheckpoints, match="kernel"):
        ck.restore_step(_abstract(_state()), 2)


def test_keep_best_off(tmp_path):
    ck = _open(tmp_path, keep=1, keep_best=0)
    for step, score in enumerate([0.9, 0.1, 0.2]):
        ck.save(step, _state(step), metadata={}, metrics={"val/top1": score})
    ck.wait()
    assert ck.steps() == [2]


def test_older_checkpoint_stays_until_the_newer_is_complete(tmp_path, monkeypatch):
    """keep=1: while a save is under way, and when it fails, the one before is there."""
    ck = _open(tmp_path, keep=1, keep_best=0)
    ck.save(1, _state(1), metadata={})
    ck.wait()
    original = Path.rename
    at_deletion = []
    monkeypatch.setattr(
        Path,
        "rename",
        lambda self, to: (at_deletion.append(sorted(os.listdir(tmp_path))), original(self, to))[1],
    )
    ck.save(2, _state(2), metadata={})
    assert "1" in os.listdir(tmp_path)
    ck.wait()
    assert at_deletion == [["1", "2"]]


def test_saving_a_step_that_is_there(tmp_path):
    ck = _open(tmp_path)
    assert ck.save(1, _state(1), metadata={})
    assert not ck.save(1, _state(1), metadata={})
    ck.wait()
    ck = _open(tmp_path)
    ck.restore(_abstract(_state()))
    assert not ck.save(1, _state(1), metadata={})


def test_run_that_did_not_restore_may_not_write_over_another(tmp_path):
    _save_all(tmp_path, [5])
    ck = _open(tmp_path)
    for step in (3, 5):
        with pytest.raises(UserError, match="step 5"):
            ck.save(step, _state(step), metadata={})
    assert ck.save(6, _state(6), metadata={})
    ck.wait()


def test_kill_half_way_through_a_deletion_leaves_no_half(tmp_path, monkeypatch):
    ck = _open(tmp_path, keep=1, keep_best=0)
    ck.save(1, _state(1), metadata={})
    ck.wait()
    monkeypatch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)  # as if killed before
    ck.save(2, _state(2), metadata={})
    ck.wait()
    monkeypatch.undo()
    assert sorted(os.listdir(tmp_path)) == ["1.deleted", "2"]
    ck = _open(tmp_path, keep=1, keep_best=0)
    assert ck.steps() == [2]
    ck.save(3, _state(3), metadata={})
    ck.wait()
    assert os.listdir(tmp_path) == ["3"]


def test_what_a_failed_save_still_wrote_is_removed_by_the_next(tmp_path):
    ck = _open(tmp_path)
    (tmp_path / "1.orbax-checkpoint-tmp" / "state").mkdir(parents=True)
    ck.save(2, _state(2), metadata={})
    ck.wait()
    assert os.listdir(tmp_path) == ["2"]
