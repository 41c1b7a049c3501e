# SPDX-License-Identifier: Apache-2.0
"""Where the parameters of a fresh run come from: references "KIND:PATH", and the config group."""

import dataclasses
import os

from vit_jax.errors import UserError, unknown
from vit_jax.settings import fields
from vit_jax.weights.resize import ResizeRule

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


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class InitConfig:
    """Weights to start from; read once, when a run has no checkpoint of its own to continue.

    Attributes:
        weights: "npz:FILE", "timm:FILE", "hub:USER/NAME" of the Hugging Face Hub, or of another
            run "ckpt:DIR", "ckpt:DIR@STEP", "ckpt:DIR@best", "ckpt:DIR@latest"; "" starts from
            random parameters.
        skip: regexes over parameter names; what they find is not read, and starts as it would have
            without `weights`.
        resize: the rule that resizes position tables, bias tables and patch kernels.
        ema: take the moving average of the other run's parameters, not the parameters.
        new_head: start the head anew where the other's has other classes, instead of refusing it.
    """

    weights: str = ""
    skip: tuple[str, ...] = ()
    resize: ResizeRule = ResizeRule.AUTO
    ema: bool = False
    new_head: bool = False

    def check(self) -> None:
        """Refuse what can be refused without the file, naming the field."""
        if not self.weights:
            if dataclasses.replace(self, new_head=False) != InitConfig():
                raise UserError(
                    "init.skip, init.resize and init.ema need init.weights: set it",
                    field="init.skip",
                )
            return
        kind, _ = split(self.weights)
        for pattern in self.skip:
            fields.regex("init.skip", pattern)
        if self.ema and kind != CHECKPOINT:
            raise UserError(
                "init.ema chooses within a run's checkpoint; set init.weights=ckpt:DIR",
                field="init.ema",
            )
