# SPDX-License-Identifier: Apache-2.0
"""Every way to learn from images, side by side: one network, one start, the same images and FLOPs.

An arm is an objective with the settings that its recipe has here (`recipes.unlabelled`, `masked`,
`dino`), of which none was chosen for this comparison. What is the same: the network and, by
the seed, its first parameters; the images; batch and optimizer; and how the features are probed.
The duration of an arm follows from the FLOPs that all get
(`sweeps.price.examples`), which `benchmarks.referee` and `configs/sweeps/referee_imagenet.py` set.
`supervised` alone reads the labels of the images: what the others could learn of them.
"""

import dataclasses
from collections.abc import Callable

from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.data import MixConfig, TransformConfig
from vit_jax.evals import EvalConfig, FeaturesEval, KNNEval, LinearEval
from vit_jax.models import DType
from vit_jax.models.layers.pool import Pool
from vit_jax.objectives import (
    Balance,
    DinoConfig,
    GramConfig,
    IJepaConfig,
    LeJepaConfig,
    MaeConfig,
    SupervisedConfig,
)
from vit_jax.optim import OptimConfig
from vit_jax.recipes import choose, unlabelled
from vit_jax.recipes import dino as dino_papers
from vit_jax.recipes import masked as masked_papers

ARMS = (
    *("mpp", "mae", "dino", "ibot", "dinov2", "gram", "lejepa", "ijepa"),
    "supervised",
)
_SUPERVISED = "supervised"
# The recipe that an arm without one of its own begins with.
_FROM = {"ibot": "dinov2", "gram": "dinov2", _SUPERVISED: "mae"}
# DINOv3 anchors the last fifth of its run, by a teacher that is good by then. A run of a few
# hundred steps would hardly see that, so it begins earlier here.
_GRAM = {"weight": 2.0, "start": "40%", "warmup": "5%", "every": "20%", "copies": 3}


def _probed(
    plain: TransformConfig, *, held_out: str, unseen: str, labels: str
) -> dict[str, EvalConfig]:
    """Measure neighbours of images held out while it trains, and at the end of the unseen ones.

    All arguments but the first are splits; `labels` has those that the probes are fitted to.
    """
    near = KNNEval(split=held_out, train_split=labels, every="20%", transform=plain, k=(5,))
    return {
        "knn": near,
        "features": FeaturesEval(split=held_out, every="20%", transform=plain),
        "test_knn": dataclasses.replace(near, split=unseen, every=""),
        "test_linear": LinearEval(split=unseen, train_split=labels, transform=plain),
    }


def _vary(config: Config, arm: str) -> None:
    """Make DINOv2's loss that of iBOT, which centres as DINO does, or add Gram anchoring to it."""
    if arm not in ("ibot", "gram"):
        return
    assert isinstance(config.objective, DinoConfig), "begun with dinov2's"
    if arm == "ibot":
        config.objective.balance = Balance.CENTRE
    else:
        config.objective.gram = GramConfig(**_GRAM)


def _small(config: Config, arm: str) -> Config:
    """Make a small recipe an arm: its objective, and what is the same for all."""
    _vary(config, arm)
    if arm == _SUPERVISED:
        config.objective = SupervisedConfig()
        config.data.mix = MixConfig(mixup_alpha=1.0)  # the digits' own recipe
    config.checkpoint.every, config.checkpoint.keep_best = "20%", 0
    config.log.every, config.log.tensorboard = "10%", False
    return config


def digits(arm: str) -> Config:
    """Learn from the 1,293 training scans; 144 of them have labels for the probes.

    Raises UserError: no such arm.
    """
    choose("arm", arm, ARMS)
    config = _small(unlabelled.digits(_FROM.get(arm, arm)), arm)
    if arm == _SUPERVISED:
        config.model = models.with_fields(config.model, {"num_classes": 10})
    plain = config.evals["knn"].transform
    config.evals = _probed(plain, held_out="train[1293:]", unseen="test", labels="train[:144]")
    return config


def glyphs(arm: str) -> Config:
    """Learn a ViT-Ti from 20,000 drawn letters; 400 others have labels for the probes.

    Raises UserError: no such arm.
    """
    choose("arm", arm, ARMS)
    begun = _FROM.get(arm, arm)
    config = unlabelled.glyphs("dino" if begun == "dinov2" else begun)
    if begun == "dinov2":
        assert isinstance(config.objective, DinoConfig), "begun with dino's"
        config.objective.balance, config.objective.patch_weight = Balance.SINKHORN, 1.0
    config = _small(config, arm)
    config.data.batch_size = 64
    plain = config.evals["knn"].transform
    config.evals = _probed(plain, held_out="held_out", unseen="unseen", labels="labelled")
    return config


_IMAGENET: dict[str, Callable[[], Config]] = {
    "mpp": lambda: masked_papers.patches(models.variant("deit_s16")),
    "mae": lambda: masked_papers.pretrain("b16"),
    "dino": lambda: dino_papers.imagenet("dino"),
    "dinov2": lambda: dino_papers.imagenet("dinov2"),
    "lejepa": lambda: dino_papers.lejepa("l14"),
    "ijepa": lambda: dino_papers.ijepa("h14"),
}


def imagenet(arm: str) -> Config:
    """Learn a ViT-S/16 from ImageNet-1k, batch 1,024, by AdamW at 1e-3 with 5 % of warmup.

    Objectives and crops are their papers', but for what goes with the network's size; optimizer and
    schedule are the same for all, and no arm's own. The linear probe sees a twentieth of the
    labels, neighbours all. Not run.

    Raises UserError: no such arm.
    """
    choose("arm", arm, ARMS)
    config = _IMAGENET[_FROM.get(arm, arm)]()
    _vary(config, arm)
    own = config.objective
    if arm == "ibot":  # DINOv2 centres on ImageNet-1k too; what iBOT has not is KoLeo
        assert isinstance(own, DinoConfig), "begun with dinov2's"
        own.spread_weight = 0.0
    if isinstance(own, MaeConfig):
        own.decoder_dim, own.decoder_depth, own.decoder_heads = 256, 4, 8
    if isinstance(own, IJepaConfig):
        own.predictor_dim, own.predictor_depth, own.predictor_heads = 192, 6, 6
    if isinstance(own, LeJepaConfig):
        own.small_size = (96, 96)  # of patches of 16
    if isinstance(own, DinoConfig) and own.temperature_warmup:
        own.temperature_warmup = "30%"
    two = isinstance(own, DinoConfig | LeJepaConfig)
    pool = Pool.CLS if two else Pool.GAP
    fields = {"num_classes": 0, "pool": pool, "dynamic_image_size": two, "dtype": DType.BFLOAT16}
    config.model = models.with_fields(models.variant("deit_s16"), fields)
    config.objective = own
    if arm == _SUPERVISED:
        config.objective = SupervisedConfig(label_smoothing=0.1)
        config.model = models.with_fields(config.model, {"num_classes": 1000})
        config.data.mix = MixConfig(mixup_alpha=0.8, cutmix_alpha=1.0)
    config.data.train_split, config.data.batch_size = "train[:99%]", 1024
    config.optim = OptimConfig(lr=1e-3, min_lr=1e-6, weight_decay=0.05, warmup="5%")
    if own.needs_average:
        config.ema_decay, config.ema_decay_end = 0.996, 1.0
    plain = config.evals["knn"].transform
    config.evals = _probed(plain, held_out="train[99%:]", unseen="validation", labels="train[:5%]")
    near = config.evals["test_knn"]
    assert isinstance(near, KNNEval), "as `_probed` has it"
    near.train_split = "train[:99%]"
    config.checkpoint.every, config.checkpoint.keep_best = "5%", 0
    config.checkpoint.metric = "knn/knn5"
    return config
