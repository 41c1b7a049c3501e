# SPDX-License-Identifier: Apache-2.0
"""The reader of PyTorch's files: wrappers, dtypes, and pickles that mean harm."""

import argparse
import builtins
import logging
import os
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import refused_by
from vit_jax.errors import UserError
from vit_jax.weights.readers import torch_file

X = np.arange(12, dtype=np.float32).reshape(3, 4) / 8


@pytest.fixture(scope="module")
def torch() -> Any:
    """PyTorch, imported by the one worker that needs it: an import takes seconds."""
    return pytest.importorskip("torch", reason="needs torch")


def save(path: Path, what: Any, **options: Any) -> str:
    import torch

    torch.save(what, path, **options)
    return str(path)


def read(path: str) -> dict[str, np.ndarray]:
    with torch_file.opened(path) as source:
        assert source.name == path
        found = {key: source.read(key) for key in source.shapes}
        assert {key: value.shape for key, value in found.items()} == source.shapes
        return found


def refused(path: str, code: str = "") -> str:
    """Return the one line with which a file is refused, by `code` where that is of another file."""
    with refused_by(code) if code else pytest.raises(UserError) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message
    assert path in message
    return message


@pytest.mark.parametrize("is_zip", [True, False])
def test_reads_every_float(torch: Any, is_zip: bool, tmp_path: Path) -> None:
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    state = {str(kind): torch.from_numpy(X).to(kind) for kind in dtypes}
    state["parameter"] = torch.nn.Parameter(torch.from_numpy(X))
    state["transposed"] = torch.from_numpy(np.ascontiguousarray(X.T)).T
    path = save(tmp_path / "x.pth", state, _use_new_zipfile_serialization=is_zip)
    for key, value in read(path).items():
        assert value.dtype == np.float32, key
        np.testing.assert_array_equal(value, X, err_msg=key)


def test_unwraps_and_says_which(
    torch: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    w = torch.from_numpy(X)
    # As the scripts of DeiT and Swin save them.
    flags = argparse.Namespace(lr=1e-3, output=Path("x"), best=np.float64(81.2))
    for name in torch_file.WRAPPERS:
        path = save(tmp_path / "x.pth", {name: {"w": w}, "epoch": 3, "args": flags})
        assert list(read(path)) == ["w"]
    assert not caplog.records
    path = save(tmp_path / "x.pth", {"model_ema": {"w": w + 1}, "model": {"w": w}})
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(read(path)["w"], X)
    assert "holds model, model_ema: reading model" in caplog.text


def test_only_tensors(torch: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    assert "step is torch.int64, not a tensor of floats" in refused(
        save(path, {"step": torch.tensor(3)})
    )
    assert "epoch is no plain tensor (int)" in refused(save(path, {"epoch": 3}))
    sparse = torch.from_numpy(X).to_sparse()
    assert "w is no plain tensor" in refused(save(path, {"w": sparse}))
    with warnings.catch_warnings(action="ignore"):  # torch's, of what it may change
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert "w is no plain tensor (a nested tensor)" in refused(save(path, {"w": nested}))
    assert "holds a list" in refused(save(path, [torch.zeros(1)]))
    assert "its keys are not names" in refused(save(path, {1: torch.zeros(1)}))
    refused(save(path, {"a\nb": torch.zeros(1)}), "weights.files.check_names")


class Bomb:
    def __reduce__(self) -> tuple:
        return (os.mkdir, ("pickle_was_run",))


@pytest.mark.parametrize("is_zip", [True, False])
def test_pickles_are_refused_and_not_run(
    torch: Any, is_zip: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    what = {"w": torch.zeros(1), "evil": Bomb()}
    path = save(tmp_path / "x.pth", what, _use_new_zipfile_serialization=is_zip)
    assert f"holds more than tensors ({os.mkdir.__module__}.mkdir), which" in refused(path)
    assert not Path("pickle_was_run").exists()


def test_damaged_files(torch: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    for is_zip in (True, False):
        save(path, {"w": torch.zeros(100)}, _use_new_zipfile_serialization=is_zip)
        good = path.read_bytes()
        for size in range(1, len(good), 97):
            path.write_bytes(good[:size])
            refused(str(path))
    path.write_bytes(b"\x80\x02not a pickle")
    assert "(no pickle of tensors)" in refused(str(path), "weights.files.damaged")


def test_other_archives(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", w=X)
    assert "is read as npz:FILE" in refused(str(tmp_path / "x.npz"))
    with zipfile.ZipFile(tmp_path / "x.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", bytes(2**20))
    assert "its parts are compressed" in refused(str(tmp_path / "x.pth"))
    refused(str(tmp_path / "y.pth"), "weights.files.first_bytes")


def test_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.pth").write_bytes(b"\x80\x02}q\x00.")
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "torch":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    message = refused(str(tmp_path / "x.pth"))
    assert "pip install torch" in message
    assert "safetensors" in message
