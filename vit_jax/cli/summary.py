# SPDX-License-Identifier: Apache-2.0
"""`python -m vit_jax summary --config=FILE`: the model of a config, by shapes alone."""

import sys
from collections.abc import Sequence

from vit_jax.cli import flags as cli_flags

_HELP = """usage: python -m vit_jax summary --config=FILE [--config.model.depth=6 ...]

Prints every parameter with its shape, and the FLOPs of the model. Needs no data and makes no array.

  python -m vit_jax summary --config=configs/vit_b16_imagenet.py
  python -m vit_jax summary --config=configs/vit_l16_imagenet.py --config.model.image_size=384"""


def main(argv: Sequence[str]) -> int:
    """Run the command line (program name first) and return the exit status."""
    if any(argument in ("-h", "--help") for argument in argv):
        print(_HELP)
        return 0

    def command() -> int:
        cfg = cli_flags.read_config(argv, cli_flags.define(argv))
        from vit_jax import models
        from vit_jax.analysis import flops, tables

        module = models.create(models.looped(cfg.model))  # traced sooner, counted alike
        params = models.abstract(cfg.model)["params"]
        height, width, channels = models.input_shape(cfg.model)
        forward = flops.forward_flops(module, (height, width), channels)
        print("\n".join(tables.parameter_table(params)))
        print(f"\nforward pass of one {height}x{width} image: {tables.format_flops(forward)}")
        print(f"training step of one image: {tables.format_flops(flops.train_flops(forward))}")
        return 0

    return cli_flags.run(command, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
