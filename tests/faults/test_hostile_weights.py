# SPDX-License-Identifier: Apache-2.0
"""Weights that mean harm, read as a run reads them: refused by name, none run, memory bounded."""

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.unit.models.tiny import TINY
from tests.unit.weights import google_writer
from tests.unit.weights.readers.test_npz_file import npy
from vit_jax import models, weights

ROOT = Path(__file__).parents[2]
CFG = TINY["vit"]
BOMB = 2**28  # bytes
# Reads each file in turn; a line of JSON for each: what was said, and by how much memory grew at
# its peak. Linux forgets the peak when told so.
CODE = """
import json, re, sys
from tests.unit.models.tiny import TINY
from vit_jax import weights
from vit_jax.errors import UserError
def memory(name):
    return 1024 * int(re.search(name + r":\\s*(\\d+)", open("/proc/self/status").read())[1])
good, *refs = sys.argv[1:]
weights.load(good, TINY["vit"])
for ref in refs:
    open("/proc/self/clear_refs", "w").write("5")
    before = memory("VmRSS")
    try:
        weights.load(ref, TINY["vit"])
        told = "read"
    except UserError as error:
        told = str(error)
    print(json.dumps([told, memory("VmHWM") - before]))
"""


class Harm:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("code_was_run",))


def variables() -> dict[str, Any]:
    return google_writer.random_variables(models.abstract(CFG))


def google() -> dict[str, np.ndarray]:
    return google_writer.vit(variables()["params"], CFG.num_heads)


def timm() -> dict[str, np.ndarray]:
    return {key: np.ascontiguousarray(x) for key, x in weights.to_timm(variables(), CFG).items()}


def with_nan(value: np.ndarray) -> np.ndarray:
    value = value.copy()
    value.flat[-1] = np.nan
    return value


def write_npz(path: Path, arrays: dict[str, np.ndarray], members: dict[str, bytes]) -> None:
    """Write arrays, and members of any bytes in their place or beside them."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            if name not in members:
                archive.writestr(f"{name}.npy", npy(array))
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)


def zeros(shape: tuple[int, ...]) -> bytes:
    return npy(np.zeros(shape, np.float32))


def npz_files(folder: Path) -> dict[str, str]:
    """Write them; returns what each must be refused with, by its reference."""
    arrays, kernel = google(), "head/kernel"
    dim, classes = arrays[kernel].shape
    pickled = npy(np.array([Harm()], dtype=object), allow_pickle=True)
    lying = npy(arrays[kernel]).replace(b"(16, 3)", b"(96, 9)")
    cases = {
        "pickle": ({kernel: pickled}, f"{kernel} holds Python objects"),
        "lies": ({kernel: lying}, f"{kernel} lies"),
        "escapes": ({"../head/kernel": npy(arrays[kernel])}, "../head/kernel.npy points outside"),
        "nan": ({kernel: npy(with_nan(arrays[kernel]))}, f"{kernel} holds NaN or infinite"),
        "shape": (
            {kernel: npy(arrays[kernel].T)},
            f"{kernel}: in the file [{classes}, {dim}], here [{dim}, {classes}]",
        ),
        "bomb": ({kernel: zeros((BOMB // 4,))}, f"{kernel}: in the file [{BOMB // 4}]"),
        "beside": ({"extra": zeros((BOMB // 4,))}, f"more than the model: extra [{BOMB // 4}]"),
        "table": (
            {"Transformer/posembed_input/pos_embedding": zeros((1, BOMB // 64, 16))},
            f"pos_embedding: in the file [1, {BOMB // 64}, 16]",
        ),
    }
    told = {}
    for name, (members, expected) in cases.items():
        write_npz(folder / f"{name}.npz", arrays, members)
        told[f"npz:{folder}/{name}.npz"] = expected
    return told


def write_sparse(path: Path, arrays: dict[str, np.ndarray], extra: str) -> None:
    """Write a true file with a large tensor more, or in place of one, that takes no disk."""
    arrays = {key: array for key, array in arrays.items() if key != extra}
    header, at = {}, 0
    for key, size in [*((key, array.nbytes) for key, array in arrays.items()), (extra, BOMB)]:
        header[key] = {"dtype": "F32", "shape": [size // 4], "data_offsets": [at, at + size]}
        if key in arrays:
            header[key]["shape"] = list(arrays[key].shape)
        at += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(array.tobytes() for array in arrays.values())
        file.truncate(8 + len(text) + at)


def edited(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the header of a .safetensors file."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def safetensors_files(folder: Path) -> dict[str, str]:
    arrays, kernel = timm(), "head.weight"

    def longer(header: dict[str, Any]) -> None:
        header[kernel]["shape"][0] = 2**40

    def overlapping(header: dict[str, Any]) -> None:
        header[kernel]["data_offsets"] = header["head.bias"]["data_offsets"]
        header[kernel]["shape"] = header["head.bias"]["shape"]

    cases: dict[str, tuple[dict[str, np.ndarray], Any, str]] = {
        "lies": (arrays, longer, f"{kernel} is damaged"),
        "overlaps": (arrays, overlapping, f"{kernel} is damaged"),
        "escapes": ({**arrays, "../w": arrays[kernel]}, None, "more than the model: ../w [3, 16]"),
        "nan": ({**arrays, kernel: with_nan(arrays[kernel])}, None, f"{kernel} holds NaN"),
        "shape": (
            {**arrays, kernel: np.ascontiguousarray(arrays[kernel].T)},
            None,
            f"{kernel}: in the file [16, 3], here [3, 16]",
        ),
    }
    told = {}
    for name, (state, edit, expected) in cases.items():
        save_file(state, folder / f"{name}.safetensors")
        if edit:
            edited(folder / f"{name}.safetensors", edit)
        told[f"timm:{folder}/{name}.safetensors"] = expected
    for name, extra, expected in (
        ("bomb", kernel, f"{kernel}: in the file [{BOMB // 4}]"),
        ("beside", "extra", f"more than the model: extra [{BOMB // 4}]"),
    ):
        write_sparse(folder / f"{name}.safetensors", arrays, extra)
        told[f"timm:{folder}/{name}.safetensors"] = expected
    path = folder / "header.safetensors"
    with path.open("wb") as file:
        file.write(BOMB.to_bytes(8, "little"))
        file.truncate(2 * BOMB)
    told[f"timm:{path}"] = f"promises a header of {BOMB:,} bytes"
    # Headers of the longest that are looked at: of nothing, and of tensors without end.
    empty = b'{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    for name, each, count, expected in (
        ("nothing", b"{}", 700_000, "is damaged"),
        ("tensors", empty, 130_000, "holds 130,000 tensors"),
    ):
        text = b"{" + b",".join(b'"%d":%b' % (i, each) for i in range(count)) + b"}"
        path = folder / f"{name}.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text)
        told[f"timm:{path}"] = expected
    return told


def torch_files(folder: Path) -> dict[str, str]:
    import torch

    state = {key: torch.from_numpy(value) for key, value in timm().items()}
    kernel = "head.weight"
    large = torch.zeros(1, 1).expand(2**13, 2**13)  # one number on disk
    cases = {
        "code": ({**state, "evil": Harm()}, "holds more than tensors"),
        "nan": ({**state, kernel: torch.full((3, 16), np.nan)}, f"{kernel} holds NaN"),
        "shape": ({**state, kernel: state[kernel].T}, f"{kernel}: in the file [16, 3]"),
        "bomb": ({**state, kernel: large}, f"{kernel}: in the file [8192, 8192]"),
        "beside": ({**state, "extra": large}, "more than the model: extra [8192, 8192]"),
    }
    told = {}
    for name, (content, expected) in cases.items():
        torch.save(content, folder / f"{name}.pth")
        told[f"timm:{folder}/{name}.pth"] = expected
    return told


def good_file(folder: Path, family: str) -> str:
    if family == "npz":
        np.savez(folder / "good.npz", **google())
        return f"npz:{folder}/good.npz"
    if family == "pth":
        import torch

        torch.save({k: torch.from_numpy(v) for k, v in timm().items()}, folder / "good.pth")
        return f"timm:{folder}/good.pth"
    save_file(timm(), folder / "good.safetensors")
    return f"timm:{folder}/good.safetensors"


needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
FAMILIES = {"npz": npz_files, "safetensors": safetensors_files, "pth": torch_files}


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory by /proc")
@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=needs_torch if name == "pth" else ()) for name in FAMILIES]
)
def test_hostile_files(family: str, tmp_path: Path) -> None:
    told = FAMILIES[family](tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", CODE, good_file(tmp_path, family), *told],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for line, (ref, expected) in zip(done.stdout.splitlines(), told.items(), strict=True):
        said, growth = json.loads(line)
        assert expected in said, (ref, said)
        assert len(said.splitlines()) == 1
        assert growth < BOMB / 2, (ref, growth)
    assert not (tmp_path / "code_was_run").exists()
