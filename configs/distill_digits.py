# SPDX-License-Identifier: Apache-2.0
r"""A small ViT on scikit-learn's handwritten digits, taught by the RegNetY of regnet_digits.

    python main.py --config=configs/regnet_digits.py --workdir=runs/regnet_digits
    python main.py --config=configs/distill_digits.py --workdir=runs/distill_digits

The argument, `distill_digits.py:WAY`, is how it is taught: `token`, DeiT's hard distillation with a
token of its own; `hard`, the same with one head, as CaiT; `match`, the teacher's whole distribution
and no labels; `unmixed`, that without mixup, for cached logits (docs/distill.md).
Runs: token, hard, match, unmixed
Hardware: 2 CPU cores, about three minutes after the teacher's three.
Published: none.
"""

from vit_jax import Config, Distillation, MixConfig, TeacherConfig, taught
from vit_jax.recipes import choose, digits

_HARD = {"kind": Distillation.HARD, "alpha": 0.5}
_MATCH = {"kind": Distillation.KL, "alpha": 1.0, "temperature": 2.0}
RUNS = {
    "token": (digits.deit, _HARD),
    "hard": (digits.vit, _HARD),
    "match": (digits.vit, _MATCH),
    "unmixed": (digits.vit, _MATCH),
}


def get_config(way: str = "token") -> Config:
    student, fields = RUNS[choose("way to distil", way, RUNS)]
    config = digits.digits(student())
    by = TeacherConfig(teacher=digits.regnet(), weights="ckpt:runs/regnet_digits", **fields)
    config.objective = taught(config.objective, by)
    if way == "unmixed":
        config.data.mix = MixConfig()
    return config
