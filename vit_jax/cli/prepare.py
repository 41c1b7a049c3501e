# SPDX-License-Identifier: Apache-2.0
"""`python -m vit_jax prepare NAME`: make a TFDS dataset readable here, once.

TFDS's own builders decode and encode with TensorFlow; training and evaluation never need it.
"""

import importlib.util
import sys
from collections.abc import Sequence

from vit_jax.cli import arguments
from vit_jax.cli import flags as cli_flags
from vit_jax.errors import UserError


def main(argv: Sequence[str]) -> int:
    """Run the command line (program name first) and return the exit status."""
    parser = arguments.Parser(
        prog="python -m vit_jax prepare",
        description="Download a TFDS dataset and write it as ArrayRecord, which trains here "
        "without TensorFlow. Example: python -m vit_jax prepare cifar10",
    )
    parser.add_argument("name", help="a TFDS dataset, e.g. cifar10, oxford_iiit_pet, imagenet2012")
    parser.add_argument(
        "--data_dir", default=None, help="default: $TFDS_DATA_DIR or ~/tensorflow_datasets"
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")

    def command() -> int:
        args = parser.parse_args(list(argv[1:]))
        if args.name == "digits":
            from vit_jax.data import open_source

            print(f"{open_source('digits', args.data_dir or '').name} is ready")
            return 0
        if importlib.util.find_spec("tensorflow") is None:
            raise UserError(
                f"preparing {args.name} needs TensorFlow, once, in any environment: "
                "pip install tensorflow, then this command again (training does not need it)"
            )
        import tensorflow_datasets as tfds

        try:
            builder = tfds.builder(args.name, data_dir=args.data_dir, file_format="array_record")
            builder.download_and_prepare()
        except Exception as error:  # whatever TFDS, the network or the disk say
            if args.debug:
                raise
            raise UserError(f"{args.name}: {' '.join(str(error).split())[:300]}") from error
        print(f"{builder.data_path} is ready: --config.data.name={args.name}")
        return 0

    return cli_flags.run(command, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
