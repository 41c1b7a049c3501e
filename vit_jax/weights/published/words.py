# SPDX-License-Identifier: Apache-2.0
"""The tokenizer that a reference means: a file, a run's, or that beside published weights."""

from pathlib import Path

from vit_jax.errors import UserError
from vit_jax.storage import bucket, remote
from vit_jax.text import published, tokenizers, vocabularies
from vit_jax.text.tokenizers import Tokenizer
from vit_jax.weights.config import CHECKPOINT, KINDS
from vit_jax.weights.readers import repository

FILE = "tokenizer.json"  # in a run's workdir
CLIP = "clip"  # that of the package
# Beside published weights: one of this package's own, which comes before theirs.
OWN = "vit_jax_tokenizer.json"


def find(ref: str) -> Tokenizer:
    """Open "clip", or the tokenizer of "FILE", "ckpt:DIR", "hub:USER/NAME[@REVISION]", "hub:./DIR".

    Raises UserError: there is none, or one that is not read.
    """
    if ref == CLIP:
        return tokenizers.clip()
    scheme, _, path = ref.partition(":")
    if scheme == CHECKPOINT:
        whole = Path(path).expanduser().is_dir()  # an @ may be part of the name
        place = path if whole else path.rpartition("@")[0] or path
        if found := of_run(place):
            return found
        raise UserError(f"{place} has no {FILE}: it is no run of images and texts")
    if scheme in KINDS:
        return _beside(path)
    if scheme in ("npz", "timm"):
        raise UserError(f"{ref} is a file of weights, which has no tokenizer; name one")
    return tokenizers.load(Path(ref).expanduser())


def of_run(place: str) -> Tokenizer | None:
    """Open the tokenizer in a run's workdir, here or in a bucket; None where there is none."""
    if url := bucket.address(place):
        try:
            return tokenizers.loaded(bucket.Folder(url).read(FILE), f"{url}/{FILE}")
        except remote.MissingError:
            return None
    file = Path(place).expanduser() / FILE
    return tokenizers.load(file) if file.exists() else None


def _beside(path: str) -> Tokenizer:
    found = repository.opened(path)
    if own := found.find(OWN, vocabularies.MOST):
        return tokenizers.load(own)
    elsewhere = lambda name: repository.opened(name).find  # noqa: E731
    return published.describe(found.find, found.name, elsewhere=elsewhere)
