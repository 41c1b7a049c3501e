# SPDX-License-Identifier: Apache-2.0
"""What is wrong with captions, tokenizers and prompts is one line before the first step."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import captioned
from tests.bucket import Bucket
from tests.photos import write_folder
from tests.refusals import refused_by
from tests.unit.test_configs import shrink
from vit_jax.config.tree import Config
from vit_jax.errors import UserError
from vit_jax.evals import ZeroShotEval
from vit_jax.recipes import image_text
from vit_jax.storage.bucket import Folder
from vit_jax.text import tokenizers
from vit_jax.train import texts
from vit_jax.train.begin import open_run
from vit_jax.weights.published import words


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("captioned")
    captioned.write(root)
    captioned.write_tokenizer(root / "words.json")
    write_folder(root / "folder", {"train": 4, "val": 2}, captioned.CLASSES)
    (root / "other.csv").write_text("path,label,split,words\ntrain/sky/0.jpg,sky,train,a sky\n")
    (root / "templates.txt").write_text("a photo of a {}\na photo of something\n")
    return root


def _config(place: Path) -> Config:
    cfg = shrink(image_text.small())
    cfg.data.name = f"csv:{place}/captions.csv"
    cfg.objective.tokenizer = str(place / "words.json")
    return cfg


def _too_many_ids(cfg: Config, place: Path) -> None:
    cfg.objective.text.vocab_size = 200


def _too_few_ids(cfg: Config, place: Path) -> None:
    cfg.objective.text.vocab_size = 2000


def _none(cfg: Config, place: Path) -> None:
    cfg.objective.tokenizer = ""


def _no_file(cfg: Config, place: Path) -> None:
    cfg.objective.tokenizer = str(place / "nowhere.json")


def _short(cfg: Config, place: Path) -> None:
    cfg.objective.tokenizer, cfg.objective.text.vocab_size = "clip", 49_408
    cfg.objective.text.context = 2


def _uncaptioned(cfg: Config, place: Path) -> None:
    cfg.data.name = f"folder:{place}/folder"


def _elsewhere(cfg: Config, place: Path) -> None:
    cfg.data.name = f"csv:{place}/other.csv"


def _no_place(cfg: Config, place: Path) -> None:
    transform = cfg.evals["val"].transform
    templates = str(place / "templates.txt")
    cfg.evals["names"] = ZeroShotEval(split="val", transform=transform, templates=templates)


def _no_templates(cfg: Config, place: Path) -> None:
    transform = cfg.evals["val"].transform
    cfg.evals["names"] = ZeroShotEval(split="val", transform=transform, templates="a photo")


def _bare_weights(cfg: Config, place: Path) -> None:
    cfg.objective.tokenizer, cfg.init.weights = "", f"npz:{place}/weights.npz"


@pytest.mark.parametrize(
    "change, code, field, told",
    [
        (_too_many_ids, "train.texts.open_tokenizer", "objective.text.vocab_size", "vocab_size="),
        (_too_few_ids, "train.texts.open_tokenizer", "objective.text.vocab_size", "vocab_size="),
        (_none, "train.texts.open_tokenizer", "objective.tokenizer", "train-tokenizer"),
        (_no_file, "storage.files.refused", "objective.tokenizer", "nowhere.json"),
        (_short, "text.tokenizers.Tokenizer.__post_init__", "", "from 3 to 16,384"),
        (_uncaptioned, "data.open_source", "", "no captions; csv:, tar:"),
        (_elsewhere, "data.sources.captions.lacking", "", "?captions=COLUMN"),
        (_no_place, "evals.zero_shot.templates", "templates", "must have {} once"),
        (_no_templates, "evals.zero_shot.templates", "templates", "must have {} once"),
        (_bare_weights, "weights.published.words.find", "objective.tokenizer", "no tokenizer"),
    ],
)
def test_bad_input_is_one_line_before_the_first_step(
    change: Callable[[Config, Path], None],
    code: str,
    field: str,
    told: str,
    place: Path,
    tmp_path: Path,
) -> None:
    cfg = _config(place)
    change(cfg, place)
    with refused_by(code, field) as caught:
        open_run(cfg, tmp_path / "run")
    assert told in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_run_in_a_bucket_goes_on_with_its_tokenizer_on_a_new_machine(
    place: Path, bucket: Bucket, tmp_path: Path
) -> None:
    url, cfg = "gs://bucket/words", _config(place)
    assert texts.settled(cfg, tmp_path, url) is cfg  # nothing is there yet
    with pytest.raises(UserError, match=r"^gs://bucket/words has no tokenizer\.json: it is no run"):
        words.find(f"ckpt:{url}")
    Folder(url).write("tokenizer.json", (place / "words.json").read_bytes())
    cfg.objective.tokenizer = str(place / "gone.json")
    settled = texts.settled(cfg, tmp_path, url)
    expected = tokenizers.load(place / "words.json").digest
    assert texts.open_tokenizer(settled).digest == words.find(f"ckpt:{url}@best").digest == expected
    cfg.objective.tokenizer = "clip"
    with refused_by("train.texts.settled", "objective.tokenizer"):
        texts.settled(cfg, tmp_path, url)
