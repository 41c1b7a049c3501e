# SPDX-License-Identifier: Apache-2.0
"""Where the tokenizer of a reference is found."""

from pathlib import Path

import pytest

from tests import captioned
from vit_jax.errors import UserError
from vit_jax.text import tokenizers
from vit_jax.weights.published import words


def test_a_tokenizer_is_found_by_file_by_run_and_beside_weights(tmp_path: Path) -> None:
    run, weights = tmp_path / "run@5", tmp_path / "weights"
    for folder in (run, weights):
        folder.mkdir()
    file = captioned.write_tokenizer(tmp_path / "own.json")
    expected = tokenizers.load(file).digest
    (run / words.FILE).write_bytes(file.read_bytes())
    (weights / words.OWN).write_bytes(file.read_bytes())
    # A run is meant by its directory, and by a step of it.
    for ref in (str(file), f"ckpt:{run}", f"ckpt:{run}@100", f"hub:{weights}", f"hf:{weights}"):
        assert words.find(ref).digest == expected, ref
    assert words.find("clip").digest == tokenizers.clip().digest != expected


def test_what_has_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^npz:a\.npz is a file of weights, which has no token"):
        words.find("npz:a.npz")
    (tmp_path / "weights").mkdir()
    with pytest.raises(UserError, match=r"weights"):
        words.find(f"hub:{tmp_path / 'weights'}")
