# SPDX-License-Identifier: Apache-2.0
"""The published settings, typed from the papers and codebases: no shared function changes a run."""

import math

import numpy as np
import pytest

from tests.unit.test_configs import CONFIGS, FILES, arguments, load
from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.data import Crop, CropRule, Partner
from vit_jax.data import Resize as Interpolation
from vit_jax.distill import Distillation
from vit_jax.errors import UserError
from vit_jax.models.layers.drop import DropPathRule
from vit_jax.models.losses import Loss
from vit_jax.objectives import DistillConfig
from vit_jax.optim import Schedule
from vit_jax.optim.rules import make_rules
from vit_jax.recipes import choose
from vit_jax.weights.resize import ResizeRule

# Length in epochs (or, with s, steps, with x, examples), batch, optimizer, peak and last lr, weight
# decay (times lr; of sgd coupled, of others not), warmup in epochs (or steps), stochastic depth,
# label smoothing, mixup, cutmix, random erasing, copies of an image, clipping, moving average,
# side.
COLUMNS = "length batch optim lr end wd warmup path smooth mixup cutmix erase copies clip ema side"
PUBLISHED = """
deit_imagenet:ti16              300   1024 adamw 1e-3  1e-5 0.05 5      0.1  0.1 0.8 1 0.25 3 0 0.99996 224
deit_imagenet:s16               300   1024 adamw 1e-3  1e-5 0.05 5      0.1  0.1 0.8 1 0.25 3 0 0.99996 224
deit_imagenet:b16               300   1024 adamw 1e-3  1e-5 0.05 5      0.1  0.1 0.8 1 0.25 3 0 0.99996 224
deit_distilled_imagenet:ti16    300   1024 adamw 1e-3  1e-5 0.05 5      0.1  0.1 0.8 1 0.25 3 0 0.99996 224
deit_distilled_imagenet:s16     300   1024 adamw 1e-3  1e-5 0.05 5      0.1  0.1 0.8 1 0.25 3 0 0.99996 224
deit_distilled_imagenet:b16     300   1024 adamw 1e-3  1e-5 0.05 5      0.1  0.1 0.8 1 0.25 3 0 0.99996 224
deit_imagenet:b16_384           30    512  adamw 5e-6  5e-6 1e-8 5      0    0.1 0.8 1 0.25 3 0 0.99996 384
deit_distilled_imagenet:b16_384 30   512  adamw 5e-6  5e-6 1e-8 5      0    0.1 0.8 1 0.25 3 0 0.99996 384
deit_b16_cifar10                1000  768  sgd   0.01  1e-5 1e-4 5      0    0.1 0.8 1 0    3 0 0.99996 224
vit_cifar10                     600  1024 adamw 1e-3  1e-5 0.05 5      0.1  0.1 0.8 1 0.25 3 0 0       32
deit3_imagenet:s16              800   2048 lamb  4e-3  1e-5 0.05 5      0.05 0   0.8 1 0    3 1 0.99996 224
deit3_imagenet:b16              800   2048 lamb  3e-3  1e-5 0.05 5      0.2  0   0.8 1 0    3 1 0.99996 192
deit3_imagenet:l16              800   2048 lamb  3e-3  1e-5 0.05 5      0.45 0   0.8 1 0    3 1 0.99996 192
deit3_imagenet:h14              800   2048 lamb  3e-3  1e-5 0.05 5      0.6  0   0.8 1 0    3 1 0.99996 154
deit3_imagenet:s16_384          20    512  adamw 1e-5  1e-5 0.1  5      0    0.1 0.8 1 0    1 0 0.99996 384
deit3_imagenet:b16_224          20    512  adamw 1e-5  1e-5 0.1  5      0.2  0.1 0.8 1 0    1 0 0.99996 224
deit3_imagenet:b16_384          20    512  adamw 1e-5  1e-5 0.1  5      0.15 0.1 0.8 1 0    1 0 0.99996 384
deit3_imagenet:l16_224          20    512  adamw 1e-5  1e-5 0.1  5      0.45 0.1 0.8 1 0    1 0 0.99996 224
deit3_imagenet:l16_384          20    512  adamw 1e-5  1e-5 0.1  5      0.4  0.1 0.8 1 0    1 0 0.99996 384
deit3_imagenet:h14_224          20    512  adamw 1e-5  1e-5 0.1  5      0.55 0.1 0.8 1 0    1 0 0.99996 224
vit5_imagenet:s16               800   2048 lamb  4e-3  1e-5 0.05 5      0.05 0   0.8 1 0    3 1 0.99996 224
vit5_imagenet:b16               800   2048 lamb  3e-3  1e-5 0.05 5      0.2  0   0.8 1 0    3 1 0.99996 192
vit5_imagenet:l16               400   2048 lamb  3e-3  1e-5 0.05 5      0.35 0   0.8 1 0    3 1 0.99996 192
vit5_imagenet:s16_224           20    512  adamw 1e-5  1e-5 0.1  5      0.05 0.1 0.8 1 0    1 0 0.99996 224
vit5_imagenet:b16_224           20    512  adamw 1e-5  1e-5 0.1  5      0.25 0.1 0.8 1 0    1 0 0.99996 224
vit5_imagenet:b16_384           20    512  adamw 1e-5  1e-5 0.1  5      0.25 0.1 0.8 1 0    1 0 0.99996 384
vit5_imagenet:l16_224           20    512  adamw 1e-5  1e-5 0.1  5      0.5  0.1 0.8 1 0    1 0 0.99996 224
vit5_imagenet:l16_384           20    512  adamw 1e-5  1e-5 0.1  5      0.5  0.1 0.8 1 0    1 0 0.99996 384
cait_imagenet:xxs24             400   1024 adamw 1e-3  1e-5 0.05 5      0.05 0.1 0.8 1 0.25 3 0 0.99996 224
cait_imagenet:s24               400   1024 adamw 1e-3  1e-5 0.05 5      0.1  0.1 0.8 1 0.25 3 0 0.99996 224
cait_imagenet:s36               400   1024 adamw 1e-3  1e-5 0.05 5      0.2  0.1 0.8 1 0.25 3 0 0.99996 224
cait_imagenet:m36               400   1024 adamw 1e-3  1e-5 0.05 5      0.3  0.1 0.8 1 0.25 3 0 0.99996 224
cait_imagenet:xxs24_384         30    512  adamw 5e-6  5e-6 1e-8 5      0    0.1 0.8 1 0.25 3 0 0.99996 384
cait_imagenet:s24_384           30    512  adamw 5e-6  5e-6 1e-8 5      0    0.1 0.8 1 0.25 3 0 0.99996 384
cait_imagenet:s36_384           30    512  adamw 5e-6  5e-6 1e-8 5      0    0.1 0.8 1 0.25 3 0 0.99996 384
cait_imagenet:m36_384           30    512  adamw 5e-6  5e-6 1e-8 5      0    0.1 0.8 1 0.25 3 0 0.99996 384
convit_imagenet:ti              300   1024 adamw 1e-3  1e-5 0.05 5      0.1  0.1 0.8 1 0.25 3 0 0       224
convit_imagenet:s               300   1024 adamw 1e-3  1e-5 0.05 5      0.1  0.1 0.8 1 0.25 3 0 0       224
convit_imagenet:b               300   1024 adamw 1e-3  1e-5 0.05 5      0.1  0.1 0.8 1 0.25 3 0 0       224
swin_imagenet:t                 300   1024 adamw 1e-3  1e-5 0.05 20     0.2  0.1 0.8 1 0.25 1 5 0       224
swin_imagenet:s                 300   1024 adamw 1e-3  1e-5 0.05 20     0.3  0.1 0.8 1 0.25 1 5 0       224
swin_imagenet:b                 300   1024 adamw 1e-3  1e-5 0.05 20     0.5  0.1 0.8 1 0.25 1 5 0       224
swin_imagenet:b_384             30    1024 adamw 4e-5  4e-7 1e-8 5      0.5  0.1 0.8 1 0.25 1 5 0       384
convnext_imagenet:t              300   4096 adamw 4e-3  1e-6 0.05 20     0.1  0.1 0.8 1 0.25 1 0 0.9999  224
convnext_imagenet:s              300   4096 adamw 4e-3  1e-6 0.05 20     0.4  0.1 0.8 1 0.25 1 0 0.9999  224
convnext_imagenet:b              300   4096 adamw 4e-3  1e-6 0.05 20     0.5  0.1 0.8 1 0.25 1 0 0.9999  224
convnext_imagenet:l              300   4096 adamw 4e-3  1e-6 0.05 20     0.5  0.1 0.8 1 0.25 1 0 0.9999  224
convnext_imagenet:b_384          30    512  adamw 5e-5  1e-6 1e-8 0      0.8  0.1 0   0 0.25 1 0 0       384
convnext_imagenet:l_384          30    512  adamw 5e-5  1e-6 1e-8 0      0.95 0.1 0   0 0.25 1 0 0       384
vit_b32_imagenet                300   4096 adamw 3e-3  0    0.3  10000s 0    0   0   0 0    1 1 0       224
vit_b16_imagenet                300   4096 adamw 3e-3  0    0.3  10000s 0    0   0   0 0    1 1 0       224
vit_l16_imagenet                300   4096 adamw 3e-3  0    0.3  10000s 0    0   0   0 0    1 1 0       224
vit_h14_imagenet                300   4096 adamw 3e-3  0    0.3  10000s 0    0   0   0 0    1 1 0       224
r50_vit_b16_imagenet            300   4096 adamw 3e-3  0    0.3  10000s 0    0   0   0 0    1 1 0       224
vit_b16_imagenet_sam            300   4096 adamw 3e-3  0    0.3  10000s 0    0   0   0 0    1 1 0       224
vit_ti16_imagenet               300   4096 adamw 1e-3  0    0.1  10000s 0    0   0   0 0    1 1 0       224
vit_s16_imagenet                300   4096 adamw 1e-3  0    0.1  10000s 0    0   0.5 0 0    1 1 0       224
r26_vit_s32_imagenet            300   4096 adamw 1e-3  0    0.1  10000s 0    0   0.5 0 0    1 1 0       224
vit_b16_imagenet21k             300   4096 adamw 1e-3  0    0.1  10000s 0    0   0.2 0 0    1 1 0       224
vit_s16_imagenet_90ep           90    1024 adamw 1e-3  0    0.1  10000s 0    0   0.2 0 0    1 1 0       224
augreg_imagenet                 300   4096 adamw 1e-3  0    0.1  10000s 0    0   0.2 0 0    1 1 0       224
augreg_imagenet:vit_b32,strong2,0.03,0.1 300 4096 adamw 1e-3 0 0.03 10000s 0.1 0 0.8 0 0 1 1 0 224
augreg_imagenet:r50_vit_l32,none,0.1,0.0 300 4096 adamw 1e-3 0 0.1 10000s 0 0 0 0 0 1 1 0 224
mixer_b16_imagenet              300   4096 adamw 1e-3  1e-8 0.1  10000s 0.1  0   0.5 0 0    1 1 0       224
bit_r50x1_imagenet              90    4096 sgd   0.48  0    1e-4 5000s  0    0   0   0 0    1 0 0       224
bit_r50x1_imagenet_distilled    1200  4096 adamw 0.03  0    0.01 5000s  0    0   1   0 0    1 1 0       224
regnet_imagenet:regnety_4gf     100   512  sgd   0.4   0    5e-5 5      0    0   0   0 0    1 0 0       224
regnet_imagenet:regnety_16gf    100   256  sgd   0.2   0    5e-5 5      0    0   0   0 0    1 0 0       224
regnet_imagenet:resnet50        100   256  sgd   0.2   0    5e-5 0      0    0   0   0 0    1 0 0       224
finetune_vit:cifar10            10000s 512 sgd   0.03  0    0    500s   0    0   0   0 0    1 1 0       384
finetune_vit:cifar100           10000s 512 sgd   0.03  0    0    500s   0    0   0   0 0    1 1 0       384
finetune_vit:oxford_iiit_pet    500s  512  sgd   0.003 0    0    100s   0    0   0   0 0    1 1 0       384
finetune_vit:oxford_flowers102  500s  512  sgd   0.003 0    0    100s   0    0   0   0 0    1 1 0       384
finetune_vit:imagenet2012       20000s 512 sgd   0.03  0    0    500s   0    0   0   0 0    1 1 0       384
finetune_bit:cifar10            10000s 512 sgd   0.003 0    0    500s   0    0   0.1 0 0    1 0 0       128
finetune_bit:cifar100           10000s 512 sgd   0.003 0    0    500s   0    0   0.1 0 0    1 0 0       128
finetune_bit:oxford_iiit_pet    500s  512  sgd   0.003 0    0    100s   0    0   0   0 0    1 0 0       480
finetune_bit:oxford_flowers102  500s  512  sgd   0.003 0    0    100s   0    0   0   0 0    1 0 0       480
finetune_bit:imagenet2012       20000s 512 sgd   0.003 0    0    500s   0    0   0.1 0 0    1 0 0       480
vit_b16_imagenet_mpp            100000s 4096 adamw 2e-4 0   0    10000s 0    0   0   0 0    1 0 0       224
mae_imagenet:b16                800   4096 adamw 2.4e-3 0   0.05 40     0    0   0   0 0    1 0 0       224
mae_imagenet:l16                800   4096 adamw 2.4e-3 0   0.05 40     0    0   0   0 0    1 0 0       224
mae_imagenet:h14                800   4096 adamw 2.4e-3 0   0.05 40     0    0   0   0 0    1 0 0       224
mae_finetune:b16                100   1024 adamw 2e-3  1e-6 0.05 5      0.1  0.1 0.8 1 0.25 1 0 0       224
mae_finetune:l16                50    1024 adamw 4e-3  1e-6 0.05 5      0.2  0.1 0.8 1 0.25 1 0 0       224
mae_finetune:h14                50    1024 adamw 4e-3  1e-6 0.05 5      0.3  0.1 0.8 1 0.25 1 0 0       224
hiera_imagenet:t                100   1024 adamw 2e-3  1e-6 0.05 5      0.1  0.1 0.8 1 0.25 1 0 0       224
hiera_imagenet:s                100   1024 adamw 2e-3  1e-6 0.05 5      0.1  0.1 0.8 1 0.25 1 0 0       224
hiera_imagenet:b                100   1024 adamw 2e-3  1e-6 0.05 5      0.1  0.1 0.8 1 0.25 1 0 0       224
hiera_imagenet:b_plus           100   1024 adamw 2e-3  1e-6 0.05 5      0.1  0.1 0.8 1 0.25 1 0 0       224
hiera_imagenet:l                50    1024 adamw 4e-3  1e-6 0.05 5      0.2  0.1 0.8 1 0.25 1 0 0       224
hiera_imagenet:h                50    1024 adamw 4e-3  1e-6 0.05 5      0.3  0.1 0.8 1 0.25 1 0 0       224
mae_linear:b16                  90    16384 lars 6.4   0    0    10     0    0   0   0 0    1 0 0       224
mae_linear:l16                  50    16384 lars 6.4   0    0    10     0    0   0   0 0    1 0 0       224
mae_linear:h14                  50    16384 lars 6.4   0    0    10     0    0   0   0 0    1 0 0       224
dino_imagenet:dino              100   512  adamw 1e-3  1e-6 0.04 10     0.1  0   0   0 0    1 3 0.996   224
dino_imagenet:dino_300          300   1024 adamw 2e-3  1e-6 0.04 10     0.1  0   0   0 0    1 3 0.996   224
dino_imagenet:dinov2            125000s 2048 adamw 5.656854249492381e-3 1e-6 0.04 12500s 0.3 0 0 0 0 1 3 0.992 224
dino_imagenet:dinov3            125000s 2048 adamw 5.656854249492381e-3 1e-6 0.04 12500s 0.3 0 0 0 0 1 3 0.992 224
dino_imagenet:dinov3_gram       125000s 2048 adamw 5.656854249492381e-3 1e-6 0.04 12500s 0.3 0 0 0 0 1 3 0.992 224
lejepa_imagenet:l14             100   512  adamw 5e-4  5e-7 0.05 10     0.1  0   0   0 0    1 0 0     224
lejepa_imagenet:s8_imagenette   800   256  adamw 2e-3  1e-3 0.05 1      0.1  0   0   0 0    1 0 0     128
ijepa_imagenet:h14              300   2048 adamw 1e-3  1e-6 0.04 40     0    0   0   0 0    1 0 0.996 224
ijepa_imagenet:h16_448          300   2048 adamw 1e-3  1e-6 0.04 40     0    0   0   0 0    1 0 0.996 448
flexivit_imagenet:s             90    1024 adamw 1e-4  0    0.1  5000s  0    0   1   0 0    1 1 0       240
flexivit_imagenet:b             90    1024 adamw 1e-4  0    0.1  5000s  0    0   1   0 0    1 1 0       240
flexivit_imagenet:l             90    1024 adamw 1e-4  0    0.1  5000s  0    0   1   0 0    1 1 0       240
naflex_imagenet:b16             300   1024 adamw 1e-3  1e-5 0.05 5      0.1  0.1 0.8 0 0    1 0 0.99996 384
naflex_imagenet:b16_packed      300   1024 adamw 1e-3  1e-5 0.05 5      0.1  0.1 0   0 0    1 0 0.99996 384
naflex_imagenet:siglip          30    1024 adamw 5e-5  1e-5 0.05 5      0.1  0.1 0.8 0 0    1 0 0.99996 256
clip_imagetext:b32              32   32768 adamw 5e-4 0    0.2  2000s  0    0   0   0 0    1 0 0       224
clip_imagetext:b16              32   32768 adamw 5e-4 0    0.2  2000s  0    0   0   0 0    1 0 0       224
clip_imagetext:l14              32   32768 adamw 4e-4 0    0.2  2000s  0    0   0   0 0    1 0 0       224
siglip_imagetext:b16            40e9x 32768 adamw 1e-3 0   0.1  20000s 0    0   0   0 0    1 1 0       224
siglip_imagetext:l16            40e9x 32768 adamw 1e-3 0   0.1  20000s 0    0   0   0 0    1 1 0       256
siglip_imagetext:so400m14       40e9x 32768 adamw 1e-3 0   0.1  20000s 0    0   0   0 0    1 1 0       224
lit_imagetext:b16               60000s 16384 adafactor 1e-3 0 0.1 10000s 0  0   0   0 0    1 1 0       224
"""  # noqa: E501  (a table: broken lines could not be compared with the papers)
TABLE = {row.split()[0]: row.split()[1:] for row in PUBLISHED.strip().splitlines()}
VTAB = """caltech101 cifar100 dtd flowers pets sun397 svhn camelyon eurosat resisc45 retinopathy
clevr_count clevr_distance dmlab dsprites_location dsprites_orientation kitti_distance
smallnorb_azimuth smallnorb_elevation"""
# One row for all of its tasks.
ONE_ROW = "2500s 512 sgd 0.01 0 0 500s 0 0 0 0 0 1 1 0 384"
TABLE |= {f"finetune_vtab:{task}": ONE_ROW.split() for task in VTAB.split()}


def get(run: str) -> Config:
    stem, _, arg = run.partition(":")
    return load(CONFIGS / f"{stem}.py", arg)


def duration(text: str) -> str:
    if text == "0":
        return ""
    if text.endswith("x"):
        return f"{text[:-1]} examples"
    return f"{int(text[:-1])} steps" if text.endswith("s") else f"{text} epochs"


def test_numbers_are_the_published(subtests: pytest.Subtests) -> None:
    for run in TABLE:
        with subtests.test(run):
            cfg, row = get(run), dict(zip(COLUMNS.split(), TABLE[run], strict=True))
            side = int(row["side"])
            text = {"duration": cfg.duration, "warmup": cfg.optim.warmup.replace("_", "")}
            assert text == {"duration": duration(row["length"]), "warmup": duration(row["warmup"])}
            assert cfg.optim.name == row["optim"]
            assert cfg.model.image_size == (side, side)
            numbers = {
                "batch": cfg.data.batch_size,
                "lr": cfg.optim.lr,
                "end": cfg.optim.min_lr,
                "wd": cfg.optim.weight_decay,
                "path": getattr(cfg.model, "drop_path_rate", 0.0),
                "smooth": getattr(cfg.objective, "label_smoothing", 0.0),
                "mixup": cfg.data.mix.mixup_alpha,
                "cutmix": cfg.data.mix.cutmix_alpha,
                "erase": cfg.data.erasing_prob,
                "copies": cfg.data.repeats,
                "clip": cfg.optim.clip_norm,
                "ema": cfg.ema_decay,
            }
            assert numbers == pytest.approx({key: float(row[key]) for key in numbers}, rel=1e-12)


def test_sgd_decays_in_the_gradient() -> None:
    for run in TABLE:
        optim = get(run).optim
        assert optim.coupled_decay == (optim.name == "sgd" and optim.weight_decay > 0), run


def test_regnet_schedule_and_decay(subtests: pytest.Subtests) -> None:
    for run in [run for run in TABLE if run.startswith("regnet")]:
        with subtests.test(run):
            optim = get(run).optim
            assert (optim.schedule, optim.schedule_every) == (Schedule.COSINE, "1 epoch")
            assert (optim.schedule_lag, optim.nesterov, optim.decay) == (False, True, ".")
            if run != "regnet_imagenet:resnet50":
                assert optim.warmup_lr == pytest.approx(0.1 * optim.lr)
                assert optim.warmup_overlap


# Own or drawn images.
OWN = ("finetune_folder", "pretrain_fractals", "unlabelled_folder", "unlabelled_glyphs")
OWN = (*OWN, "naflex_folder", "finetune_imagetext", "captions_small", "emoji_imagetext")
OWN = (*OWN, "depth_folder", "nyu_depth")  # NYU's images are no squares: it has a test of its own
OWN = (*OWN, "referee_glyphs", "referee_imagenet")  # settings of several papers, side by side
OWN = (*OWN, "segment_ade20k", "eomt")  # in tests of their own, of pixels
OWN = (*OWN, "scenes")  # drawn here


def test_every_published_run_is_in_the_table() -> None:
    for path in FILES:
        if "_digits" not in path.stem and path.stem not in OWN:
            runs = [run.partition(":")[2] for run in TABLE if run.split(":")[0] == path.stem]
            if arguments(path):
                assert sorted(runs) == sorted(arguments(path)), path
            else:
                assert runs[:1] == [""], path


TIMM = [run for run in TABLE if run.startswith(("deit", "vit5", "cait", "convit"))]
SWIN = [run for run in TABLE if run.startswith("swin")]
GOOGLE = [
    run
    for run in TABLE
    if run.startswith(("vit_", "r50_", "r26_", "augreg")) and not run.endswith(("_mpp", "cifar10"))
]


def test_deit_schedule_and_images(subtests: pytest.Subtests) -> None:
    for run in TIMM:
        with subtests.test(run):
            three = run.startswith(("deit3", "vit5")) and "_" not in run.partition(":")[2]
            cfg = get(run)
            optim, transform = cfg.optim, cfg.data.transform
            assert (optim.schedule, optim.schedule_every) == (Schedule.COSINE, "1 epoch")
            assert (optim.schedule_lag, optim.warmup_overlap, optim.warmup_lr) == (True, True, 1e-6)
            assert (optim.beta1, optim.beta2, optim.eps, optim.layer_decay) == (0.9, 0.999, 1e-8, 1)
            assert optim.decay == ("kernel$|dist_token" if "distilled" in run else "kernel$")
            assert transform.crop is Crop.RANDOM_RESIZED
            assert transform.resize is Interpolation.BICUBIC
            assert (transform.flip, transform.area, transform.aspect) == (True, (), ())
            policy = ("3-augment", 0.3) if three else ("rand-m9-mstd0.5-inc1", 0.0)
            assert (transform.auto_augment, transform.color_jitter) == policy
            assert (cfg.data.mix.partner, cfg.data.mix.prob) == (Partner.REVERSED, 1.0)
            assert (cfg.data.mix.switch_prob, cfg.data.mix.per_example) == (0.5, False)
            assert cfg.data.mean == (0.485, 0.456, 0.406)
            assert cfg.data.std == (0.229, 0.224, 0.225)
            loss = (Loss.BCE, True) if three else (Loss.SOFTMAX, False)
            assert (cfg.objective.loss, cfg.objective.binarize) == loss
            constant = run.startswith(("deit3", "vit5", "cait"))
            rule = getattr(cfg.model, "drop_path_rule", DropPathRule.LINEAR)
            assert run.startswith("cait") or (rule is DropPathRule.CONSTANT) == constant


def test_cifar10_from_scratch_is_deit_on_small_images() -> None:
    cfg, deit = get("vit_cifar10"), get("deit_imagenet:s16")
    assert (cfg.optim, cfg.objective, cfg.data.mix) == (deit.optim, deit.objective, deit.data.mix)
    transform = cfg.data.transform
    assert (transform.crop, transform.pad, transform.crop_ratio) == (Crop.RANDOM, 4, 1.0)
    assert (transform.flip, transform.auto_augment) == (True, deit.data.transform.auto_augment)
    assert (cfg.data.mean, cfg.data.std) == ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    assert (cfg.model.patch, cfg.model.class_token, cfg.model.pool) == ((4, 4), False, "gap")
    # What is reported is of images that nothing was chosen by, at the end of the run.
    assert (cfg.data.train_split, cfg.checkpoint.keep_best) == ("train", 0)
    assert {name: ev.split for name, ev in cfg.evals.items()} == {"test": "test"}


def test_swin_schedule_and_images(subtests: pytest.Subtests) -> None:
    for run in SWIN:
        with subtests.test(run):
            cfg = get(run)
            optim, transform = cfg.optim, cfg.data.transform
            assert (optim.schedule, optim.schedule_every) == (Schedule.COSINE, "")
            assert (optim.schedule_lag, optim.warmup_overlap) == (True, False)
            assert optim.decay == "kernel$"
            assert optim.warmup_lr == (4e-8 if "384" in run else 1e-6)
            assert transform.crop is Crop.RANDOM_RESIZED
            assert transform.resize is Interpolation.BICUBIC
            assert (transform.flip, transform.auto_augment) == (True, "rand-m9-mstd0.5-inc1")
            assert cfg.data.mix.partner is Partner.REVERSED
            plain = cfg.evals["val"].transform
            ratio = round(224 / plain.crop_ratio)
            assert (plain.crop, ratio) == ((Crop.RESIZE if "384" in run else Crop.CENTER), 256)


def test_convnext_as_its_authors_trained_it() -> None:
    start, tuned = get("convnext_imagenet:b"), get("convnext_imagenet:b_384")
    for optim in (start.optim, tuned.optim):
        assert (optim.schedule, optim.schedule_every) == (Schedule.COSINE, "")
        assert (optim.schedule_lag, optim.warmup_overlap, optim.decay) == (False, False, "kernel$")
        assert (optim.warmup_lr, optim.beta1, optim.beta2) == (0.0, 0.9, 0.999)
    assert start.data.transform == get("deit_imagenet:b16").data.transform == tuned.data.transform
    assert (start.model.layer_scale, start.evals["val"].transform.crop_ratio) == (1e-6, 0.875)
    assert tuned.evals["val"].transform.crop is Crop.RESIZE
    assert start.optim.layer_decay == tuned.optim.layer_decay == 1
    # get_num_layer_for_convnext of its optim_factory.py, of 13.
    layers = {"stem/conv1/kernel": [0], "stage0/blocks/mlp/fc1/kernel": [1] * 3}
    layers |= {"stage1/downsample/conv/kernel": [2], "stage2/downsample/norm/scale": [3]}
    layers |= {"stage2/blocks/ls/gamma": [3 + i // 3 for i in range(27)], "norm/scale": [13]}
    layers |= {"stage3/downsample/conv/bias": [12], "stage3/blocks/norm/bias": [12] * 3}
    lr = make_rules(tuned.optim, models.abstract(tuned.model)["params"]).lr
    for name, numbers in layers.items():
        expected = 0.7 ** (13 - np.array(numbers))
        np.testing.assert_allclose(np.broadcast_to(lr[name].ravel(), len(numbers)), expected, 1e-5)


@pytest.mark.parametrize(
    "run, side",
    [
        ("deit_imagenet:b16", 256),
        ("deit_imagenet:b16_384", 438),
        ("deit_distilled_imagenet:b16_384", 438),
        ("deit_b16_cifar10", 256),
    ],
)
def test_deit_is_tested_on_the_centre(run: str, side: int) -> None:
    cfg = get(run)
    (ev,) = cfg.evals.values()
    assert (ev.transform.crop, ev.transform.resize) == (Crop.CENTER, Interpolation.BICUBIC)
    assert round(cfg.model.image_size[0] / ev.transform.crop_ratio) == side


def test_deit3_vit5_and_cait_are_tested_on_the_central_square(subtests: pytest.Subtests) -> None:
    for run in [run for run in TABLE if run.startswith(("deit3", "vit5", "cait"))]:
        with subtests.test(run):
            assert get(run).evals["val"].transform.crop_ratio == 1.0


def test_each_evaluation_crops_as_the_code_of_its_paper(subtests: pytest.Subtests) -> None:
    for run in TABLE:
        with subtests.test(run):
            # Google's is TensorFlow; DeiT's, Swin's and the others' torchvision.
            cfg = get(run)
            authors = ("deit", "vit5", "cait", "conv", "swin", "regnet", "mae", "dino", "clip")
            authors = (*authors, "lejepa", "ijepa", "hiera")
            torch_born = run.startswith(authors)
            rules = {ev.transform.crop_rule for ev in cfg.evals.values()}
            assert rules == {CropRule.TORCH if torch_born else CropRule.TF}


def is_taught(run: str) -> bool:
    return run.startswith(("cait", "flexivit")) or ("distilled" in run and "384" not in run)


def test_teachers(subtests: pytest.Subtests) -> None:
    for run in [run for run in TABLE if is_taught(run)]:
        with subtests.test(run):
            cfg = get(run)
            if run.startswith("flexivit"):
                continue  # by its own, below
            distill, bit = cfg.objective.distill, run.startswith("bit")
            teacher = models.variant(
                "bit_r152x2" if bit else "regnety_16gf",
                image_size=cfg.model.image_size,
                dtype=distill.teacher.dtype,
            )
            assert distill.teacher == teacher
            assert distill.kind is (Distillation.KL if bit else Distillation.HARD)
            assert (distill.alpha, distill.temperature) == ((1.0 if bit else 0.5), 1.0)
            assert (distill.mean, distill.std) == ((), ())
            assert getattr(cfg.model, "distilled", False) == run.startswith("deit")


@pytest.mark.parametrize("size, name", [("s", "small"), ("b", "base"), ("l", "large")])
def test_flexivit_as_its_authors_trained_it(size: str, name: str) -> None:
    cfg = get(f"flexivit_imagenet:{size}")
    model, distill = cfg.model, cfg.objective.distill
    assert [240 // side for side in model.drawn_patches] == [5, 6, 8, 10, 12, 15, 16, 20, 24, 30]
    assert (model.base_patch, model.base_grid, model.pool) == ((16, 16), (7, 7), "cls")
    assert distill.weights == cfg.init.weights
    assert cfg.init.weights == f"timm:deit3_{name}_patch16_384.fb_in1k.safetensors"
    assert (distill.teacher.image_size, distill.teacher.dim) == ((384, 384), model.dim)
    assert (distill.kind, distill.alpha, distill.temperature) == (Distillation.KL, 1.0, 1.0)
    assert (cfg.data.transform.crop, cfg.data.transform.flip) == (Crop.INCEPTION, True)
    assert [ev.patch for ev in cfg.evals.values() if ev.patch] == list(model.drawn_patches)


def test_nobody_else_has_a_teacher() -> None:
    for run in TABLE:
        taught = isinstance(get(run).objective, DistillConfig)
        assert taught == is_taught(run), run


def test_checkpoints_are_ranked_by_what_was_held_out_if_at_all() -> None:
    for run in TABLE:
        cfg = get(run)
        if cfg.checkpoint.keep_best:
            held_out = cfg.evals[cfg.checkpoint.metric.split("/")[0]]
            assert held_out.split.startswith(("train[", "full[")), run


def test_the_distillation_token_is_decayed() -> None:
    for run in TABLE:
        decayed = get(run).optim.decay == "kernel$|dist_token"
        assert decayed == (run.startswith("deit") and "distilled" in run), run


def test_only_the_fine_tunings_of_deit_run_as_evaluated() -> None:
    for run in TABLE:
        cfg = get(run)
        evaluated = run.startswith(("deit_", "cait")) and "384" in run
        assert getattr(cfg.objective, "train_mode", True) != evaluated, run


def test_fine_tunings_start_from(subtests: pytest.Subtests) -> None:
    for run, weights, resize, skip in [
        ("deit_imagenet:b16_384", "timm:deit_base_patch16_224.fb_in1k.safetensors", "official", ()),
        (
            "deit_b16_cifar10",
            "timm:deit_base_patch16_224.fb_in1k.safetensors",
            "official",
            ("^head/",),
        ),
        (
            "swin_imagenet:b_384",
            "timm:swin_base_patch4_window7_224.ms_in1k.safetensors",
            "official",
            (),
        ),
        ("convnext_imagenet:b_384", "timm:convnext_base.fb_in1k.safetensors", "auto", ()),
        ("convnext_imagenet:l_384", "timm:convnext_large.fb_in1k.safetensors", "auto", ()),
        ("hiera_imagenet:b_plus", "timm:hiera_base_plus_224.mae.safetensors", "auto", ()),
        ("deit3_imagenet:s16_384", "ckpt:runs/deit3_s16_imagenet", "official", ()),
        ("deit3_imagenet:b16_224", "ckpt:runs/deit3_b16_imagenet", "official", ()),
        ("deit3_imagenet:b16_384", "ckpt:runs/deit3_b16_imagenet_224", "official", ()),
        ("vit5_imagenet:b16_384", "ckpt:runs/vit5_b16_imagenet", "official", ()),
        ("cait_imagenet:m36_384", "ckpt:runs/cait_m36_imagenet", "official", ()),
        ("finetune_vit:cifar10", "npz:ViT-B_16.npz", "auto", ("^head/", "^pre_logits/")),
        ("finetune_bit:cifar10", "npz:BiT-M-R50x1.npz", "auto", ("^head/",)),
    ]:
        with subtests.test(run):
            init = get(run).init
            assert (init.weights, init.resize, init.skip) == (weights, ResizeRule(resize), skip)


def test_vit5_is_tuned_from_averages() -> None:
    averaged = [run for run in TABLE if get(run).init.ema]
    assert averaged == [run for run in TABLE if run.startswith("vit5") and "6_" in run]


def test_google_schedule_and_images(subtests: pytest.Subtests) -> None:
    for run in GOOGLE:
        with subtests.test(run):
            cfg = get(run)
            assert (cfg.optim.schedule, cfg.optim.warmup_lr) == (Schedule.COSINE, 0.0)
            assert (cfg.optim.schedule_every, cfg.optim.schedule_lag) == ("", False)
            assert (cfg.data.transform.crop, cfg.data.transform.flip) == (Crop.INCEPTION, True)
            assert (cfg.data.mean, cfg.data.std) == ((0.5,), (0.5,))
            paper = run.startswith(("vit_b32", "vit_l16", "vit_h14", "r50_vit_b16")) or run in (
                "vit_b16_imagenet",
                "vit_b16_imagenet_sam",
                "vit_s16_imagenet_90ep",
            )
            assert cfg.objective.loss is (Loss.SOFTMAX if paper else Loss.SIGMOID)
            if not paper:
                assert cfg.model.head_bias == -math.log(cfg.model.num_classes)


@pytest.mark.parametrize(
    "run, policy, dropout",
    [
        ("vit_b16_imagenet", "", 0.1),
        ("r50_vit_b16_imagenet", "", 0.1),
        ("vit_b16_imagenet_sam", "", 0.0),
        ("vit_ti16_imagenet", "randaug(2,0)", 0.0),
        ("vit_s16_imagenet", "randaug(2,15)", 0.0),
        ("vit_s16_imagenet_90ep", "randaug(2,10)", 0.0),
        ("vit_b16_imagenet21k", "randaug(2,15)", 0.0),
        ("augreg_imagenet", "randaug(2,15)", 0.0),
        ("augreg_imagenet:vit_b32,strong2,0.03,0.1", "randaug(2,20)", 0.1),
        ("augreg_imagenet:vit_s16,light1,0.03,0.1", "randaug(2,0)", 0.1),
    ],
)
def test_google_augmentation(run: str, policy: str, dropout: float) -> None:
    cfg = get(run)
    assert (cfg.data.transform.auto_augment, cfg.model.dropout_rate) == (policy, dropout)


def test_sam_is_of_one_run_alone() -> None:
    assert {run: get(run).optim.sam_rho for run in TABLE if get(run).optim.sam_rho} == {
        "vit_b16_imagenet_sam": 0.2
    }


@pytest.mark.parametrize(
    "run, classes, train, val, test",
    [
        ("finetune_vit:cifar10", 10, "train[:98%]", "train[98%:]", "test"),
        ("finetune_vit:cifar100", 100, "train[:98%]", "train[98%:]", "test"),
        ("finetune_vit:oxford_iiit_pet", 37, "train[:90%]", "train[90%:]", "test"),
        ("finetune_vit:oxford_flowers102", 102, "train[:90%]", "train[90%:]", "test"),
        ("finetune_vit:imagenet2012", 1000, "train[:99%]", "train[99%:]", "validation"),
        ("finetune_bit:cifar100", 100, "train[:98%]", "train[98%:]", "test"),
    ],
)
def test_fine_tuning_splits(run: str, classes: int, train: str, val: str, test: str) -> None:
    cfg = get(run)
    assert (cfg.model.num_classes, cfg.data.train_split) == (classes, train)
    assert {name: ev.split for name, ev in cfg.evals.items()} == {"val": val, "test": test}
    assert {ev.transform.crop for ev in cfg.evals.values()} == {Crop.RESIZE}
    assert cfg.data.name == run.partition(":")[2]


@pytest.mark.parametrize(
    "dataset, milestones, resized",
    [
        ("cifar10", (3000, 6000, 9000), 160),
        ("oxford_iiit_pet", (200, 300, 400), 512),
        ("oxford_flowers102", (200, 300, 400), 512),
        ("imagenet2012", (6000, 12000, 18000), 512),
    ],
)
def test_bit_hyper_rule(dataset: str, milestones: tuple[int, ...], resized: int) -> None:
    cfg = get(f"finetune_bit:{dataset}")
    assert (cfg.optim.schedule, cfg.optim.decay_factor) == (Schedule.STEP, 0.1)
    assert cfg.optim.milestones == tuple(f"{step} steps" for step in milestones)
    assert cfg.data.transform.crop is Crop.SQUASH_RANDOM
    assert round(cfg.model.image_size[0] / cfg.data.transform.crop_ratio) == resized
    assert cfg.data.mix.partner is (
        Partner.REVERSED if cfg.data.mix.mixup_alpha else Partner.PREVIOUS
    )


def test_an_unknown_choice_is_told_all_of_them() -> None:
    assert choose("run", "b", ["a", "b"]) == "b"
    with pytest.raises(UserError, match=r"^unknown run 'c'; valid: a, b$"):
        choose("run", "c", ["a", "b"])
