# SPDX-License-Identifier: Apache-2.0
"""What every reader returns, and asks first: is it a file of weights, with names fit to print?

What training code puts before the names of a network's tensors is taken away again: torch.compile,
FSDP and checkpointed activations name a layer of their own anywhere; DataParallel, Lightning and
training scripts put the network under a name.
"""

import difflib
import hashlib
import re
import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vit_jax.errors import UserError
from vit_jax.storage import foreign
from vit_jax.weights.layout import Shape

# Published checkpoints hold some hundreds; optimizer state triples that.
MAX_TENSORS = 2**16
MAX_NAME = 512
# No weights have more axes, and no memory holds a longer one.
_MAX_AXES, MAX_SIDE = 32, 2**48
_LAYERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")
_ANYWHERE = re.compile(rf"(?<![^.])(?:{'|'.join(_LAYERS)})\.")
_FIRST = ("module.", "model.", "state_dict.")  # no network's own, where all names have it
_NETWORKS = (
    *(*_FIRST, "backbone.", "encoder.", "student.", "teacher.", "ema.", "ema_model.", "model_ema."),
    *("net.", "network.", "base_model.", "trunk.", "target_encoder.", "image_encoder.", "vit."),
)
_DEPTH = 6


class WeightsFile(NamedTuple):
    """A file of named tensors that is read one tensor at a time."""

    name: str  # what to call it in messages: its path
    shapes: Mapping[str, Shape]  # that of every tensor, from headers alone
    read: Callable[[str], np.ndarray]  # one tensor as float32; raises UserError: it has no floats
    metadata: Mapping[str, str] = {}  # what a .safetensors file says besides


class NoSuchFile(UserError):
    """There is no file of that name, and none of a similar one."""


def digest(values: Mapping[str, np.ndarray]) -> str:
    """Return 16 hexadecimal digits of the names, shapes and bits of arrays."""
    total = hashlib.sha256()
    for name in sorted(values):
        total.update(f"{name} {values[name].shape} ".encode())
        total.update(values[name].tobytes())
    return total.hexdigest()[:16]


def is_shape(sides: Sequence[Any]) -> bool:
    """Return whether an array can have this shape, which a file claims."""
    fit = all(type(side) is int and 0 <= side < MAX_SIDE for side in sides)
    return fit and len(sides) <= _MAX_AXES


def first_bytes(path: str, count: int = 64) -> bytes:
    """Return how a file begins.

    Raises UserError: an address, no or an empty file, a directory, a git-LFS pointer, a web page.
    """
    if "://" in path:
        address = path.replace("gs://", "https://storage.googleapis.com/")
        advice = f"download it: curl -O {address}"
        raise UserError(f"{path}: weights are read from local files; {advice}")
    file = Path(path)
    try:  # a name may be too long, a folder closed: `exists` hides it from Python 3.14 on
        mode = file.stat().st_mode
        if stat.S_ISDIR(mode):
            raise UserError(f"{path} is a directory; give the file of weights in it")
        if not stat.S_ISREG(mode):
            raise UserError(f"{path} is not a plain file")
        with file.open("rb") as stream:
            start = stream.read(count)
    except (FileNotFoundError, NotADirectoryError):
        foreign.check_link(file)
        names = [p.name for p in file.parent.iterdir()] if file.parent.is_dir() else []
        found = difflib.get_close_matches(file.name, names, n=1)
        near = f"; did you mean {found[0]!r}?" if found else ""
        raise (UserError if near else NoSuchFile)(f"{path}: no such file{near}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if not start:
        raise UserError(f"{path} is empty; download it again")
    if start.startswith(b"version https://git-lfs"):
        raise UserError(f"{path} is a git-LFS pointer, not the weights; fetch them: git lfs pull")
    if start.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        raise UserError(f"{path} is a web page, not weights; download the file that it links to")
    return start


def check_names(path: str, names: Collection[str]) -> None:
    """Raise UserError for names too long for a message, or more names than any model has."""
    if len(names) > MAX_TENSORS:
        raise UserError(f"{path} holds {len(names):,} tensors; at most {MAX_TENSORS:,} are read")
    for name in names:
        if len(name) > MAX_NAME or not name.isprintable():
            raise UserError(f"{path}: {name[:40]!r}... is not the name of a parameter")


def damaged(path: str, key: str, error: BaseException) -> UserError:
    """Build the error for an unreadable `key` of a file ("" for the whole file)."""
    where = f"{path}: {key}" if key else path
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return UserError(f"{where} is damaged ({reason}); download the file again")


def bare(source: WeightsFile) -> WeightsFile:
    """Return a file without the layers of wrappers, and without what all its names begin with."""
    source = _renamed(source, {key: _ANYWHERE.sub("", key) for key in source.shapes})
    for _ in range(_DEPTH):
        keys = source.shapes
        first = next((p for p in _FIRST if keys and all(key.startswith(p) for key in keys)), "")
        if not first:
            break
        source = _renamed(source, {key: key.removeprefix(first) for key in keys})
    return source


def unwrapped(source: WeightsFile, fits: Callable[[WeightsFile], bool]) -> WeightsFile:
    """Return a file with the network's own names, where they are found below others.

    Args:
        source: the file; it is returned as it is where it fits.
        fits: whether a file has all that the model needs, by name.

    Raises UserError: several networks in one file fit.
    """
    plain = bare(source)
    if fits(source):
        return source
    tried = [plain]
    for _ in range(_DEPTH):
        fit = {name: each for name, each in _below(tried) if fits(each)}
        if fit_bare := [each for each in tried if fits(each)]:
            return fit_bare[0]
        if len(fit) > 1:
            raise UserError(
                f"{source.name} holds {len(fit)} networks that fit, under {', '.join(fit)}; keep "
                "one of them in a file of its own"
            )
        if fit:
            return next(iter(fit.values()))
        tried = [each for _, each in _below(tried)]
    return plain


def _below(sources: Iterable[WeightsFile]) -> list[tuple[str, WeightsFile]]:
    """Return each network of files, by its name there; other tensors keep theirs."""
    found = []
    for source in sources:
        first = {f"{key.partition('.')[0]}." for key in source.shapes}
        any_name = first - set(_NETWORKS) if len(first) == 1 else ()  # that all of it is under
        for name in (*_NETWORKS, *any_name):
            if any(key.startswith(name) for key in source.shapes):
                keys = {key: key.removeprefix(name) for key in source.shapes}
                if len(set(keys.values())) == len(keys):
                    found.append((name, _renamed(source, keys)))
    return found


def _renamed(source: WeightsFile, names: dict[str, str]) -> WeightsFile:
    old = {new: key for key, new in names.items()}
    if len(old) < len(names):
        raise UserError(f"{source.name} has tensors of one name, once inside a wrapper")
    if all(new == key for new, key in old.items()):
        return source
    shapes = {new: source.shapes[key] for new, key in old.items()}
    return source._replace(shapes=shapes, read=lambda new: source.read(old[new]))
