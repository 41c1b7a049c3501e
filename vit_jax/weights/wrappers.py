# SPDX-License-Identifier: Apache-2.0
"""What training code puts before the names of a network's tensors, taken away again.

torch.compile, FSDP and checkpointed activations name a layer of their own anywhere; DataParallel,
Lightning and training scripts put the network under a name.
"""

import re
from collections.abc import Callable, Iterable

from vit_jax.errors import UserError
from vit_jax.weights.files import WeightsFile

_LAYERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")
_ANYWHERE = re.compile(rf"(?<![^.])(?:{'|'.join(_LAYERS)})\.")
_FIRST = ("module.", "model.", "state_dict.")  # no network's own, where all names have it
_NETWORKS = (
    *(*_FIRST, "backbone.", "encoder.", "student.", "teacher.", "ema.", "ema_model.", "model_ema."),
    *("net.", "network.", "base_model.", "trunk.", "target_encoder.", "image_encoder.", "vit."),
)
_DEPTH = 6


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
