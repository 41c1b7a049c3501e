# SPDX-License-Identifier: Apache-2.0
"""Evaluations of a run go by the names of classes, and say before its first step what cannot be."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from configs.vit_mu_digits import get_config
from tests.refusals import refused_as
from tests.unit.weights.test_init import small
from vit_jax.config.tree import Config
from vit_jax.data import DataConfig
from vit_jax.data.checks import check_labels
from vit_jax.errors import UserError
from vit_jax.evals import ClassifyEval, FewShotEval, KNNEval, LinearEval, LossEval
from vit_jax.train import build
from vit_jax.train.begin import open_run

SIZES = {"train": {"ant": 9, "bee": 6, "cow": 3}, "val": {"ant": 2, "bee": 2, "cow": 2}}


@pytest.fixture(scope="module")
def animals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes in two splits; two other folders hold some of them, and others."""
    root, rng = tmp_path_factory.mktemp("animals"), np.random.default_rng(0)
    others = {"fewer": {"val": {"cow": 2, "ant": 3}}, "more": {"val": {"ant": 1, "yak": 2}}}
    for place, splits in {"all": SIZES, **others}.items():
        for split, sizes in splits.items():
            for name, count in sizes.items():
                folder = root / place / split / name
                folder.mkdir(parents=True)
                for i in range(count):
                    image = rng.integers(0, 256, (16, 16, 3), np.uint8)
                    cv2.imwrite(str(folder / f"{i}.png"), image)
    return root


def run(animals: Path, **evaluations) -> Config:
    cfg = small(get_config())
    cfg.model.image_size, cfg.model.channels, cfg.model.num_classes = (16, 16), 3, 0
    cfg.data = DataConfig(name=f"folder:{animals}/all", train_split="train", batch_size=8)
    cfg.evals = evaluations
    cfg.checkpoint.keep_best = 0
    return cfg


def test_some_of_the_classes_are_found_by_name(animals: Path) -> None:
    for kind in (ClassifyEval, LossEval):
        cfg = run(animals, val=kind(dataset=f"folder:{animals}/fewer"))
        source = build.open_evals(cfg, build.open_train(cfg))["val"][""]
        assert source.class_names == ("ant", "bee", "cow")
        assert sorted(source.read(i)["label"] for i in range(5)) == [0, 0, 0, 2, 2]


REFUSED = {
    "another class": (
        ClassifyEval(dataset="folder:{}/more"),
        ("evals.classes.align", ""),
    ),
    "k": (KNNEval(k=(5, 20)), r"evals\.val\.k=20: .* has only 18 images; choose a smaller k"),
    "shots": (FewShotEval(shots=(10,)), r"evals\.val\.shots=10: .*has 9 images; choose fewer"),
    "one image a class": (LinearEval(train_split="train[:1]"), r"a probe needs two"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_known_at_the_start_is_said_there(case: str, animals: Path, tmp_path) -> None:
    evaluation, message = REFUSED[case]
    evaluation.dataset = evaluation.dataset.format(animals)
    with refused_as(message):
        open_run(run(animals, val=evaluation), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_is_odd_and_no_mistake_is_a_line(animals: Path, capsys) -> None:
    cfg = run(animals, val=FewShotEval(shots=(5,)))
    build.open_evals(cfg, build.open_train(cfg))
    assert "evals.val.shots=5: 1 of 3 classes of" in capsys.readouterr().out


def test_images_without_a_label_are_counted_and_the_first_is_named(tmp_path, animals) -> None:
    table = tmp_path / "table.csv"
    rows = [f"{animals}/all/train/ant/{i}.png,{label},train" for i, label in enumerate("abab")]
    table.write_text("\n".join(["path,label,split", *rows]) + "\n")
    cfg = run(animals)
    cfg.data.name = f"csv:{table}"
    source = build.open_train(cfg)
    assert source.labels is not None
    source.labels[2] = -1
    with pytest.raises(UserError, match=r"1 of 4 images without a label, the first .*2.png; label"):
        check_labels(source, "label them")
