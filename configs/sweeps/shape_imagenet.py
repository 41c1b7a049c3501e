# SPDX-License-Identifier: Apache-2.0
r"""Width, depth and MLP width of a ViT, each alone, against compute: the star of SoViT.

    vit_jax sweep plan configs/sweeps/shape_imagenet.py --device=H100
    vit_jax sweep report DIR

Alabdulmohsin et al. 2023 (arXiv:2305.13035): from one centre every dimension is varied while the
others stay, each at several lengths; the report fits the best value of each as a power of compute.
"""

from collections.abc import Iterator

from vit_jax.sweeps import grid

CONFIG = "configs/vit_b16_imagenet21k.py"
METRIC = "val/loss"

CENTRE = {"model.dim": 512, "model.depth": 12, "model.mlp_dim": 2048, "model.num_heads": 8}
RAYS = [
    {},
    *({"model.dim": dim, "model.num_heads": dim // 64} for dim in (256, 384, 768, 1024)),
    *grid.axis("model.depth", (4, 6, 18, 24)),
    *grid.axis("model.mlp_dim", (768, 1280, 3072, 4608)),
]
DURATIONS = [f"{count:.0f} examples" for count in grid.log_spaced(1e7, 2e8, 4)]


def sweep() -> Iterator[grid.Overrides]:
    short = {"optim.warmup": "10%", "evals.val.every": "50%", "checkpoint.every": "10%"}
    stars = ({**CENTRE, **ray, **short} for ray in RAYS)
    yield from grid.product(stars, grid.axis("duration", DURATIONS))
