# SPDX-License-Identifier: Apache-2.0
r"""Loss against size, images and compute: small ViTs on the digits, a real sweep for a laptop.

    vit_jax sweep run configs/sweeps/scaling_digits.py --out=runs/scaling --workers=2
    vit_jax sweep report runs/scaling

For each budget of FLOPs every size is trained for as many images as the budget allows (isoFLOP
curves, Hoffmann et al. 2022, arXiv:2203.15556), by two seeds; the two largest budgets once more
with a quarter and a sixteenth of the training images, each then seen more often. Heads keep their 4
channels. All share one learning rate, which docs/mup.md would scale with the width.
"""

import dataclasses
from collections.abc import Iterator

from vit_jax.recipes import digits
from vit_jax.sweeps import grid, price

CONFIG = "configs/vit_mu_digits.py"
METRIC = "val/loss"

WIDTHS = (4, 8, 12, 16, 24, 32, 48, 64)
BUDGETS = grid.log_spaced(3e9, 3e11, 5)
SEEDS = (0, 1)  # laws are fitted to their means
IMAGES = 1000  # of 1,437; 144 for validation would be too few to tell runs apart
BATCH = 64
STEPS = (60, 12_000)  # of a run; fewer train nothing, more take minutes

# Few evaluations and checkpoints: a run is over in seconds. Mixup is too much for small models.
SHORT = {
    "data.batch_size": BATCH,
    "data.mix.mixup_alpha": 0.0,
    "optim.warmup": "10%",
    "evals.val.split": f"train[{IMAGES}:]",
    "evals.val.every": "25%",
    "checkpoint.every": "50%",
    "checkpoint.keep_best": 0,
    "log.every": "5%",
    "log.tensorboard": False,
}


def sweep() -> Iterator[grid.Overrides]:
    for budget in BUDGETS:
        for seed in SEEDS:
            yield from runs(budget, 1.0, WIDTHS, seed)
    for budget in BUDGETS[-2:]:
        for share in (1 / 4, 1 / 16):
            yield from runs(budget, share, WIDTHS[1::2])


def runs(
    budget: float, share: float, widths: tuple[int, ...], seed: int = 0
) -> Iterator[grid.Overrides]:
    """Yield a run of each width that the budget trains for enough steps."""
    for width in widths:
        shape = {"dim": width, "num_heads": width // 4, "mlp_dim": 4 * width, "depth": 2}
        model = dataclasses.replace(digits.vit(), **shape)
        duration = price.examples(model, budget)
        steps = int(duration.split()[0]) // BATCH
        if not STEPS[0] <= steps <= STEPS[1]:
            continue
        yield {
            "name": f"dim={width} flops={budget:.3g} data={share:.4g} seed={seed}",
            "seed": seed,
            **{f"model.{field}": value for field, value in shape.items()},
            "duration": duration,
            "data.train_split": f"train[:{round(share * IMAGES)}]",
            **SHORT,
        }
