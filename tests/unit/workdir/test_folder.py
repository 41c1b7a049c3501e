# SPDX-License-Identifier: Apache-2.0
import errno
import os
from pathlib import Path

import jax
import pytest

from vit_jax.errors import IO_ERROR, UserError
from vit_jax.workdir import folder as workdir


def test_lock_ends_with_the_block_even_by_an_error(tmp_path):
    with pytest.raises(RuntimeError), workdir.lock(tmp_path):
        raise RuntimeError
    with workdir.lock(tmp_path):
        pass


def test_second_lock_in_one_process_is_refused(tmp_path):
    with (
        workdir.lock(tmp_path),
        pytest.raises(UserError, match=f"pid {os.getpid()}"),
        workdir.lock(tmp_path),
    ):
        pass


def test_only_process_0_locks(tmp_path, monkeypatch):
    with workdir.lock(tmp_path):
        monkeypatch.setattr(jax, "process_index", lambda: 1)
        with workdir.lock(tmp_path):
            pass


@pytest.mark.parametrize("name", ["gs://bucket/run", "/home/me/gs:/bucket/run", "s3://b"])
def test_bucket_is_refused(name):
    for cache, named in ((True, "--out"), (False, "workdir")):
        refused = pytest.raises(UserError, match=f"^{named} .*mount")
        with refused, workdir.lock(Path(name), cache=cache):
            pass


def test_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"), workdir.lock(tmp_path / "file" / "run"):
        pass


def test_what_the_machine_lacks_has_a_status_of_its_own(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(args[0]))

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(UserError, match="Too many open files") as caught, workdir.lock(tmp_path):
        pass
    assert caught.value.status == IO_ERROR


def test_finished(tmp_path):
    assert workdir.finished_step(tmp_path) is None
    workdir.mark_finished(tmp_path, 1500)
    assert workdir.finished_step(tmp_path) == 1500
    workdir.mark_finished(tmp_path, 3000)
    assert workdir.finished_step(tmp_path) == 3000
    for text in ("torn {", "[" * 100_000, "[1]", "{}", '{"step": null}', '{"step": 1e999}'):
        (tmp_path / "finished.json").write_text(text)
        assert workdir.finished_step(tmp_path) is None


def test_the_config_of_a_run_that_has_a_checkpoint(tmp_path):
    (tmp_path / "config.json").write_text('{"seed": 3}')
    assert workdir.saved_config(tmp_path) == {}
    (tmp_path / "checkpoints" / "7").mkdir(parents=True)
    assert workdir.saved_config(tmp_path) == {"seed": 3}
    for text in ("[3]", "torn {", "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        assert workdir.saved_config(tmp_path) == {}
    (tmp_path / "config.json").unlink()
    assert workdir.saved_config(tmp_path) == {}
