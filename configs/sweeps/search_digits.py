# SPDX-License-Identifier: Apache-2.0
r"""Learning rate, weight decay and drop path of the digits' ViT with AdamW, searched by Optuna.

    vit_jax sweep run configs/sweeps/search_digits.py --out=runs/search --workers=2
    vit_jax sweep report runs/search

A run that is worse at an evaluation than the median of those before it is given up there.
"""

import optuna

from vit_jax.sweeps import grid

CONFIG = "configs/vit_mu_digits.py"
METRIC = "val/loss"
TRIALS = 20
SAMPLER = optuna.samplers.TPESampler(seed=0, n_startup_trials=8, constant_liar=True)
PRUNER = optuna.pruners.MedianPruner(n_startup_trials=5)


def search(trial: optuna.Trial) -> grid.Overrides:
    return {
        "optim.name": "adamw",
        "optim.momentum": 0.9,
        "optim.nesterov": False,
        "optim.lr": trial.suggest_float("lr", 1e-4, 2e-2, log=True),
        "optim.weight_decay": trial.suggest_float("weight_decay", 1e-3, 1.0, log=True),
        "model.drop_path_rate": trial.suggest_float("drop_path_rate", 0.0, 0.3, step=0.05),
        "evals.val.split": "train[1000:]",
        "data.train_split": "train[:1000]",
        "duration": "30 epochs",
        "evals.val.every": "3 epochs",
        "optim.warmup": "10%",
        "log.every": "1 epoch",
        "log.tensorboard": False,
        "checkpoint.keep_best": 0,
    }
