# SPDX-License-Identifier: Apache-2.0
"""`vit_jax convert --from=... --to=timm:FILE`, or hf:FOLDER: weights under others' names."""

import dataclasses
from pathlib import Path

from vit_jax import errors, weights
from vit_jax.cli.parsing import model_options, options
from vit_jax.cli.parsing.model_options import WeightsOptions
from vit_jax.cli.parsing.options import flag
from vit_jax.errors import UserError
from vit_jax.export import pairs as pairs_folder
from vit_jax.export import transformers as transformers_folder
from vit_jax.inference import pairs
from vit_jax.inference.trained import Trained, read_weights
from vit_jax.process import startup
from vit_jax.storage import files
from vit_jax.weights import export
from vit_jax.weights.published import words
from vit_jax.weights.two_towers import Codebase

_KINDS = {"timm": "timm:FILE.safetensors", "hf": "hf:FOLDER"}
# Of both towers, with --texts.
_PAIRS = {"hf": "hf:FOLDER", "open_clip": "open_clip:FOLDER", "npz": "npz:FILE.npz"}
_FORMS = {"hf": Codebase.TRANSFORMERS, "open_clip": Codebase.OPEN_CLIP, "npz": Codebase.BIG_VISION}


@dataclasses.dataclass(kw_only=True)
class Convert(WeightsOptions):
    """Writes weights under timm's names and shapes, or a ViT or ConvNeXt as transformers has it.

    timm's model of the same sizes loads the file with strict=True, and transformers' Auto classes
    load the folder. Values are unchanged, but for tables and kernels that --model.FIELD brings to
    size. With --texts both towers of a model of images and texts are written, with its tokenizer.

      vit_jax convert --from=ckpt:runs/vit_mu_digits --to=timm:digits.safetensors
      vit_jax convert --from=ckpt:runs/vit_mu_digits --to=hf:digits
      vit_jax convert --from=ckpt:runs/clip --to=open_clip:clip --texts
      vit_jax convert --from=npz:ViT-B_16.npz --to=timm:vit_b16_in21k.safetensors \\
          --model=vit_b16 --model.num_classes=21843
    """

    to: str = flag(
        "",
        "timm:FILE.safetensors, or for transformers hf:FOLDER; with --texts hf:FOLDER, "
        "open_clip:FOLDER, or for big_vision npz:FILE.npz",
        "KIND:PATH",
        ask="where to? add --to=timm:FILE.safetensors or hf:FOLDER",
    )
    texts: bool = flag(False, "both towers of a model of images and texts")
    tokenizer: str = model_options.tokenizer()
    force: bool = flag(False, "replace files that are there")


def convert(given: Convert, found: Trained) -> None:
    """Write the file, or the folder."""
    startup.stay_on_cpu()  # nothing here is worth waiting for a GPU
    scheme, _, path = given.to.partition(":")
    kinds = _PAIRS if given.texts else _KINDS
    if scheme not in kinds or not path:
        error = errors.unknown("kind of weights to write in", given.to, kinds.values())
        both = "; with --texts it is of both towers" if scheme in _PAIRS and path else ""
        raise UserError(f"{error}{both}")
    file = Path(path).expanduser()
    if given.tokenizer and not given.texts:
        raise UserError("--tokenizer is of both towers; add --texts, or leave it out")
    if given.texts:
        _write_pair(file, _FORMS[scheme], given, found)
        return
    if scheme == "hf":
        _write_folder(file, given, found)
        return
    export.check(found.model)
    files.check_file(file, "--to", force=given.force, suffix=export.SUFFIX)
    state = weights.to_timm(_read(found).variables, found.model)
    size = export.save(file, state, found.model, overwrite=given.force)
    print(f"{file}: {len(state)} tensors, {size:,} bytes, from {found.ref}")


def _write_folder(folder: Path, given: Convert, found: Trained) -> None:
    if found.head is not None:
        from vit_jax.export import dense  # late: most models say one class an image
        from vit_jax.inference.dense import read_weights as read_both

        form, read = dense, read_both
    else:
        form, read = transformers_folder, _read
    form.check(found)
    files.check_folder(folder, "--to", force=given.force)
    contents = form.make(read(found))
    files.write_folder(folder, contents)
    size = sum(map(len, contents.values()))
    print(f"{folder}: {', '.join(contents)}, {size:,} bytes, from {found.ref}")


def _write_pair(place: Path, to: Codebase, given: Convert, found: Trained) -> None:
    """Write both towers; a line says where the tokenizer is."""
    if to is Codebase.BIG_VISION:
        files.check_file(place, "--to", force=given.force, suffix=".npz")
    else:
        files.check_folder(place, "--to", force=given.force)
    pair = pairs.load(found)
    pairs_folder.check(pair.towers, to)
    trained = _read(found)
    if to is Codebase.BIG_VISION:
        data = pairs_folder.make_npz(trained, pair)
        with files.refused(f"cannot write {place}"):
            files.write(place, data)
        print(f"{place}: {len(data):,} bytes, from {found.ref}; it holds no tokenizer")
        return
    contents = pairs_folder.make_folder(trained, pair, to)
    files.write_folder(place, contents)
    size = sum(map(len, contents.values()))
    print(f"{place}: {', '.join(contents)}, {size:,} bytes, from {found.ref}")
    if words.OWN in contents:
        print(f"{words.OWN} is the tokenizer, which vit_jax alone reads")
    if to is Codebase.OPEN_CLIP and pairs_folder.crops_otherwise(found.transform):
        how = f"{found.transform.crop.value} {found.transform.crop_ratio:.4g}"
        print(f"open_clip does not cut images by {how}, as evaluation here does")


def _read(found: Trained) -> Trained:
    return read_weights(found, headless=not found.model.num_classes)


main = options.verb(Convert, convert, model_options.read)
