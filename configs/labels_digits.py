# SPDX-License-Identifier: Apache-2.0
r"""The digits again: several labels of a scan, and numbers measured on it.

    python -m benchmarks.several_labels --write=runs/digits_tables
    python main.py --config=configs/labels_digits.py:several --workdir=runs/labels
    python main.py --config=configs/labels_digits.py:numbers --workdir=runs/numbers

The first command writes scikit-learn's 1,797 scans as PNG files, and two tables of them: with the
labels even, prime, big (above four) and loop, of which loop is not known of a four (open or closed,
as its writer likes), and with two numbers, the scan's ink and slant. Splits are the digits': 1,293
scans to train on, 144 to validate, 360 of other writers to test on. Everything else is the recipe
of vit_mu_digits for 20 epochs without mixup, and for the numbers without warps, which change them.
Runs: several, numbers
Hardware: 2 CPU cores, about a minute each.
Published: none; docs/own_data.md has three seeds, beside models of the pixels.
"""

from vit_jax import Config
from vit_jax.recipes import labels

RUNS = labels.RUNS


def get_config(run: str = "several") -> Config:
    return labels.digits(run)
