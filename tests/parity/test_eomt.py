# SPDX-License-Identifier: Apache-2.0
"""transformers loads an EoMT that is written here, and says the same of an image."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.parity.torch_models import torch  # before transformers: see there
from tests.unit.weights import google_writer
from vit_jax import models
from vit_jax.data import TransformConfig
from vit_jax.errors import UserError
from vit_jax.export import dense
from vit_jax.inference.trained import Trained
from vit_jax.models.dense import eomt
from vit_jax.weights.names import eomt as names

hf: Any = pytest.importorskip("transformers")

SMALL = {"num_classes": 0, "image_size": (48, 48), "patch": (16, 16), "depth": 3, "num_heads": 2}
KINDS = {
    "eomt": ("vit_s14_dinov2_reg", {"dim": 32, "mlp_dim": 128}),
    "eomt, gated": ("vit_g14_dinov2_reg", {"dim": 32, "mlp_dim": 88}),
    "eomt_dinov3": ("vit_s16_dinov3", {"dim": 32, "mlp_dim": 48}),
}


def test_a_gated_dinov3_is_refused() -> None:
    model = models.variant("vit_s16plus_dinov3", **SMALL, dim=32, mlp_dim=48)
    with pytest.raises(UserError, match=r"model\.mlp=gelu, not swiglu"):
        names.config(model, eomt.EomtHead(num_classes=3, blocks=2), ())


@pytest.mark.parametrize("kind", list(KINDS))
def test_transformers_says_the_same(kind: str, tmp_path: Path) -> None:
    name, sizes = KINDS[kind]
    model = models.variant(name, **SMALL, **sizes, layer_scale=1.0)
    head = eomt.EomtHead(num_classes=3, queries=4, blocks=2)
    variables = google_writer.random_variables(eomt.abstract(model, head))
    called, plain = ("a", "b", "c"), TransformConfig()
    known = {"ref": "random", "source": "random", "mean": (0.5,), "std": (0.5,), "transform": plain}
    found = Trained(model=model, head=head, variables=variables, class_names=called, **known)
    dense.check(found)
    for file, content in dense.make(found).items():
        (tmp_path / file).write_bytes(content)
    assert json.loads((tmp_path / "config.json").read_text())["id2label"]["2"] == "c"
    theirs, told = hf.AutoModelForUniversalSegmentation.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(told[each] for each in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    image = np.random.default_rng(0).normal(0, 1, (2, 48, 48, 3)).astype(np.float32)
    with torch.no_grad():
        wanted = theirs.eval()(pixel_values=torch.tensor(image.transpose(0, 3, 1, 2)))
    with jax.default_matmul_precision("highest"):
        out: Any = eomt.create(model, head).apply(variables, jnp.asarray(image))
    said = out.predictions[-1]
    for own, other in (
        (said.classes, wanted.class_queries_logits),
        (said.masks, wanted.masks_queries_logits),
    ):
        other = other.numpy()
        np.testing.assert_allclose(own, other, rtol=0, atol=5e-5 * np.abs(other).max())
