# SPDX-License-Identifier: Apache-2.0
"""`python -m vit_jax summary --config=FILE`: a config and its model, by shapes alone."""

import dataclasses
from typing import Any

from vit_jax.cli import options
from vit_jax.cli.options import ConfigOptions, flag


@dataclasses.dataclass(kw_only=True)
class Summary(ConfigOptions):
    """Prints a config, every parameter of its model with its shape, and the model's FLOPs.

    It needs no data and makes no array.

      python -m vit_jax summary --config=configs/vit_b16_imagenet.py
      python -m vit_jax summary --config=configs/vit_l16_imagenet.py --config.model.image_size=384
    """

    all_fields: bool = flag(False, "show the fields that are at their defaults, too")


def summary(given: Summary, cfg: Any) -> None:
    """Print config and tables."""
    from vit_jax import models
    from vit_jax.analysis import flops, tables
    from vit_jax.cli.show_config import show

    module = models.create(models.looped(cfg.model))  # traced sooner, counted alike
    params = models.abstract(cfg.model)["params"]
    height, width, channels = models.input_shape(cfg.model)
    forward = flops.forward_flops(module, (height, width), channels)
    lines = show(cfg, everything=given.all_fields)
    print("\n".join([*lines, "", *tables.parameter_table(params)]))
    print(f"\nforward pass of one {height}x{width} image: {tables.format_flops(forward)}")
    print(f"training step of one image: {tables.format_flops(flops.train_flops(forward))}")


main = options.verb(Summary, summary, options.read_config)
