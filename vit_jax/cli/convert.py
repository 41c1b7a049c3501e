# SPDX-License-Identifier: Apache-2.0
"""`python -m vit_jax convert --from ... --to timm:FILE`: weights under timm's names."""

import sys
from collections.abc import Sequence

import jax
from absl import flags

from vit_jax import errors, weights
from vit_jax.cli import flags as cli_flags
from vit_jax.cli import trained_flags
from vit_jax.errors import UserError
from vit_jax.inference import read_weights
from vit_jax.weights import export

_HELP = f"""usage: python -m vit_jax convert --from=WEIGHTS --to=timm:FILE.safetensors [flags]

Writes weights under timm's names and shapes; timm's model of the same sizes loads the file with
strict=True. Values are unchanged, but for tables and kernels that --model.FIELD brings to size.

{trained_flags.WEIGHTS}
  --force                 replace a file that is there

  python -m vit_jax convert --from=ckpt:runs/vit_mu_digits --to=timm:digits.safetensors
  python -m vit_jax convert --from=npz:ViT-B_16.npz --to=timm:vit_b16_in21k.safetensors \\
      --model=vit_b16 --model.num_classes=21843"""


def main(argv: Sequence[str]) -> int:
    """Run the command line (program name first) and return the exit status."""
    if any(argument in ("-h", "--help", "-help") for argument in argv[1:]):
        print(_HELP)
        return 0

    def command() -> int:
        jax.config.update("jax_platforms", "cpu")  # nothing here is worth waiting for a GPU
        values = flags.FlagValues()
        trained_flags.define(values, inputs=False)
        flags.DEFINE_string("to", "", "timm:FILE.safetensors.", flag_values=values)
        flags.DEFINE_bool("force", False, "See --help.", flag_values=values)
        found, _ = trained_flags.read(argv, values, positional=False)
        file, force = _target(str(values["to"].value)), bool(values["force"].value)
        export.check(found.model)
        export.check_target(file, overwrite=force)
        state = weights.to_timm(read_weights(found).variables, found.model)
        size = export.save(file, state, overwrite=force)
        print(f"{file}: {len(state)} tensors, {size:,} bytes, from {found.ref}")
        return 0

    return cli_flags.run(command, argv)


def _target(to: str) -> str:
    scheme, _, path = to.partition(":")
    if not to:
        raise UserError("where to? add --to=timm:FILE.safetensors")
    if scheme != "timm":
        raise errors.unknown("kind of weights to write in", to, ["timm:FILE.safetensors"])
    return path


if __name__ == "__main__":
    sys.exit(main(sys.argv))
