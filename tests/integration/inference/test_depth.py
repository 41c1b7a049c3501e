# SPDX-License-Identifier: Apache-2.0
"""Depths of an image by a published model: in its shape, as transformers computes them."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.inference import dense, depth
from vit_jax.models.dense.dpt import DptConfig
from vit_jax.weights.published import hf_images

GOLDEN = Path(__file__).parents[2] / "golden/next3"
# The preprocessor_config.json of Depth Anything V2, at the size of the stored model.
IMAGES: dict[str, Any] = {
    "image_processor_type": "DPTImageProcessor",
    "do_resize": True,
    "size": {"height": 28, "width": 28},
    "keep_aspect_ratio": True,
    "ensure_multiple_of": 7,
    "do_pad": False,
    "resample": 3,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


def test_shapes_are_transformers() -> None:
    # 518 x 686 is what its conversion of Depth Anything expects of an image of 480 x 640.
    assert depth.shaped((480, 640), (518, 518), (14, 14)) == (518, 686)
    assert depth.shaped((640, 480), (518, 518), (14, 14)) == (686, 518)
    assert depth.shaped((1000, 3000), (518, 518), (14, 14)) == (518, 1554)
    assert depth.shaped((3, 900), (518, 518), (14, 14)) == (14, 518)


def test_a_published_model_says_depths_of_any_image(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "depth_anything.safetensors", tmp_path / "model.safetensors")
    shutil.copy(GOLDEN / "depth_anything.config.json", tmp_path / "config.json")
    (tmp_path / hf_images.FILE).write_text(json.dumps(IMAGES))
    found = dense.load(f"hf:{tmp_path}")
    assert isinstance(found.head, DptConfig)
    assert found.image_size == (28, 28)
    # At the stored size, whose positions are brought to 6 x 4 patches, it is transformers' output.
    stored = np.load(GOLDEN / "depth_anything.npz")
    model, variables = depth.at_size(found.model, found.variables, (42, 28))
    run = depth._program(depth.dense.objective(found).cfg, model, (0.0,), (1.0,))
    pixels = stored["in_pixel_values"].transpose(0, 2, 3, 1)  # of floats white is 1
    out = np.asarray(run(variables, pixels))
    bound = 5e-5 * np.abs(stored["out_depth"]).max()
    np.testing.assert_allclose(out, stored["out_depth"], atol=bound, rtol=0)
    image = np.random.default_rng(0).integers(0, 256, (30, 20, 3), np.uint8)
    whole = depth.estimate(found, image)
    assert whole.shape == (30, 20)
    assert whole.std() > 0


def test_other_processors_and_models_are_refused(tmp_path: Path) -> None:
    plain = {**IMAGES, "image_processor_type": "ViTImageProcessor"}
    with pytest.raises(UserError, match="keep_aspect_ratio=True leaves images of any shape"):
        hf_images.read(plain, "preprocessor_config.json")
    left = {**IMAGES, "do_resize": False, "do_pad": True, "size_divisor": 14}
    assert hf_images.read(left, "preprocessor_config.json").size is None
