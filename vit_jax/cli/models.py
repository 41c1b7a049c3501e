# SPDX-License-Identifier: Apache-2.0
"""`python -m vit_jax models [PATTERN]`: the named variants with their sizes, by shapes alone."""

import dataclasses
import re
import sys
from collections.abc import Sequence

from vit_jax import errors
from vit_jax.cli import arguments
from vit_jax.cli import flags as cli_flags
from vit_jax.errors import UserError


def main(argv: Sequence[str]) -> int:
    """Run the command line (program name first) and return the exit status."""
    parser = arguments.Parser(
        prog="python -m vit_jax models",
        description="List the variants that models.variant() and --config know, with image size, "
        "parameters and the multiply-adds of one image at 1,000 classes. "
        "Example: python -m vit_jax models 'deit|swin'",
    )
    parser.add_argument("pattern", nargs="?", default="", help="a regex; default: all")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")

    def command() -> int:
        args = parser.parse_args(list(argv[1:]))
        from vit_jax import models, trees
        from vit_jax.analysis.flops import forward_flops

        try:
            regex = re.compile(args.pattern)
        except re.error as error:
            raise UserError(f"pattern {args.pattern!r} is not a regex: {error}") from None
        names = [name for name in models.VARIANTS if regex.search(name)]
        if not names:
            raise errors.unknown("model", args.pattern, models.VARIANTS)
        width = max(map(len, names))
        print(f"{'variant':{width}}  {'pixels':>9}  {'parameters':>13}  {'GMACs':>8}")
        for name in names:
            # One block per iteration traces fastest and counts the same.
            cfg = dataclasses.replace(models.VARIANTS[name], scan_unroll=1)
            height, columns, channels = models.input_shape(cfg)
            count = trees.num_params(models.abstract(cfg)["params"])
            macs = forward_flops(models.create(cfg), (height, columns), channels) / 2e9
            print(f"{name:{width}}  {height:>4}x{columns:<4}  {count:>13,}  {macs:>8.3f}")
        return 0

    return cli_flags.run(command, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
