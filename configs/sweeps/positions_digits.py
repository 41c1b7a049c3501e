# SPDX-License-Identifier: Apache-2.0
r"""Position embeddings: which kind, and where it is added; the ViT paper's appendix D.4 on digits.

    vit_jax sweep run configs/sweeps/positions_digits.py --out=runs/positions --workers=2
    vit_jax sweep report runs/positions

Table 8 of arXiv:2010.11929 (ViT-B/16 of JFT, 5-shot linear on ImageNet, top-1 in per cent):
none 61.38; 1-D 64.21 at the stem, 63.96 in every layer, 64.29 shared between layers; 2-D 64.00,
64.05, 64.02; relative 64.03. Outcome on digits: docs/studies.md.
"""

from collections.abc import Iterator

from vit_jax.recipes import digits
from vit_jax.sweeps import grid

CONFIG = "configs/vit_mu_digits.py"
METRIC = "test/top1"

CASES = {
    "no table/none": ("none", "stem"),
    "no table/relative": ("relative", "stem"),
    **{f"stem/{kind}": (kind, "stem") for kind in ("learned", "learned2d", "sincos2d")},
    **{f"every layer/{kind}": (kind, "layers") for kind in ("learned", "learned2d")},
    **{f"shared/{kind}": (kind, "shared") for kind in ("learned", "learned2d")},
}
SEEDS = (0, 1)


def sweep() -> Iterator[grid.Overrides]:
    for name, (kind, at) in CASES.items():
        for seed in SEEDS:
            model = {"model.pos_embed": kind, "model.pos_embed_at": at}
            yield {"name": f"{name} seed={seed}", "seed": seed, **model, **digits.STUDY}
