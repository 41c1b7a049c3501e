# SPDX-License-Identifier: Apache-2.0
r"""How much MAE hides, and DINO's temperature of the teacher: neighbours of digits without labels.

    vit_jax sweep run configs/sweeps/unlabelled_digits.py --out=runs/hidden --workers=2
    vit_jax sweep report runs/hidden

The paper's share of hidden patches is 75 % of photographs (arXiv:2111.06377 figure 5); DINO's
temperature rises to 0.07 (arXiv:2104.14294 appendix D).
"""

from collections.abc import Iterator

from vit_jax.sweeps import grid

CONFIG = "configs/unlabelled_digits.py:mae"
METRIC = "knn/knn5"

SHARES = (0.25, 0.5, 0.75, 0.9)
TEMPERATURES = (0.04, 0.055, 0.07, 0.1)
SEEDS = (0, 1)

SHORT = {"checkpoint.keep_best": 0, "log.tensorboard": False}


def sweep() -> Iterator[grid.Overrides]:
    dino = [{"config": "configs/unlabelled_digits.py:dino", **SHORT}]
    seeds = grid.axis("seed", SEEDS)
    yield from grid.product([SHORT], grid.axis("objective.share", SHARES), seeds)
    temperatures = grid.axis("objective.teacher_temperature", TEMPERATURES)
    yield from grid.product(dino, temperatures, seeds)
