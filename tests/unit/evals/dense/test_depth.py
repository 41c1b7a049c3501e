# SPDX-License-Identifier: Apache-2.0
"""Errors of depths against numbers worked out by hand, at the images' own sizes."""

import io
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests.refusals import refused_by
from vit_jax import models
from vit_jax.data import Crop, DataConfig, TransformConfig
from vit_jax.data.sources.base import Labelled
from vit_jax.data.targets import Target, TargetKind
from vit_jax.devices.sharding import MeshConfig, make_mesh
from vit_jax.errors import UserError
from vit_jax.evals import DepthEval
from vit_jax.evals.base import EvalContext
from vit_jax.evals.config import DepthCrop
from vit_jax.evals.dense import depth
from vit_jax.settings import measures

MODEL = models.variant("vit_mu8", image_size=(8, 8), num_classes=0)
WHOLE = TransformConfig(crop=Crop.RESIZE)


class Steps(Labelled):
    """Images of two halves, dark and bright, of odd sizes; depth is the brightness / 25."""

    target_kind = TargetKind.DEPTH
    name: str

    def __init__(self, sizes: list[tuple[int, int]], shift: float = 0.0) -> None:
        self.sizes, self.shift = sizes, shift
        self.name = "steps[val]"
        self.class_names: tuple[str, ...] = ("none",)
        self.labels = np.zeros(len(sizes), np.int32)

    def __len__(self) -> int:
        return len(self.sizes)

    def image(self, index: int) -> np.ndarray:
        height, width = self.sizes[index]
        pixels = np.full((height, width, 3), 50, np.uint8)
        pixels[:, width // 2 :] = 200
        return pixels

    def read(self, index: int) -> dict[str, Any]:
        file = io.BytesIO()
        Image.fromarray(self.image(index)).save(file, "png")
        return {"image": file.getvalue(), "label": 0}

    def target(self, index: int) -> Target:
        found = self.image(index)[..., 0] / np.float32(25) + np.float32(self.shift)
        found[0] = 0  # not known
        return Target(size=self.sizes[index], depth=found)

    def example_id(self, index: int) -> str:
        return f"image {index}"

    def digest(self) -> str:
        return "0" * 16


def brightness(variables: Any, batch: Any) -> jax.Array:
    del variables
    return batch["image"][..., 0].astype(jnp.float32) / 25


def slanted(variables: Any, batch: Any) -> jax.Array:
    """Be right on the left and too far on the right."""
    ramp = jnp.linspace(0, 1, batch["image"].shape[2])[None, None]
    return brightness(variables, batch) + ramp


def measured(cfg: DepthEval, source: Any, predict: Any = brightness, devices: int = 1) -> Any:
    mesh = make_mesh(MeshConfig(data=devices), jax.devices()[:devices])
    context = EvalContext(
        data=DataConfig(batch_size=2),
        sources={"": source},
        image_size=(8, 8),
        channels=3,
        mesh=mesh,
    )
    found = depth.create(cfg, context).run({"depth": predict}, {"params": {}})
    assert {*cfg.metrics, "num_examples"} == set(found)
    return found


def test_errors_by_hand() -> None:
    truth = np.array([[1.0, 2.0, 4.0, 0.0]])
    found = np.array([[1.0, 2.6, 2.0, 9.0]])
    values = depth.errors(found, truth, truth > 0)
    wanted = {
        "rmse": np.sqrt((0.6**2 + 2**2) / 3),
        "abs_rel": (0.3 + 0.5) / 3,
        "log10": (np.log10(1.3) + np.log10(2)) / 3,
        "delta1": 1 / 3,  # ratios 1, 1.3 and 2; bounds 1.25, 1.5625, 1.953
        "delta2": 2 / 3,
        "delta3": 2 / 3,
    }
    np.testing.assert_allclose(values, list(wanted.values()), rtol=1e-12)
    assert tuple(wanted) == depth.METRICS == DepthEval().metrics


def test_better_depths_are_known_by_their_measures() -> None:
    lower = [name for name in depth.METRICS if not measures.is_better_larger(f"val/{name}")]
    assert lower == ["rmse", "abs_rel", "log10"]


def test_images_are_measured_at_their_own_sizes_on_any_devices() -> None:
    source = Steps([(16, 32), (8, 8), (24, 16)])
    exact = measured(DepthEval(transform=WHOLE), source)
    assert exact["num_examples"] == 3
    # The middle image has the model's size and is exact; enlarged ones blur at the edge alone.
    assert exact["delta1"] > 0.9
    off = measured(DepthEval(transform=WHOLE), Steps([(8, 8)], shift=1.0))
    assert off["rmse"] == pytest.approx(1.0, abs=1e-5)
    assert off["abs_rel"] == pytest.approx((1 / 3 + 1 / 9) / 2, abs=1e-5)
    many = measured(DepthEval(transform=WHOLE, batch_size=2), source, devices=8)
    assert many == exact


def test_a_mirrored_copy_is_averaged_and_another_size_is_seen() -> None:
    source = Steps([(8, 8)])
    assert measured(DepthEval(transform=WHOLE), source, slanted)["rmse"] > 0.55
    both = measured(DepthEval(transform=WHOLE, flip=True), source, slanted)
    assert both["rmse"] == pytest.approx(0.5, abs=1e-5)  # the ramps add to one
    large = measured(DepthEval(transform=WHOLE, image_size=(16, 16)), Steps([(16, 16)]))
    assert large["rmse"] < 1e-5


def test_pixels_that_are_measured() -> None:
    truth = np.linspace(0, 12, 480 * 640, dtype=np.float32).reshape(480, 640)
    valid = depth.valid_pixels(truth, 0.001, 10.0, DepthCrop.EIGEN)
    assert not valid[44].any()
    assert not valid[:, 40].any()
    assert not valid[truth >= 10].any()
    assert [valid[45, 41], valid[300, 600], valid[300, 601]] == [True, True, False]
    with pytest.raises(UserError, match=r"crop=eigen is of 480x640, and an image is 8x8"):
        measured(DepthEval(transform=WHOLE, crop=DepthCrop.EIGEN), Steps([(8, 8)]))
    with pytest.raises(UserError, match="no pixel of known depth"):
        measured(DepthEval(transform=WHOLE, max_depth=0.01), Steps([(8, 8)]))
    with refused_by("evals.config.DepthEval.check_model", "evals.val.image_size"):
        DepthEval(image_size=(16, 16)).check_model("evals.val", MODEL)
    free = models.with_fields(MODEL, {"dynamic_image_size": True})
    DepthEval(image_size=(16, 16)).check_model("evals.val", free)
    with pytest.raises(UserError, match=r"^evals.val.image_size=\(17,\): model.patch"):
        DepthEval(image_size=(17,)).check_model("evals.val", free)
    with pytest.raises(UserError, match=r"transform.crop=center leaves out pixels"):
        DepthEval().check("evals.val")
