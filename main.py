# SPDX-License-Identifier: Apache-2.0
"""Train the run that a config file describes.

python main.py --config=configs/vit_mu_digits.py --workdir=runs/digits [--config.optim.lr=3e-4]
"""

import sys

if __name__ == "__main__":  # not in the data loader's processes, which import this file
    try:
        from vit_jax.process import launch

        launch.begin()
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(launch.load("vit_jax.cli.train")(sys.argv))
