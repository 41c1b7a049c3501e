# SPDX-License-Identifier: Apache-2.0
"""Every way to learn from images, side by side: one network, one start, the same images and FLOPs.

An arm is an objective with the settings that its recipe has here (`recipes.unlabelled`,
`recipes.masked`, `recipes.dino`), of which none was chosen for this comparison. What is the same:
the network and, by the seed, its first parameters; the images; batch and optimizer; and how the
features are probed. The duration of an arm follows from the FLOPs that all get
(`sweeps.price.examples`), which `benchmarks.referee` and `configs/sweeps/referee_imagenet.py` set.
`supervised` alone reads the labels of the images: what the others could learn of them.
"""

from collections.abc import Callable

from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.data import MixConfig, TransformConfig
from vit_jax.evals import EvalConfig, FeaturesEval, KNNEval, LinearEval
from vit_jax.models.layers.pool import Pool
from vit_jax.objectives import Balance, DinoConfig, MaeConfig, MaskedPatchConfig, SupervisedConfig
from vit_jax.recipes import choose, unlabelled
from vit_jax.recipes import dino as dino_papers
from vit_jax.recipes import masked as masked_papers

ARMS = ("mpp", "mae", "dino", "ibot", "dinov2", "supervised")
_SUPERVISED = "supervised"
# The recipe that an arm without one of its own begins with.
_FROM = {"ibot": "dinov2", _SUPERVISED: "mae"}


def _probed(
    plain: TransformConfig, splits: dict[str, str], *, held_out: str
) -> dict[str, EvalConfig]:
    """Measure neighbours of images held out while it trains, and at the end of the unseen ones.

    `splits` are the unseen images and those with labels, as a probe's `split` and `train_split`.
    """
    shared = {"transform": plain, "k": (5,)}
    labels = {"train_split": splits["train_split"]}
    return {
        "knn": KNNEval(split=held_out, every="20%", **labels, **shared),
        "features": FeaturesEval(split=held_out, every="20%", transform=plain),
        "test_knn": KNNEval(**splits, **shared),
        "test_linear": LinearEval(**splits, transform=plain),
    }


def _small(config: Config, arm: str) -> Config:
    """Make a small recipe an arm: its objective, and what is the same for all."""
    if arm == "ibot":
        assert isinstance(config.objective, DinoConfig)
        config.objective.balance = Balance.CENTRE
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
    splits = {"split": "test", "train_split": "train[:144]"}
    plain = config.evals["knn"].transform
    config.evals = _probed(plain, splits, held_out="train[1293:]")
    return config


def glyphs(arm: str) -> Config:
    """Learn a ViT-Ti from 20,000 drawn letters; 400 others have labels for the probes.

    Raises UserError: no such arm.
    """
    choose("arm", arm, ARMS)
    begun = _FROM.get(arm, arm)
    config = unlabelled.glyphs("dino" if begun == "dinov2" else begun)
    if begun == "dinov2":
        assert isinstance(config.objective, DinoConfig)
        config.objective.balance, config.objective.patch_weight = Balance.SINKHORN, 1.0
    config = _small(config, arm)
    config.data.batch_size = 64
    plain = config.evals["knn"].transform
    splits = {"split": "unseen", "train_split": "labelled"}
    config.evals = _probed(plain, splits, held_out="held_out")
    return config


_IMAGENET: dict[str, Callable[[], Config]] = {
    "mpp": lambda: masked_papers.patches(models.variant("deit_s16")),
    "mae": lambda: masked_papers.pretrain("b16"),
    "dino": lambda: dino_papers.imagenet("dino"),
    "dinov2": lambda: dino_papers.imagenet("dinov2"),
}


def imagenet(arm: str) -> Config:
    """Learn a ViT-S/16 from ImageNet-1k, batch 1,024, by AdamW at 1e-3 with 5 % of warmup.

    Objectives and crops are their papers'; optimizer and schedule are DeiT's for all, which suits
    none of them alone. The probes see a twentieth of the labels; neighbours see all.

    Raises UserError: no such arm.
    """
    choose("arm", arm, ARMS)
    config = _IMAGENET[_FROM.get(arm, arm)]()
    own, average = config.objective, config.objective.needs_average
    if isinstance(own, MaeConfig):
        own.decoder_dim, own.decoder_depth, own.decoder_heads = 256, 4, 8  # for S, as B's for L
    if arm == "ibot":
        assert isinstance(own, DinoConfig)
        own.balance = Balance.CENTRE
    if isinstance(own, DinoConfig):
        own.temperature_warmup = "30%"
    pool = Pool.CLS if average else Pool.GAP
    fields = {"num_classes": 0, "pool": pool, "dynamic_image_size": average, "dtype": "bfloat16"}
    config.model = models.with_fields(models.variant("deit_s16"), fields)
    if arm == _SUPERVISED:
        config.objective = SupervisedConfig(label_smoothing=0.1)
        config.model = models.with_fields(config.model, {"num_classes": 1000})
        config.data.mix = MixConfig(mixup_alpha=0.8, cutmix_alpha=1.0)
    config.data.train_split, config.data.batch_size = "train", 1024
    shared = {"name": "adamw", "lr": 1e-3, "min_lr": 1e-6, "weight_decay": 0.05, "clip_norm": 1.0}
    config.optim = type(config.optim)(warmup="5%", **shared)
    if average:
        config.ema_decay, config.ema_decay_end = 0.996, 1.0
    plain = config.evals["knn"].transform
    splits = {"split": "validation", "train_split": "train[:5%]"}
    config.evals = _probed(plain, splits, held_out="train[99%:]")
    config.evals["test_knn"].train_split = "train"
    config.checkpoint.every, config.checkpoint.keep_best = "5%", 0
    return config
