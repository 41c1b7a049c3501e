# SPDX-License-Identifier: Apache-2.0
"""Where the parameters of a fresh run come from: references "KIND:PATH", and the config group.

`Base` and the keys are what a run's metadata says of the weights that its checkpoints hold.
"""

import dataclasses
import enum
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from vit_jax.errors import UserError, unknown
from vit_jax.settings import fields

KINDS = ("hub", "hf")  # two names of one kind: a repository
CHECKPOINT = "ckpt"  # the kind that is a directory, not a file
_PLACES = {
    "npz": "FILE",
    "timm": "FILE",
    CHECKPOINT: "DIR",
    **dict.fromkeys(KINDS, "USER/NAME"),
}

# Keys of a run's metadata: whether its model is its moving average, as DINO's teacher is; the
# parameters that its objective adds to the model; the `Base` of a run that saves only a part.
AVERAGE = "takes_average"
OWN_PARAMETERS = "own_parameters"
BASE = "base"


class ResizeRule(enum.StrEnum):
    """Whose rule resizes what depends on the image, window or patch size."""

    AUTO = "auto"  # Google's for npz:, timm's for the others
    TIMM = "timm"  # bicubic, antialiased; bias tables linear between geometric positions
    OFFICIAL = "official"  # DeiT's and Swin's loaders: bicubic with a = -0.75, not antialiased
    GOOGLE = "google"  # vision_transformer: bilinear between aligned corners
    TIMM_NPZ = "timm_npz"  # timm's loader of Google's files: bilinear, not antialiased
    NAFLEX = "naflex"  # SigLIP 2 for images of any shape: bilinear, antialiased
    NONE = "none"  # refuse another size


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


_ADDED = re.compile(rf"\+(?=(?:{'|'.join(_PLACES)}):)")


def added(ref: str) -> tuple[str, str]:
    """Split "hf:CHANGES+hf:BACKBONE" into what is read and what it is added to, "" for nothing.

    Either may be a path of a reference as well.
    """
    first, *rest = _ADDED.split(ref, maxsplit=1)
    return first, rest[0] if rest else ""


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class InitConfig:
    """Weights to start from; read once, when a run has no checkpoint of its own to continue.

    Attributes:
        weights: "npz:FILE", "timm:FILE", "hub:USER/NAME" of the Hugging Face Hub, or of another
            run "ckpt:DIR", "ckpt:DIR@STEP", "ckpt:DIR@best", "ckpt:DIR@latest"; "" starts from
            random parameters. "hf:CHANGES+hf:BACKBONE" adds the encoders of two.
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


class Base(NamedTuple):
    """Where a run's frozen parameters come from, as its checkpoints keep it in their metadata."""

    weights: str  # the reference, with an absolute path and, of a run, the step
    resize: str  # the rule that brought tables and kernels to the model's sizes
    ema: bool  # the moving average of the other run was taken
    skip: tuple[str, ...]  # what of the file was not taken
    scale: float  # alpha / r
    digest: str = ""  # of all the frozen parameters; "" only before a run first reads them

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> "Base | None":
        """Return the base that a run's metadata names; None for a run that saves everything."""
        saved = metadata.get(BASE)
        if not saved:
            return None
        try:
            base = cls(**{**saved, "skip": tuple(saved["skip"]), "scale": float(saved["scale"])})
            kinds = {name: type(value) for name, value in base._asdict().items()}
            ResizeRule(base.resize)
        except (TypeError, KeyError, ValueError):
            kinds = {}
        usual = kinds == {**cls.__annotations__, "skip": tuple}
        # Without a digest any weights would do.
        if not usual or not base.digest or not all(isinstance(x, str) for x in base.skip):
            raise UserError("what the run says of its base is damaged; train it anew")
        return base
