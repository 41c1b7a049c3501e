# SPDX-License-Identifier: Apache-2.0
"""References to weights, "KIND:PATH": which kinds there are, and their two parts."""

import os

from vit_jax.errors import UserError, unknown

KINDS = ("hub", "hf")  # two names of one kind: a repository
CHECKPOINT = "ckpt"  # the kind that is a directory, not a file
_PLACES = {
    "npz": "FILE",
    "timm": "FILE",
    CHECKPOINT: "DIR",
    **dict.fromkeys(KINDS, "USER/NAME"),
}


def split(ref: str) -> tuple[str, str]:
    """Split a reference to weights in kind and path; raises UserError: no such kind, or no path."""
    scheme, _, path = ref.partition(":")
    kinds = {name: f"{name}:{place}" for name, place in _PLACES.items()}
    if scheme not in kinds:
        raise unknown("kind of weights in", ref, kinds.values())
    if not path:
        what = "repository" if scheme in KINDS else "file"
        raise UserError(f"{ref!r} names no {what}: give {kinds[scheme]}")
    return scheme, os.path.expanduser(path)  # a shell does so at the start of a word only
