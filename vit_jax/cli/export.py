# SPDX-License-Identifier: Apache-2.0
"""`python -m vit_jax export --from=RUN --to=DIR --format=stablehlo|onnx|timm`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from absl import flags

from vit_jax import fields, startup
from vit_jax.cli import flags as cli_flags
from vit_jax.cli import trained_flags
from vit_jax.errors import UserError
from vit_jax.inference import export, export_folder, hub
from vit_jax.inference.export import Format
from vit_jax.inference.quantize import WeightDType
from vit_jax.inference.trained import read_weights

_HELP = f"""usage: python -m vit_jax export --from=WEIGHTS --to=DIR --format=FORMAT [flags]

Writes a folder that other programs run: the model, the names of its classes, what it wants of an
image (export.json) and a model card (README.md). Says what the export changed, on real images.

  --to=DIR                the folder
  --format=stablehlo      one file for jax alone: CPU, CUDA and TPU, any batch
  --format=onnx           for ONNX Runtime, any batch; needs jax2onnx (requirements-onnx.txt)
  --format=timm           safetensors and config.json, for timm.create_model and the Hub
  --dtype=float32         weights as they are; the default
  --dtype=bfloat16        half the size (stablehlo, timm)
  --dtype=int8            a quarter: kernels in int8, a scale for each channel (stablehlo)
  --force                 write into a folder with files of others
  --push=USER/REPO        upload it to the Hugging Face Hub (needs the extra [hub] and a token)
  --public                a repository that --push creates is for all to see; else it is private

{trained_flags.HELP}

  python -m vit_jax export --from=runs/vit_mu_digits --to=exports/digits --format=stablehlo
  python -m vit_jax export --from=runs/vit_mu_digits --to=exports/digits8 --format=stablehlo \\
      --dtype=int8
  python -m vit_jax export --from=npz:ViT-B_16.npz --model=vit_b16_384 --to=vit_b16 --format=timm \\
      --push=me/vit_b16"""


def main(argv: Sequence[str]) -> int:
    """Run the command line (program name first) and return the exit status."""
    if any(argument in ("-h", "--help", "-help") for argument in argv[1:]):
        print(_HELP)
        return 0

    def command() -> int:
        startup.configure()
        jax.config.update("jax_platforms", "cpu")  # what is written is the same from anywhere
        values = flags.FlagValues()
        trained_flags.define(values)
        for name, default in (("to", ""), ("format", ""), ("dtype", "float32"), ("push", "")):
            flags.DEFINE_string(name, default, "See --help.", flag_values=values)
        for name in ("force", "public"):
            flags.DEFINE_bool(name, False, "See --help.", flag_values=values)
        found, _ = trained_flags.read(argv, values, positional=False)
        form, dtype = _choice("format", Format, values), _choice("dtype", WeightDType, values)
        folder, repo = _folder(str(values["to"].value)), str(values["push"].value)
        force, public = bool(values["force"].value), bool(values["public"].value)
        if public and not repo:
            raise UserError("--public says how --push creates a repository; add --push=USER/REPO")
        export_folder.check(folder, force=force)
        export.check(found, form, dtype)
        if repo:
            hub.check(repo)
        files, change = export.make(read_weights(found), form, dtype, name=folder.resolve().name)
        export_folder.write(folder, files, force=force)
        width = max(map(len, files))
        for name, data in files.items():
            print(f"{folder / name!s:{width + len(str(folder)) + 1}}  {len(data):>13,} bytes")
        print(change)
        if repo:
            told = f"Export by vit_jax: {form.value}, {dtype.value}"
            print(hub.push(folder, list(files), repo, public=public, message=told))
        return 0

    return cli_flags.run(command, argv)


def _choice(name: str, kind: Any, values: flags.FlagValues) -> Any:
    value = str(values[name].value)
    if not value:
        raise UserError(f"which {name}? add --{name}={'|'.join(kind)}")
    return fields.conformed(kind, f"--{name}", value)


def _folder(to: str) -> Path:
    if not to:
        raise UserError("where to? add --to=DIR")
    return Path(to).expanduser()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
