# SPDX-License-Identifier: Apache-2.0
"""Both towers, written for others with `convert --texts`, load again here to the bit."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

import vit_jax
from tests import colour_pair
from tests.pairs_of_towers import folder, pair
from vit_jax import models, trees
from vit_jax.cli.weights.convert import main
from vit_jax.errors import UserError
from vit_jax.export import pairs as pairs_folder
from vit_jax.models import two_towers
from vit_jax.models.text import TextConfig
from vit_jax.objectives import ContrastiveConfig, contrastive
from vit_jax.weights.two_towers import Codebase

TEXTS = ["ab c", "a photo of 7 things", "", "ß and 🚲"]


def convert(source: str | Path, to: str, *words: str) -> int:
    return main(["vit_jax convert", f"--from={source}", f"--to={to}", "--texts", *words])


def same(one: vit_jax.Model, other: vit_jax.Model, **how: str) -> None:
    """Weights of both towers, and what texts become, are equal to the bit."""
    for mine, theirs in ((one.params, other.params), (one.pair.params, other.pair.params)):
        leaves = dict(trees.named_leaves(theirs))
        assert leaves.keys() == dict(trees.named_leaves(mine)).keys()
        for name, leaf in trees.named_leaves(mine):
            assert np.array_equal(leaf, leaves[name]), name
    tokens = one.pair.tokenizer.encode(TEXTS)
    assert np.array_equal(tokens, other.pair.tokenizer.encode(TEXTS))


@pytest.mark.parametrize("name", ["clip_quickgelu", "siglip", "siglip2"])
def test_a_folder_for_transformers_and_the_way_back(name, tmp_path, capsys):
    published = folder(name, tmp_path / "published")
    assert convert(f"hub:{published}", f"hf:{tmp_path / 'out'}") == 0
    out = capsys.readouterr().out
    assert "tokenizer.json" in out
    assert "vit_jax_tokenizer.json" not in out
    one, other = (vit_jax.load(f"hub:{tmp_path / x}") for x in ("published", "out"))
    assert other.pair.towers == one.pair.towers
    same(one, other)
    assert (tmp_path / "out/preprocessor_config.json").is_file()


def test_a_run_for_open_clip(tmp_path, capsys):
    published = folder("clip_quickgelu", tmp_path / "published")
    assert convert(f"hub:{published}", f"open_clip:{tmp_path / 'out'}") == 0
    assert "vit_jax_tokenizer.json" in capsys.readouterr().out  # open_clip cleans texts otherwise
    one, other = (vit_jax.load(f"hub:{tmp_path / x}") for x in ("published", "out"))
    assert other.pair.towers == one.pair.towers
    same(one, other)
    tree = json.loads((tmp_path / "out/open_clip_config.json").read_text())
    assert tree["model_cfg"]["vision_cfg"]["head_width"] == 16
    assert tree["preprocess_cfg"]["size"] == 32


def test_an_npz_for_big_vision(tmp_path, capsys):
    published = folder("siglip", tmp_path / "published")
    assert convert(f"hub:{published}", f"npz:{tmp_path / 'out.npz'}") == 0
    assert "no tokenizer" in capsys.readouterr().out
    one, towers = vit_jax.load(f"hub:{published}"), pair("siglip")
    file, words = f"npz:{tmp_path / 'out.npz'}", f"hub:{published}"
    other = vit_jax.load(file, model=towers, tokenizer=words)
    with pytest.raises(UserError, match=r"^tokenizer='clip' is of a file with two towers"):
        vit_jax.load(words, tokenizer="clip")
    same(one, other)


@pytest.mark.parametrize("to, told", [("hf", False), ("open_clip", True)])
def test_a_run_goes_out_with_its_tokenizer(to, told, tmp_path, capsys):
    sizes = {"dim": 8, "depth": 1, "num_heads": 1, "mlp_dim": 16}
    small = {"image_size": (16, 16), "patch": (8, 8), "num_classes": 0}
    model = models.variant("vit_b16_clip", **small, **sizes)
    objective = ContrastiveConfig(text=TextConfig(context=9, **sizes), dim=6)
    towers = contrastive.pair(objective, model)
    shapes = two_towers.abstract(towers)["params"]
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), shapes)
    run = colour_pair.save(tmp_path / "run", model, objective, params)
    assert convert(run, f"{to}:{tmp_path / 'out'}") == 0
    # open_clip's own tokenizer is this one; transformers reads CLIP's otherwise.
    assert ("vit_jax_tokenizer.json" in capsys.readouterr().out) is not told
    one, other = vit_jax.load(run), vit_jax.load(f"hub:{tmp_path / 'out'}")
    same(one, other)
    image = rng.integers(0, 256, (1, 16, 16, 3), np.uint8)
    assert np.array_equal(one.encode_image(image), other.encode_image(image))
    assert np.array_equal(one.encode_text(TEXTS), other.encode_text(TEXTS))


def test_a_pair_that_others_lack_is_refused_before_anything_is_written(tmp_path, capsys):
    run = colour_pair.save_run(tmp_path / "run")
    assert convert(run, f"npz:{tmp_path / 'out.npz'}") == 0
    capsys.readouterr()
    for to, words in (("hf", "there, and here"), ("open_clip", "open_clip has no such pair")):
        assert convert(run, f"{to}:{tmp_path / 'no'}") == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_each_named_pair_is_described_or_refused():
    for name in ("clip_l14_336", "openclip_b32", "pe_core_b16", "siglip_l16_256"):
        pairs_folder.check(two_towers.variant(name), Codebase.OPEN_CLIP)
    for name in ("clip_b16", "siglip_b16", "siglip2_so400m14_384"):
        pairs_folder.check(two_towers.variant(name), Codebase.TRANSFORMERS)
    for name, to, words in (
        ("siglip_b16", Codebase.OPEN_CLIP, "open_clip has no such pair: model.gelu is erf there"),
        ("pe_core_b16", Codebase.TRANSFORMERS, "no ViT of transformers' has model.pool_heads"),
        ("siglip_so400m16_i18n_256", Codebase.TRANSFORMERS, "text.projection is affine there"),
    ):
        with pytest.raises(UserError, match=words):
            pairs_folder.check(two_towers.variant(name), to)


def test_what_is_wrong_is_one_line(tmp_path, capsys, subtests):
    run = colour_pair.save_run(tmp_path / "run")
    cases = {
        "timm": (["--texts", "--to=timm:a.safetensors"], "kind of weights"),
        "no texts": ([f"--to=open_clip:{tmp_path / 'a'}"], "with --texts it is of both towers"),
        "suffix": (["--texts", "--to=npz:a.bin"], "must end in .npz"),
    }
    for name, (words, message) in cases.items():
        with subtests.test(name):
            assert main(["vit_jax convert", f"--from={run}", *words]) == 2
            assert message in capsys.readouterr().err
