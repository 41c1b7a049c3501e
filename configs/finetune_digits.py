# SPDX-License-Identifier: Apache-2.0
r"""The second half of a chain on scikit-learn's digits: the classes 5 to 9, from 47 scans.

    python main.py --config=configs/finetune_digits_pretrain.py \
        --workdir=runs/finetune_digits_pretrain
    python main.py --config=configs/finetune_digits.py:finetune --workdir=runs/finetune_digits

(--config.init.weights=ckpt:DIR starts from another run.) finetune: the weights of the first half
under a new head, each layer with a smaller lr than the one above; probe: these weights frozen, only
the new head trains; scratch: random weights, for comparison. The last two runs augment the scans.
Runs: finetune, probe, scratch, finetune_augmented, scratch_augmented
Hardware: 2 CPU cores, half a minute.
Published: none; `python -m benchmarks.recipes` measures test top-1 (docs/reproduce.md).
"""

from vit_jax import Config, Crop, InitConfig, MixConfig, OptimConfig, TransformConfig
from vit_jax.recipes import choose, digits

RUNS = ("finetune", "probe", "scratch", "finetune_augmented", "scratch_augmented")


def get_config(arm: str = "finetune") -> Config:
    choose("arm", arm, RUNS)
    config = digits.five(range(5, 10))
    config.data.train_split, config.data.batch_size = "train[:100]", 48
    config.duration = "600 steps"
    config.evals["val"].every = config.checkpoint.every = "20%"
    if not arm.endswith("augmented"):
        config.data.transform, config.data.mix = TransformConfig(crop=Crop.RESIZE), MixConfig()
    if not arm.startswith("scratch"):
        config.init = InitConfig(weights="ckpt:runs/finetune_digits_pretrain", skip=("^head/",))
    if arm.startswith("finetune"):
        config.optim.lr, config.optim.layer_decay = 1e-3, 0.75
    if arm == "probe":
        config.optim = OptimConfig(lr=1e-2, warmup="5%", freeze="^(?!head/)")
    return config
