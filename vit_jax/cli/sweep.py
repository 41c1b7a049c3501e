# SPDX-License-Identifier: Apache-2.0
"""`vit_jax sweep plan|run|status|report`: many runs of one question."""

import importlib
import sys
from collections.abc import Sequence

from vit_jax import errors
from vit_jax.cli.parsing import flags

# Each is `vit_jax.cli.sweeps.NAME`.
VERBS = {
    "plan": "list the runs, and what all of them cost",
    "run": "train every run that has not finished",
    "status": "a table of what every run is doing",
    "report": "fit laws to the finished runs, and draw them",
}


def main(argv: Sequence[str]) -> int:
    """Run the command line (program name first) and return the exit status."""
    if len(argv) > 1 and argv[1] in VERBS:
        return importlib.import_module(f"vit_jax.cli.sweeps.{argv[1]}").main(argv[1:])
    if len(argv) > 1 and argv[1] in ("-h", "--help"):
        print("usage: vit_jax sweep VERB [--help] ...\n")
        print("\n".join(f"  {verb:8} {text}" for verb, text in VERBS.items()))
        return 0
    what = f"sweep what? add one of: {', '.join(VERBS)}"
    error = errors.unknown("sweep verb", argv[1], VERBS) if len(argv) > 1 else what
    flags.print_error(str(error), debug=False)
    return errors.UserError.status


if __name__ == "__main__":
    sys.exit(main(sys.argv))
