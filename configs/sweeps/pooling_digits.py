# SPDX-License-Identifier: Apache-2.0
r"""Class token or mean of the patches, at several rates: the ViT paper's appendix D.3, on digits.

    vit_jax sweep run configs/sweeps/pooling_digits.py --out=runs/pooling --workers=2
    vit_jax sweep report runs/pooling

Figure 9 of arXiv:2010.11929 (5-shot linear on ImageNet while training): both come to the same, at
different learning rates; the mean seemed worse at the class token's 8e-4, and is as good at 3e-4
(rates from memory of the figure). Adam as there. Outcome on digits: docs/studies.md.
"""

from collections.abc import Iterator

from vit_jax.recipes import digits
from vit_jax.sweeps import grid

CONFIG = "configs/vit_mu_digits.py"
METRIC = "test/top1"

POOLS = {
    "class token": {"model.pool": "cls", "model.class_token": True},
    "mean": {"model.pool": "gap", "model.class_token": False},
}
RATES = (8e-4, 2e-3, 5e-3, 1.2e-2)
SEEDS = (0, 1)
ADAM = {"optim.name": "adamw", "optim.momentum": 0.9, "optim.nesterov": False}


def sweep() -> Iterator[grid.Overrides]:
    for pool, model in POOLS.items():
        for rate in RATES:
            for seed in SEEDS:
                name = f"{pool}/lr={rate:g} seed={seed}"
                own = {"optim.lr": rate, "model.pos_embed": "learned", "seed": seed}
                yield {"name": name, **model, **own, **digits.STUDY, **ADAM}
