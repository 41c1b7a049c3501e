# SPDX-License-Identifier: Apache-2.0
"""What a run opens fits what it learns."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from configs import vit_mu_digits
from vit_jax.errors import UserError
from vit_jax.evals import ClassifyEval
from vit_jax.models.losses import Loss
from vit_jax.train import build


def test_one_class_cannot_be_told_from_another(tmp_path: Path) -> None:
    cfg = vit_mu_digits.get_config()
    cfg.data.name, cfg.data.train_split = f"folder:{tmp_path}", "whole"
    for name, count in (("ant", 1), ("bee", 2)):
        (tmp_path / name).mkdir()
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / name / "0.png")
        cfg.model.num_classes = count
        if count == 1:
            with pytest.raises(UserError, match="has the one class 'ant', and there is nothing"):
                build.open_train(cfg)
            cfg.objective.loss = Loss.SIGMOID  # is it there or not
        assert build.open_train(cfg).num_classes == count
        cfg.objective.loss = Loss.SOFTMAX


def test_an_evaluation_of_the_head_numbers_labels_as_training_does(tmp_path: Path) -> None:
    for name in ("one/ant", "one/bee", "two/bee"):
        (tmp_path / name).mkdir(parents=True)
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / name / "0.png")
    cfg = vit_mu_digits.get_config()
    cfg.data.name, cfg.data.train_split = f"folder:{tmp_path}/one", "whole"
    cfg.model.num_classes = 2
    other = {"dataset": f"folder:{tmp_path}/two", "split": "whole"}
    cfg.evals = {"val": ClassifyEval(**other)}
    (source,) = build.open_evals(cfg, build.open_train(cfg))["val"].values()
    assert source.class_names == ("ant", "bee")
    assert source.read(0)["label"] == 1
