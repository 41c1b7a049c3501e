# SPDX-License-Identifier: Apache-2.0
r"""Adam or SGD for ResNets of two widths: the ViT paper's appendix D.1, on digits.

    vit_jax sweep run configs/sweeps/optimizer_digits.py --out=runs/optimizer --workers=2
    vit_jax sweep report runs/optimizer

Table 7 of arXiv:2010.11929 (ResNets of JFT by Adam and by SGD, then fine-tuned on five datasets;
their means; from memory of the paper): 50x1 89.33 by Adam, 88.79 by SGD; 152x2 94.01 and 93.72.
Here they learn the digits from the start, with nothing after. Outcome: docs/studies.md.
"""

from collections.abc import Iterator

from vit_jax.sweeps import grid

CONFIG = "configs/resnet_digits.py"
METRIC = "test/top1"

WIDTHS = {"x1": (64, 128), "x2": (128, 256)}
ADAM = {"optim.name": "adamw", "optim.nesterov": False, "optim.weight_decay": 0.0}
RATES = {"SGD": (0.1, 0.3), "Adam": (3e-3, 1e-2)}
SEEDS = (0, 1)
SHORT = {"duration": "8 epochs", "optim.warmup": "10%", "data.mix.mixup_alpha": 0.0}
SHORT |= {"log.every": "50%", "log.tensorboard": False, "evals.val.every": "50%"}
SHORT |= {"checkpoint.every": "100%", "checkpoint.keep_best": 0, "evals.test.report": False}


def sweep() -> Iterator[grid.Overrides]:
    for width, widths in WIDTHS.items():
        for optimizer, rates in RATES.items():
            own = {**(ADAM if optimizer == "Adam" else {}), "model.widths": widths, **SHORT}
            for lr in rates:
                for seed in SEEDS:
                    name = f"ResNet {width}/{optimizer}, lr={lr:g} seed={seed}"
                    yield {"name": name, "seed": seed, "optim.lr": lr, **own}
