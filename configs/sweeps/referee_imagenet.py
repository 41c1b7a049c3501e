# SPDX-License-Identifier: Apache-2.0
r"""Every objective on ImageNet-1k from the same start for the same FLOPs, three seeds: the referee.

    vit_jax sweep plan configs/sweeps/referee_imagenet.py --device=H100 --num_devices=8 --price=2.5
    vit_jax sweep run configs/sweeps/referee_imagenet.py --out=/mnt/shared/referee

Each arm takes the FLOPs of 100 epochs of supervised training of the ViT-S/16; those that see less
of an image see more images. Probes of the unseen images are measured at the end, `features/rank`
and `knn/knn5` while it trains. `python -m benchmarks.referee` is the same on digits and letters,
and docs/self_supervised.md has what came of it.
"""

from collections.abc import Iterator

from vit_jax.recipes import referee
from vit_jax.sweeps import grid, price

CONFIG = "configs/referee_imagenet.py"
METRIC = "test_linear/linear"

FLOPS = 3.53e18
SEEDS = (0, 1, 2)


def sweep() -> Iterator[grid.Overrides]:
    for arm in referee.ARMS:
        config = referee.imagenet(arm)
        count = price.examples(config.model, FLOPS, config.objective)
        for seed in SEEDS:
            yield {
                "config": f"{CONFIG}:{arm}",
                "name": f"{arm} seed={seed}",
                "duration": count,
                "seed": seed,
            }
