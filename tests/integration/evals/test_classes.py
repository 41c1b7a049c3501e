# SPDX-License-Identifier: Apache-2.0
"""Labels mean the model's classes: ImageNet-ReaL's records, ImageNet-V2's folders, subsets."""

import jax
import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests.unit.evals.test_classes import SYNSETS, WORDS, labels, png
from vit_jax import data
from vit_jax.data import open_source
from vit_jax.devices import sharding
from vit_jax.evals import ClassifyEval, EvalContext, create
from vit_jax.evals.classes import align


class Imagenet2012Real(tfds.core.GeneratorBasedBuilder):
    """ImageNet-ReaL's features; an image's brightness is its number."""

    name = "imagenet2012_real"
    VERSION = tfds.core.Version("1.0.0")
    code_path = None
    real = ((7,), (), (3, 999), (5, 6), ())

    def _info(self):
        features = {
            "image": tfds.features.Image(encoding_format="png"),
            "original_label": tfds.features.ClassLabel(names=SYNSETS),
            "real_label": tfds.features.Sequence(tfds.features.ClassLabel(names=SYNSETS)),
            "file_name": tfds.features.Text(),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("image", "real_label"),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager):
        return {"validation": self._generate_examples()}

    def _generate_examples(self):
        for i, real in enumerate(self.real):
            example = {"image": png(i), "original_label": 0, "real_label": list(real)}
            yield i, {**example, "file_name": f"{i}.png"}


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    root = tmp_path_factory.mktemp("real")
    Imagenet2012Real(data_dir=root, file_format="array_record").download_and_prepare()
    return align(open_source("imagenet2012_real", str(root), "validation"), WORDS)


def summary(source, guesses, devices=1):
    """Score a model that answers image i, whose pixels are i, with guesses[i]."""
    context = EvalContext(
        data=data.DataConfig(batch_size=2),
        sources={"": source},
        image_size=(4, 4),
        channels=3,
        mesh=sharding.make_mesh(sharding.MeshConfig(), jax.devices()[:devices]),
    )
    cfg = ClassifyEval(transform=data.TransformConfig(crop=data.Crop.RESIZE))
    evaluation = create(cfg, context)

    def predict(variables, batch):
        return 9 * jax.nn.one_hot(variables[batch["image"][:, 0, 0, 0]], source.num_classes)

    return evaluation.scores(predict, np.array(guesses)).summary()


@pytest.mark.parametrize("devices", [1, 8])
def test_real_counts_any_label_and_leaves_out_images_without(real, devices):
    assert real.class_names == WORDS
    found = summary(real, [7, 7, 999, 4, 0], devices)  # right, -, right, wrong, -
    assert (found["top1"], found["num_examples"]) == (2 / 3, 3)
    assert summary(real, [0, 7, 3, 6, 0], devices)["top1"] == 2 / 3


@pytest.fixture
def folder(tmp_path):
    """Make DIR/test/<name>/0.png of brightness i, for the i-th name."""

    def make(names):
        for i, name in enumerate(names):
            file = tmp_path / "test" / name / "0.png"
            file.parent.mkdir(parents=True)
            file.write_bytes(png(i).read())
        return open_source(f"folder:{tmp_path}", split="test")

    return make


def test_numbered_folders_are_ids_and_not_sorted_as_text(folder):
    numbers = [0, 1, 2, 3, 10, 11, 100, 101, 999]
    source = align(folder([str(n) for n in numbers]), WORDS)
    assert labels(source) == numbers
    assert source.num_classes == 1000
    assert source.example_id(0).endswith("0.png")
    guesses = [0, 1, 2, 3, 10, 11, 100, 101, 0]
    assert summary(source, guesses)["top1"] == pytest.approx(8 / 9)
