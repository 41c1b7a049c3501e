# SPDX-License-Identifier: Apache-2.0
"""`vit_jax convert --from ... --to timm:FILE`, or hf:FOLDER: weights under others' names."""

import dataclasses
from pathlib import Path

from vit_jax import errors, weights
from vit_jax.cli.parsing import model_options, options
from vit_jax.cli.parsing.model_options import WeightsOptions
from vit_jax.cli.parsing.options import flag
from vit_jax.export import transformers as transformers_folder
from vit_jax.inference.trained import Trained, read_weights
from vit_jax.process import startup
from vit_jax.storage import files
from vit_jax.weights import export

_KINDS = {"timm": "timm:FILE.safetensors", "hf": "hf:FOLDER"}


@dataclasses.dataclass(kw_only=True)
class Convert(WeightsOptions):
    """Writes weights under timm's names and shapes, or a ViT as transformers has it.

    timm's model of the same sizes loads the file with strict=True, and transformers' Auto classes
    load the folder. Values are unchanged, but for tables and kernels that --model.FIELD brings to
    size.

      vit_jax convert --from=ckpt:runs/vit_mu_digits --to=timm:digits.safetensors
      vit_jax convert --from=ckpt:runs/vit_mu_digits --to=hf:digits
      vit_jax convert --from=npz:ViT-B_16.npz --to=timm:vit_b16_in21k.safetensors \\
          --model=vit_b16 --model.num_classes=21843
    """

    to: str = flag(
        "",
        "timm:FILE.safetensors, or for transformers hf:FOLDER",
        "KIND:PATH",
        ask="where to? add --to=timm:FILE.safetensors or hf:FOLDER",
    )
    force: bool = flag(False, "replace files that are there")


def convert(given: Convert, found: Trained) -> None:
    """Write the file, or the folder."""
    startup.stay_on_cpu()  # nothing here is worth waiting for a GPU
    scheme, _, path = given.to.partition(":")
    if scheme not in _KINDS or not path:
        raise errors.unknown("kind of weights to write in", given.to, _KINDS.values())
    file = Path(path).expanduser()
    if scheme == "hf":
        _write_folder(file, given, found)
        return
    export.check(found.model)
    files.check_file(file, "--to", force=given.force, suffix=export.SUFFIX)
    state = weights.to_timm(_read(found).variables, found.model)
    size = export.save(file, state, found.model, overwrite=given.force)
    print(f"{file}: {len(state)} tensors, {size:,} bytes, from {found.ref}")


def _write_folder(folder: Path, given: Convert, found: Trained) -> None:
    transformers_folder.check(found)
    files.check_folder(folder, "--to", force=given.force)
    contents = transformers_folder.make(_read(found))
    files.write_folder(folder, contents)
    size = sum(map(len, contents.values()))
    print(f"{folder}: {', '.join(contents)}, {size:,} bytes, from {found.ref}")


def _read(found: Trained) -> Trained:
    return read_weights(found, headless=not found.model.num_classes)


main = options.verb(Convert, convert, model_options.read)
