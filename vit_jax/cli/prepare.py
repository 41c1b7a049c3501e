# SPDX-License-Identifier: Apache-2.0
"""`vit_jax prepare NAME`: make a TFDS dataset readable here, once.

TFDS's own builders decode and encode with TensorFlow; training and evaluation never need it.
"""

import dataclasses
import importlib.util

from vit_jax.cli import options
from vit_jax.cli.options import Options, flag
from vit_jax.errors import UserError


@dataclasses.dataclass(kw_only=True)
class Prepare(Options):
    """Downloads a TFDS dataset and writes it as ArrayRecord, which trains without TensorFlow.

    Needs the extra [tf] in the environment that prepares, once.

      vit_jax prepare cifar10
    """

    name: str = flag(
        "", "a dataset of TFDS", "[NAME]", ask="which dataset? name one of TFDS, such as cifar10"
    )
    data_dir: str = flag("", "default: $TFDS_DATA_DIR or ~/tensorflow_datasets", "DIR")


def prepare(given: Prepare) -> None:
    """Write the dataset, unless it is there."""
    if given.name == "digits":
        from vit_jax.data import open_source

        print(f"{open_source('digits', given.data_dir).name} is ready")
        return
    if importlib.util.find_spec("tensorflow") is None:
        advice = "pip install tensorflow, then this command again (training does not need it)"
        raise UserError(f"{given.name} needs TensorFlow once, in any environment: {advice}")
    import tensorflow_datasets as tfds

    try:
        place = given.data_dir or None
        builder = tfds.builder(given.name, data_dir=place, file_format="array_record")
        builder.download_and_prepare()
    except Exception as error:  # TFDS, the network or the disk raise it
        raise UserError(f"{given.name}: {' '.join(str(error).split())[:300]}") from error
    print(f"{builder.data_path} is ready: --config.data.name={given.name}")


main = options.verb(Prepare, prepare)
