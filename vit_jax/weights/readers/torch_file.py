# SPDX-License-Identifier: Apache-2.0
"""Read PyTorch's .pth, .pt and .bin files where PyTorch is installed; tensors only, never code.

The one module that imports torch, and only when such a file is opened.
"""

import argparse
import contextlib
import logging
import pathlib
import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from vit_jax.errors import UserError
from vit_jax.weights.files import WeightsFile, check_names, damaged, first_bytes

_log = logging.getLogger(__name__)

# Under which key a training script puts the network's state_dict; the first that is there is read.
WRAPPERS = (
    *("model", "state_dict", "model_ema", "state_dict_ema"),
    *("module", "teacher", "target_encoder"),  # EVA, DINO, I-JEPA
    *("model_state_dict", "model_state", "state", "net", "network", "ema", "student"),
)


@contextlib.contextmanager
def opened(path: str) -> Iterator[WeightsFile]:
    """Open a PyTorch file as a WeightsFile; the data stay on disk until they are read.

    Raises UserError: no such file, no PyTorch, a file that holds more than tensors.
    """
    is_zip = first_bytes(path).startswith(b"PK")
    if is_zip:
        _check_zip(path)
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(
            f"{path} is a PyTorch file: install torch to read it (pip install torch), or convert "
            "it to safetensors where torch is installed"
        ) from None
    try:
        with torch.serialization.safe_globals(_PLAIN):
            # Files from before PyTorch 1.6 are no zips and can't be mapped.
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:  # a pickle of a stranger may raise anything
        code = re.search(r"GLOBAL ([\w.]+)", str(error))
        if code:
            raise UserError(
                f"{path} holds more than tensors ({code[1][:80]}), which could run code: not read; "
                "where you trust it, save its state_dict as safetensors"
            ) from None
        if isinstance(error, pickle.UnpicklingError):  # its text is a page of advice
            error = ValueError("no pickle of tensors")
        raise damaged(path, "", error) from None
    tensors = _unwrap(path, loaded)
    for key, value in tensors.items():
        dense = isinstance(value, torch.Tensor) and value.layout is torch.strided
        if not dense or value.is_quantized or value.is_meta or value.is_nested:
            nested = getattr(value, "is_nested", False)
            kind = "a nested tensor" if nested else type(value).__name__
            raise UserError(f"{path}: {key} is no plain tensor ({kind})")

    def read(key: str) -> np.ndarray:
        value = tensors[key]
        if not value.is_floating_point():
            raise UserError(f"{path}: {key} is {value.dtype}, not a tensor of floats")
        return value.detach().float().numpy()

    yield WeightsFile(path, {key: tuple(value.shape) for key, value in tensors.items()}, read)


_scalar = np.float64(0).__reduce__()[0]
# What training scripts store beside the weights: parsed flags, paths, numbers of numpy's (their
# constructor has two names, before and since numpy 2).
_PLAIN = [
    argparse.Namespace,
    pathlib.PosixPath,
    (_scalar, "numpy.core.multiarray.scalar"),
    (_scalar, "numpy._core.multiarray.scalar"),
    np.dtype,
    *(type(np.dtype(kind)) for kind in ("f4", "f8", "i4", "i8")),
]


def _check_zip(path: str) -> None:
    """Refuse an archive that torch.save did not write, or that would grow when it is read."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise damaged(path, "", error) from None
    if not any(info.filename.endswith("data.pkl") for info in infos):
        raise UserError(f"{path} is not a PyTorch file; an .npz of Google's is read as npz:FILE")
    if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
        raise UserError(f"{path}: its parts are compressed, which PyTorch never does; not read")


def _unwrap(path: str, loaded: Any) -> Mapping[str, Any]:
    if not isinstance(loaded, Mapping):
        raise UserError(f"{path} holds a {type(loaded).__name__}, not a state_dict")
    tensors: Mapping[Any, Any] = loaded
    while found := [name for name in WRAPPERS if isinstance(tensors.get(name), Mapping)]:
        if len(found) > 1:
            _log.warning("%s holds %s: reading %s", path, ", ".join(found), found[0])
        tensors = tensors[found[0]]
    if not all(isinstance(key, str) for key in tensors):
        raise UserError(f"{path} holds no state_dict: its keys are not names")
    check_names(path, tensors)
    return tensors
