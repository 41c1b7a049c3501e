# SPDX-License-Identifier: Apache-2.0
"""`python -m vit_jax cache_teacher`: a teacher's logits for a whole run, once, to disk."""

import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from vit_jax.cli import flags as cli_flags
from vit_jax.errors import UserError

_HELP = """usage: python -m vit_jax cache_teacher --config=FILE --out=DIR [--top_k=K]
                                       [--config.FIELD=VALUE ...]

Writes what objective.distill.teacher says of every image of the run that FILE describes, augmented
as there, for --config.objective.distill.cache=DIR. The same command continues where it stopped.

  --top_k=K  keep the K largest logits of each image and one for the others (default: all)
  --debug    show the traceback of an error

  python -m vit_jax cache_teacher --config=configs/distill_digits.py:unmixed --out=runs/logits"""


def main(argv: Sequence[str]) -> int:
    """Run the command line (program name first) and return the exit status."""
    values = cli_flags.define(argv)
    flags.DEFINE_string("out", "", "Where the logits are kept.", flag_values=values)
    flags.DEFINE_integer("top_k", 0, "Logits kept of each image; 0: all.", flag_values=values)
    if any(argument in ("-h", "--help", "-help") for argument in argv[1:]):
        print(_HELP)
        return 0

    def command() -> int:
        cfg = cli_flags.read_config(argv, values)
        out, top_k = values["out"].value, int(values["top_k"].value or 0)
        if not out or out.startswith("-"):
            raise UserError("where to? add --out=DIR")
        # Late: a mistake in the config is reported before the slower half of the imports.
        from vit_jax import startup

        startup.configure()
        from vit_jax.train import write_cache

        startup.join_cluster()
        return write_cache.write(cfg, Path(out).expanduser(), top_k)

    return cli_flags.run(command, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
