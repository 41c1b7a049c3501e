# SPDX-License-Identifier: Apache-2.0
"""`python -m vit_jax evaluate --from=RUN`: how good a trained model is, and on what it fails."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_flags

from vit_jax import startup
from vit_jax.cli import flags as cli_flags
from vit_jax.cli import trained_flags
from vit_jax.cli.evaluation import Request, evaluate
from vit_jax.errors import UserError
from vit_jax.field_names import check_value_path
from vit_jax.sharding import MeshConfig

_HELP = f"""usage: python -m vit_jax evaluate --from=RUN [flags]

Measures a trained model on a split of a dataset: top-1, top-5, loss and calibration, each image
counted once, on all devices. With --out also by class, and as pictures.

{trained_flags.HELP}

  --dataset=NAME          a dataset as data.name takes it, or folder:DIR; by default the run's own
  --split=SPLIT           by default the run's last evaluation's; of another dataset, test
  --data_dir=DIR          where TFDS datasets lie; by default the run's
  --batch_size=B          over all devices; by default the run's
  --mesh.data=N           devices that share a batch; --mesh.fsdp, --mesh.tensor as in training
  --out=DIR               write metrics.json, per_class.csv, confusion.csv and .png, reliability.png

  --sizes=S,S             accuracy at other input sizes, with these weights (sizes.csv and .png)
  --corruptions=all       accuracy on corrupted images (corruptions.csv and .png); or a list:
                          gaussian_noise, shot_noise, impulse_noise, defocus_blur, motion_blur,
                          brightness, contrast, pixelate, jpeg_compression
  --severities=1,3,5      of the corruptions (default: 1,2,3,4,5)

  python -m vit_jax evaluate --from=runs/vit_mu_digits --out=runs/evaluate
  python -m vit_jax evaluate --from=runs/vit_mu_digits --sizes=16,24,32,40,48 --corruptions=all
  python -m vit_jax evaluate --from=timm:swin_t.safetensors --model=swin_t \\
      --dataset=imagenet2012_real --split=validation"""


def main(argv: Sequence[str]) -> int:
    """Run the command line (program name first) and return the exit status."""
    if any(argument in ("-h", "--help", "-help") for argument in argv[1:]):
        print(_HELP)
        return 0

    def command() -> int:
        values = flags.FlagValues()
        trained_flags.define(values)
        for name in ("dataset", "split", "data_dir", "out"):
            flags.DEFINE_string(name, "", "See --help.", flag_values=values)
        flags.DEFINE_integer("batch_size", 0, "See --help.", 0, flag_values=values)
        for name in ("sizes", "corruptions", "severities"):
            flags.DEFINE_list(name, [], "See --help.", flag_values=values)
        _define_mesh(argv, values)
        found, _ = trained_flags.read(argv, values, positional=False)
        asked: dict[str, Any] = {name: values[name].value for name in values}
        sizes, severities = (_whole(name, asked[name]) for name in ("sizes", "severities"))
        if severities and not asked["corruptions"]:
            raise UserError("--severities are of corruptions; add --corruptions=all")
        startup.configure()
        startup.join_cluster()
        request = Request(
            dataset=asked["dataset"],
            split=asked["split"],
            data_dir=asked["data_dir"],
            batch_size=asked["batch_size"],
            mesh=asked["mesh"],
            own_transform=not any(re.match(r"--?transform\.", each) for each in argv),
            sizes=tuple(sorted(set(sizes))),
            corruptions=tuple(dict.fromkeys(asked["corruptions"])),
            severities=tuple(sorted(set(severities))),
            out=Path(asked["out"]).expanduser() if asked["out"] else None,
        )
        evaluate(found, request)
        return 0

    return cli_flags.run(command, argv)


def _define_mesh(argv: Sequence[str], values: flags.FlagValues) -> None:
    mesh = MeshConfig()
    for argument in argv:
        field = re.match(r"--?mesh\.([^=]+)", argument)
        if field:
            check_value_path(mesh, field[1], root="mesh")
    config_flags.DEFINE_config_dataclass("mesh", mesh, flag_values=values, sys_argv=list(argv))


def _whole(name: str, words: Sequence[str]) -> list[int]:
    try:
        numbers = [int(word) for word in words]
    except ValueError:
        numbers = [0]
    if any(number < 1 for number in numbers):
        raise UserError(f"--{name}={','.join(words)} must be whole numbers, such as 1,3,5")
    return numbers


if __name__ == "__main__":
    sys.exit(main(sys.argv))
