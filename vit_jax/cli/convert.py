# SPDX-License-Identifier: Apache-2.0
"""`vit_jax convert --from ... --to timm:FILE`: weights under timm's names."""

import dataclasses
from pathlib import Path

from vit_jax import errors, files, startup, weights
from vit_jax.cli import model_options, options
from vit_jax.cli.model_options import WeightsOptions
from vit_jax.cli.options import flag
from vit_jax.inference.trained import Trained, read_weights
from vit_jax.weights import export


@dataclasses.dataclass(kw_only=True)
class Convert(WeightsOptions):
    """Writes weights under timm's names and shapes.

    timm's model of the same sizes loads the file with strict=True. Values are unchanged, but for
    tables and kernels that --model.FIELD brings to size.

      vit_jax convert --from=ckpt:runs/vit_mu_digits --to=timm:digits.safetensors
      vit_jax convert --from=npz:ViT-B_16.npz --to=timm:vit_b16_in21k.safetensors \\
          --model=vit_b16 --model.num_classes=21843
    """

    to: str = flag(
        "", "the file", "timm:FILE.safetensors", ask="where to? add --to=timm:FILE.safetensors"
    )
    force: bool = flag(False, "replace a file that is there")


def convert(given: Convert, found: Trained) -> None:
    """Write the file."""
    startup.stay_on_cpu()  # nothing here is worth waiting for a GPU
    scheme, _, path = given.to.partition(":")
    if scheme != "timm":
        raise errors.unknown("kind of weights to write in", given.to, ["timm:FILE.safetensors"])
    file = Path(path).expanduser()
    export.check(found.model)
    files.check_file(file, "--to", force=given.force, suffix=export.SUFFIX)
    trained = read_weights(found, headless=not found.model.num_classes)
    state = weights.to_timm(trained.variables, found.model)
    size = export.save(file, state, overwrite=given.force)
    print(f"{file}: {len(state)} tensors, {size:,} bytes, from {found.ref}")


main = options.verb(Convert, convert, model_options.read)
