# SPDX-License-Identifier: Apache-2.0
"""Self-supervision on scikit-learn's digits, on drawn letters, and on images of one's own.

DINO's rate, crops, temperature and KoLeo were chosen by eight runs of up to 600 steps with the seed
10, on neighbours among the training scans, LeJEPA's rate, crops and weight by ten of 150 or 300
steps with the seed 0, and Muon for ViT-Ti on `held_out`; other values are not tuned.
"""

import dataclasses
from collections.abc import Callable

from vit_jax import models
from vit_jax.config.tree import Config, LogConfig
from vit_jax.data import Crop, DataConfig, MixConfig, Resize, TransformConfig
from vit_jax.evals import ClassifyEval, KNNEval, LossEval
from vit_jax.models.layers.pool import Pool
from vit_jax.objectives import (
    Balance,
    DinoConfig,
    HeadConfig,
    IJepaConfig,
    LeJepaConfig,
    MaeConfig,
    MaskedPatchConfig,
    ObjectiveConfig,
    SupervisedConfig,
)
from vit_jax.recipes import choose, folder
from vit_jax.recipes import digits as scans
from vit_jax.weights.config import InitConfig

_HEAD = HeadConfig(prototypes=256, hidden_dim=128, bottleneck_dim=32)
_SMALL = TransformConfig(crop=Crop.RANDOM_RESIZED, area=(0.4, 0.8))
_LARGE = TransformConfig(
    crop=Crop.RANDOM_RESIZED, area=(0.7, 1.0), degrees=15.0, translate=(0.1, 0.1), shear=10.0
)


def _dino() -> DinoConfig:
    return DinoConfig(
        second=dataclasses.replace(_LARGE),
        small=dataclasses.replace(_SMALL),
        small_crops=2,
        small_size=(16, 16),
        head=dataclasses.replace(_HEAD),
        patch_head=dataclasses.replace(_HEAD),
        teacher_temperature=0.04,
        temperature_warmup="",
        spread_weight=0.1,  # without it all features fall towards a line
    )


def _lejepa() -> LeJepaConfig:
    # Four crops of one size, as in MINIMAL.md: a small network needs long to see that a crop of
    # another size is of the same image. SIGReg grows with the batch, of which the authors' is 256.
    return LeJepaConfig(
        large_crops=4, small_crops=0, weight=0.05, directions=64, dim=16, hidden_dim=128
    )


def _ijepa() -> IJepaConfig:
    # An image has 16 patches, of which the paper's four blocks would leave too few.
    return IJepaConfig(
        targets=2, context_share=0.5, predictor_dim=32, predictor_depth=2, predictor_heads=4
    )


RUNS: dict[str, Callable[[], ObjectiveConfig]] = {
    "mpp": MaskedPatchConfig,
    # Grey pixels of a patch that is all paper have no deviation to divide by.
    "mae": lambda: MaeConfig(decoder_dim=32, decoder_depth=2, decoder_heads=4, norm_pix=False),
    "dino": _dino,
    "dinov2": lambda: dataclasses.replace(_dino(), balance=Balance.SINKHORN, patch_weight=1.0),
    "lejepa": _lejepa,
    "ijepa": _ijepa,
}


def _crops(objective: ObjectiveConfig) -> bool:
    """Return whether an objective compares crops, by the class token."""
    return isinstance(objective, DinoConfig | LeJepaConfig)


def _rate(objective: ObjectiveConfig) -> float:
    """Return Muon's rate of what compares crops; by DINO's, LeJEPA stays with one direction."""
    return 1e-2 if isinstance(objective, LeJepaConfig) else 2e-3


def digits(run: str) -> Config:
    """Train on the 1,293 training scans without their labels: 2,000 steps of 128, of crops 1,000.

    The last checkpoint counts, as no label may choose one; neighbours among 144 labelled scans are
    measured on the 144 of validation while it trains.

    Raises UserError: no such run.
    """
    choose("run", run, RUNS)
    objective = RUNS[run]()
    crops = _crops(objective)
    model = models.with_fields(
        scans.deit(),
        {
            "distilled": False,
            "num_classes": 0,
            "pool": Pool.CLS if crops else Pool.GAP,
            "dynamic_image_size": isinstance(objective, DinoConfig),
        },
    )
    config = scans.digits(model)
    config.objective = objective
    config.data.mix, config.data.batch_size = MixConfig(), 128
    config.duration, config.optim.warmup = "2000 steps", "5%"
    plain = TransformConfig(crop=Crop.RESIZE)
    near = {"split": "train[1293:]", "train_split": "train[:144]", "k": (5,)}
    config.evals = {"knn": KNNEval(every="10%", transform=plain, **near)}
    config.checkpoint.every, config.checkpoint.keep_best = "10%", 0
    config.log.every = "200 steps"
    if crops:
        config.data.transform = dataclasses.replace(_LARGE)
        config.duration, config.optim.lr = "1000 steps", _rate(objective)
    if objective.needs_average:
        config.ema_decay, config.ema_decay_end = 0.96, 1.0
    if isinstance(objective, IJepaConfig):  # by the others' rates it collapsed in 400 steps
        config.optim.lr, config.ema_decay = 1e-3, 0.996
    if objective.scores_images:
        loss = LossEval(split="train[1293:]", every="10%", transform=dataclasses.replace(plain))
        config.evals["val"] = loss
    return config


# Steps and batch of each run on drawn letters.
GLYPHS = {
    **{"mpp": (300, 64), "mae": (400, 128), "dino": (140, 64)},
    **{"lejepa": (90, 64), "ijepa": (300, 64), "labelled": (200, 32)},
}


def glyphs(run: str) -> Config:
    """Train a ViT-Ti on drawn letters, without labels or, as `labelled`, on those of 400.

    By the digits' Muon, in as many steps as a core does in four minutes; 32 pixels in patches of 8,
    warped crops of 70 to 100 %. The last checkpoint counts, as no label may choose one; neighbours
    among the 400 are measured on `held_out` while it trains.

    Raises UserError: no such run.
    """
    steps, batch_size = GLYPHS[choose("run", run, GLYPHS)]
    objective = SupervisedConfig() if run == "labelled" else RUNS[run]()
    if isinstance(objective, MaeConfig):
        objective.decoder_dim = 96
    if isinstance(objective, IJepaConfig):
        objective.predictor_dim = 96
    if isinstance(objective, LeJepaConfig):
        objective.weight = 0.1  # SIGReg is of half as many images
    labelled, crops = objective.uses_labels, _crops(objective)
    fields = {
        "image_size": (32, 32),
        "channels": 1,
        "patch": (8, 8),
        "num_classes": 0,
        "pool": Pool.CLS if labelled or crops else Pool.GAP,
        "dynamic_image_size": isinstance(objective, DinoConfig),
    }
    config = Config(
        model=models.variant("vit_ti16", **fields),
        data=DataConfig(
            name="folder:runs/glyphs",
            train_split="labelled" if labelled else "unlabelled",
            batch_size=batch_size,
            transform=dataclasses.replace(_LARGE),
            cache=True,
        ),
        optim=dataclasses.replace(scans.digits(scans.deit()).optim, warmup="5%"),
        objective=objective,
        init=InitConfig(new_head=True),
        duration=f"{steps} steps",
        log=LogConfig(every="10%"),
    )
    plain = TransformConfig(crop=Crop.RESIZE)
    if labelled:
        config.evals = {
            "val": ClassifyEval(split="held_out", every="25%", transform=plain),
            "test": ClassifyEval(split="unseen", transform=plain, report=True),
        }
    else:
        near = {"split": "held_out", "train_split": "labelled", "k": (5,)}
        config.evals = {"knn": KNNEval(every="20%", transform=plain, **near)}
    if crops:
        config.optim.lr = _rate(objective)
    if objective.needs_average:
        config.ema_decay, config.ema_decay_end = 0.96, 1.0
    if isinstance(objective, IJepaConfig):
        config.optim.lr, config.ema_decay = 1e-3, 0.996
    config.checkpoint.every, config.checkpoint.keep_best = "20%", 0
    return config


# What is learned of one's own images, and by which of `folder.RUNS`' models.
OWN = {
    f"{name}{size}": "small" if size else "s16"
    for size in ("", "_small")
    for name in ("mae", "dino", "lejepa", "ijepa")
}


def _view(area: tuple[float, float], colours: str) -> TransformConfig:
    return TransformConfig(
        crop=Crop.RANDOM_RESIZED, area=area, resize=Resize.BICUBIC, flip=True, auto_augment=colours
    )


def images(run: str) -> Config:
    """Train on images of one's own without their labels, as `folder.images` does with them.

    The dataset decides the batch and the duration (`config.fitted`). Where its folders are classes,
    neighbours are measured on val while it trains, and choose nothing: the last checkpoint counts.
    MAE hides three quarters of crops of 20 to 100 %; DINO and LeJEPA see two crops of 40 to 100 %
    and four small ones of half the side, in other colours, the small LeJEPA four large ones; I-JEPA
    crops of 30 to 100 %. Values are common or the digits', not tuned.

    Raises UserError: no such run.
    """
    size = OWN[choose("run", run, OWN)]
    name = run.removesuffix("_small")
    two = run in ("dino", "dino_small", "lejepa")  # sizes of crops
    fields = {"drop_path_rate": 0.0, "dynamic_image_size": two}
    if size == "s16" and not two:
        fields["pool"] = Pool.GAP  # MAE and I-JEPA train no class token
    config = folder.images(size)
    config.model = models.with_fields(config.model, fields)
    config.data.mix, config.init = MixConfig(), InitConfig()
    plain = TransformConfig(crop=Crop.RESIZE)
    near = {"train_split": "train", "k": (5,), "where_labelled": True}
    config.evals = {"knn": KNNEval(split="val", every="20%", transform=plain, **near)}
    config.checkpoint.every, config.checkpoint.keep_best = "10%", 0
    side = models.input_shape(config.model)[0] // 2
    if name == "dino":
        config.objective = DinoConfig(
            second=_view((0.4, 1.0), "dino-blur0.1-solarize0.2"),
            small=_view((0.1, 0.4), "dino-blur0.5"),
            small_crops=4,
            small_size=(side, side),
            head=HeadConfig(prototypes=4096, hidden_dim=512, bottleneck_dim=128),
            teacher_temperature=0.04,
            temperature_warmup="",
            spread_weight=0.1,
        )
        config.data.transform = _view((0.4, 1.0), "dino-blur1")
        config.ema_decay, config.ema_decay_end = 0.99, 1.0
        config.optim.lr /= 2
    elif name == "lejepa":
        colours = "dino-blur0.5-solarize0.2"
        config.data.transform = _view((0.4, 1.0), colours)
        if size == "small":
            # As on the digits, and by their rate.
            own = dataclasses.replace(_lejepa(), directions=256, hidden_dim=256)
            config.objective, config.optim.lr = own, _rate(own)
        else:
            config.objective = LeJepaConfig(
                small=_view((0.1, 0.4), colours),
                small_crops=4,
                small_size=(side, side),
                directions=256,
                dim=64,
                hidden_dim=512,
            )
            config.optim.lr /= 2
    elif name == "ijepa":
        config.objective = IJepaConfig(
            predictor_dim=192 if size == "s16" else 48,
            predictor_depth=6 if size == "s16" else 2,
            predictor_heads=6 if size == "s16" else 3,
        )
        config.data.transform = _view((0.3, 1.0), "")
        config.ema_decay, config.ema_decay_end = 0.996, 1.0
        config.optim.lr /= 2
    else:
        # Drawings have patches of nothing but paper, which no deviation divides: `norm_pix`.
        width = 256 if size == "s16" else 64
        config.objective = MaeConfig(
            decoder_dim=width, decoder_depth=4, decoder_heads=8, norm_pix=False
        )
        config.data.transform = _view((0.2, 1.0), "")
        config.evals["val"] = LossEval(split="val", every="10%", transform=plain)
    return config
