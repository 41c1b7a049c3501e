# SPDX-License-Identifier: Apache-2.0
r"""Attention along rows and columns in turn: the ViT paper's appendix D.6, on digits.

    vit_jax sweep run configs/sweeps/axial_digits.py --out=runs/axial --workers=2
    vit_jax sweep report runs/axial

Figure 13 of arXiv:2010.11929 (5-shot linear on ImageNet against compute): Axial-ViT-B/32 and -B/16,
each of whose blocks is one along rows and one along columns, both with an MLP, are better than
ViT-B/32 and -B/16, at more compute. Half of that depth is as many parameters as the ViT has.
Outcome on digits: docs/studies.md.
"""

from collections.abc import Iterator

from vit_jax.recipes import digits
from vit_jax.sweeps import grid

CONFIG = "configs/vit_mu_digits.py"
METRIC = "test/top1"

CASES = {"ViT": (4, False), "axial, as deep": (4, True), "axial, twice as deep": (8, True)}
PATCHES = (8, 4)  # 4 x 4 and 8 x 8 patches
SEEDS = (0, 1)


def sweep() -> Iterator[grid.Overrides]:
    for patch in PATCHES:
        for case, (depth, axial) in CASES.items():
            for seed in SEEDS:
                model = {"model.depth": depth, "model.axial": axial, "model.patch": (patch,)}
                name = f"patches of {patch}/{case} seed={seed}"
                yield {"name": name, "seed": seed, **model, **digits.STUDY}
