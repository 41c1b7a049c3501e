# SPDX-License-Identifier: Apache-2.0
r"""RegNetY, and ResNet-50 as its paper's baseline, on ImageNet-1k from scratch, a plain recipe.

    python main.py --config=configs/regnet_imagenet.py:regnety_4gf --workdir=DIR

Runs: regnety_4gf, regnety_16gf, resnet50
Hardware: batch 512 for 4GF, 256 for the others; one GPU of 80 GB (ResNet-50: 40 GB), or 8 of 16 GB
(the authors: 17.5, 50.8 and 14.8 hours on 8 V100).
Published: top-1 at 224, 4GF 79.4 %, 16GF 80.4 % (arXiv:2003.13678 table 4, facebookresearch/pycls
MODEL_ZOO; timm's regnety_040 and regnety_160.pycls_in1k), ResNet-50 76.8 % (MODEL_ZOO). MODEL_ZOO
reports 5 epochs of warmup for all runs on 8 GPUs; ResNet-50's file, R-50-1x64d_dds_8gpu.yaml, has
none, as here. DeiT's teacher is 16GF trained with DeiT's data and augmentation, 82.9 %
(arXiv:2012.12877 section 5): timm's regnety_160.deit_in1k.
"""

from vit_jax import Config, models
from vit_jax.recipes import choose, regnet

RUNS = {"regnety_4gf": (512, 5), "regnety_16gf": (256, 5), "resnet50": (256, 0)}


def get_config(run: str = "regnety_4gf") -> Config:
    model = models.variant(choose("run", run, RUNS))
    batch_size, warmup = RUNS[run]
    return regnet.imagenet(model, batch_size=batch_size, warmup_epochs=warmup)
