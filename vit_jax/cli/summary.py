# SPDX-License-Identifier: Apache-2.0
"""`python -m vit_jax summary --config=FILE`: a config and its model, by shapes alone."""

import sys
from collections.abc import Sequence

from absl import flags

from vit_jax.cli import flags as cli_flags

_HELP = """usage: python -m vit_jax summary --config=FILE [--config.model.depth=6 ...]

Prints the config's fields that are not at their defaults (all of them with --all_fields), every
parameter with its shape, and the FLOPs of the model. Needs no data and makes no array.

  python -m vit_jax summary --config=configs/vit_b16_imagenet.py
  python -m vit_jax summary --config=configs/vit_l16_imagenet.py --config.model.image_size=384"""


def main(argv: Sequence[str]) -> int:
    """Run the command line (program name first) and return the exit status."""
    if any(argument in ("-h", "--help") for argument in argv):
        print(_HELP)
        return 0

    def command() -> int:
        values = cli_flags.define(argv)
        flags.DEFINE_bool("all_fields", False, "See --help.", flag_values=values)
        cfg = cli_flags.read_config(argv, values)
        from vit_jax import models
        from vit_jax.analysis import flops, tables
        from vit_jax.cli.show_config import show

        module = models.create(models.looped(cfg.model))  # traced sooner, counted alike
        params = models.abstract(cfg.model)["params"]
        height, width, channels = models.input_shape(cfg.model)
        forward = flops.forward_flops(module, (height, width), channels)
        lines = show(cfg, everything=bool(values["all_fields"].value))
        print("\n".join([*lines, "", *tables.parameter_table(params)]))
        print(f"\nforward pass of one {height}x{width} image: {tables.format_flops(forward)}")
        print(f"training step of one image: {tables.format_flops(flops.train_flops(forward))}")
        return 0

    return cli_flags.run(command, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
