# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest

from vit_jax.process import startup


@pytest.mark.parametrize(
    "asked, plugin, node, left_out",
    [
        ("", "libtpu", "", True),
        ("", "", "", False),  # others' plugins are none of ours
        ("tpu,cpu", "libtpu", "", False),
        ("", "jax_cuda13_plugin", "dxg", False),  # a GPU under WSL has no other device file
    ],
)
def test_plugins_are_left_out_where_there_is_no_device(
    asked, plugin, node, left_out, monkeypatch, tmp_path
):
    done = []
    (tmp_path / node).touch()
    monkeypatch.setattr(startup, "_DEVICES", tmp_path)
    monkeypatch.setattr(startup, "stay_on_cpu", lambda: done.append(True))
    monkeypatch.setattr(startup.sys, "platform", "linux")
    monkeypatch.setattr(startup.importlib.util, "find_spec", lambda name: name == plugin or None)
    startup.ignore_plugins(asked)
    assert bool(done) == left_out


@pytest.mark.parametrize("given", ["", "relative"])
def test_a_cache_directory_that_is_no_absolute_path_is_ignored(monkeypatch, given):
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    monkeypatch.setenv("HOME", "/home/someone")
    assert startup.cache_home() == Path("/home/someone/.cache")


def test_the_programs_used_last_stay(tmp_path):
    for i, name in enumerate(["old", "used", "new"]):
        path = tmp_path / f"{name}-cache"
        path.write_bytes(b"x" * 100)
        os.utime(path, (100 + i, 100 + i))
    os.utime(tmp_path / "used-cache", (500, 101))
    (tmp_path / "something else").write_bytes(b"x" * 1000)
    startup._prune(tmp_path, 300)
    assert len(list(tmp_path.iterdir())) == 4
    startup._prune(tmp_path, 250)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["new-cache", "something else", "used-cache"]
    startup._prune(tmp_path, 199)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["something else", "used-cache"]
