# SPDX-License-Identifier: Apache-2.0
"""`vit_jax models [PATTERN]`: the named variants with their sizes, by shapes alone."""

import dataclasses

from vit_jax import errors
from vit_jax.cli.parsing import options
from vit_jax.cli.parsing.options import Options, flag
from vit_jax.settings import fields


@dataclasses.dataclass(kw_only=True)
class Models(Options):
    """Lists the variants that models.variant() and --model know.

    A line shows the image size, the parameters, and the multiply-adds of one image at 1,000
    classes.

      vit_jax models 'deit|swin'
    """

    pattern: str = flag("", "a regex; default: all", "[PATTERN]")


def list_models(given: Models) -> None:
    """Print the table."""
    from vit_jax import models, trees
    from vit_jax.cost.flops import forward_flops

    regex = fields.regex("pattern", given.pattern)
    names = [name for name in models.VARIANTS if regex.search(name)]
    if not names:
        raise errors.unknown("model", given.pattern, models.VARIANTS)
    width = max(map(len, names))
    print(f"{'variant':{width}}  {'pixels':>9}  {'parameters':>13}  {'GMACs':>8}")
    for name in names:
        # One block per iteration traces fastest and counts the same.
        cfg = dataclasses.replace(models.VARIANTS[name], scan_unroll=1)
        height, columns, channels = models.input_shape(cfg)
        count = trees.num_params(models.abstract(cfg)["params"])
        macs = forward_flops(models.create(cfg), (height, columns), channels) / 2e9
        print(f"{name:{width}}  {height:>4}x{columns:<4}  {count:>13,}  {macs:>8.3f}")


main = options.verb(Models, list_models)
