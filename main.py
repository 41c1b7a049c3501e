# SPDX-License-Identifier: Apache-2.0
"""Train the run that a config file describes.

python main.py --config=configs/vit_mu_digits.py --workdir=runs/digits [--config.optim.lr=3e-4]
"""

import sys

from vit_jax.cli.train import main

if __name__ == "__main__":
    sys.exit(main(sys.argv))
