# SPDX-License-Identifier: Apache-2.0
"""`vit_jax export --from=RUN --to=DIR --format=stablehlo|onnx|timm`."""

import dataclasses
from pathlib import Path

from vit_jax.cli.parsing import model_options, options
from vit_jax.cli.parsing.model_options import ModelOptions
from vit_jax.cli.parsing.options import flag
from vit_jax.errors import UserError
from vit_jax.export import folder as export_folder
from vit_jax.export import hub
from vit_jax.export import model as lib
from vit_jax.export.model import Format
from vit_jax.export.quantize import WeightDType
from vit_jax.inference.trained import Trained, of_one_size, read_weights
from vit_jax.process import startup, waiting
from vit_jax.storage import files


@dataclasses.dataclass(kw_only=True)
class Export(ModelOptions):
    """Writes a folder that other programs run.

    It holds the model, the names of its classes, what it wants of an image (export.json) and a
    model card (README.md). What the export changed, on real images, is printed. A model without a
    head, such as a run's without labels, returns its features; one of segmentation or depth what it
    says of the pixels, and with --format=timm its encoder alone.

      vit_jax export --from=runs/vit_mu_digits --to=exports/digits --format=stablehlo
      vit_jax export --from=runs/vit_mu_digits --to=exports/digits8 --format=stablehlo \\
          --dtype=int8
      vit_jax export --from=npz:ViT-B_16.npz --model=vit_b16_384 --to=vit_b16 \\
          --format=timm --push=me/vit_b16
    """

    to: Path | None = flag(None, "the folder", "DIR", ask="where to? add --to=DIR")
    format: Format | None = flag(
        None,
        "stablehlo: program and weights for jax alone (CPU, CUDA and TPU), any batch; onnx: for "
        "ONNX Runtime, any batch, needs jax2onnx (locks/onnx.txt); timm: safetensors and "
        "config.json, for timm.create_model and the Hub",
        ask=f"which format? add --format={'|'.join(Format)}",
    )
    dtype: WeightDType = flag(
        WeightDType.FLOAT32,
        "of the weights; bfloat16: half the size (stablehlo, timm); int8: a quarter, kernels in "
        "int8, a scale for each channel (stablehlo, onnx); with onnx it is also faster",
    )
    force: bool = flag(False, "write into a folder with files, and replace an earlier export")
    push: str = flag("", "upload to the Hugging Face Hub (extra [hub] and a token)", "USER/REPO")
    dry_run: bool = flag(False, "with --push: write the folder, and say what would be uploaded")
    public: bool = flag(False, "a repository that --push creates is public; else it is private")


def export(given: Export, found: Trained) -> None:
    """Write the folder, and push it with --push."""
    startup.stay_on_cpu()  # what is written is the same from anywhere
    folder, form, found = given.to, given.format, of_one_size(found)
    assert folder is not None
    assert form is not None
    if given.public and not given.push:
        raise UserError("--public is of the repository that --push creates; add --push=USER/REPO")
    if given.dry_run and not given.push:
        raise UserError("--dry_run is of --push, without which nothing is uploaded; drop it")
    files.check_folder(folder, "--to", force=given.force)
    lib.check(found, form, given.dtype)
    if given.push and not given.dry_run:
        hub.check(given.push)
    if found.head is not None and form is not Format.TIMM:
        from vit_jax.inference import dense  # late: few models are of pixels

        trained = dense.read_weights(found)
    else:
        if found.head is not None:  # timm's has the encoder alone, which names no classes
            found = dataclasses.replace(found, head=None, class_names=())
        trained = read_weights(found, headless=not found.model.num_classes)
    name = folder.resolve().name
    with waiting.said("exporting, and comparing on real images"):
        contents, change = lib.make(trained, form, given.dtype, name=name)
    export_folder.write(folder, contents, force=given.force)
    width = max(map(len, contents)) + len(str(folder)) + 1
    for name, data in contents.items():
        print(f"{folder / name!s:{width}}  {len(data):>13,} bytes")
    print(change)
    if given.dry_run:
        kind = "public" if given.public else "private"
        count = f"{len(contents)} files, {sum(map(len, contents.values())):,} bytes"
        print(f"would upload {count} to {given.push}, {kind} where it is not there yet")
    elif given.push:
        message = f"Export by vit_jax: {form.value}, {given.dtype.value}"
        print(hub.push(folder, list(contents), given.push, public=given.public, message=message))


main = options.verb(Export, export, model_options.read)
