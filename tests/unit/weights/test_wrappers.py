# SPDX-License-Identifier: Apache-2.0
"""Names that training code puts before a network's are taken away where what is left fits."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.refusals import refused_by
from tests.unit.models.tiny import TINY
from tests.unit.weights.test_grids import state_of
from vit_jax import weights
from vit_jax.errors import UserError

CFG = TINY["vit"]
PREFIXES = (
    *("module.", "_orig_mod.", "model.", "module._orig_mod.", "_orig_mod.module.", "state_dict."),
    *("backbone.", "encoder.", "student.", "teacher.", "ema_model.module.", "_forward_module."),
    *("learner.", "lightning.model.", "a.b.c.", "classifier.module."),  # a name of their own
    *("model.backbone.", "net.encoder.", "_forward_module._orig_mod.model.", "module.model.net."),
)


def positions(path: Path, state: dict[str, np.ndarray]) -> np.ndarray:
    save_file(state, path)
    return weights.load(f"timm:{path}", CFG)["params"]["pos_embed"]


def test_each_is_taken_away(tmp_path: Path) -> None:
    state = state_of(CFG)
    for before in PREFIXES:
        found = positions(tmp_path / "x", {before + key: value for key, value in state.items()})
        np.testing.assert_array_equal(found, state["pos_embed"], err_msg=before)
    inside = {
        key.replace("blocks.1.", "blocks.1._orig_mod.").replace(
            "blocks.0.attn.", "blocks.0._fsdp_wrapped_module.attn._checkpoint_wrapped_module."
        ): value
        for key, value in state.items()
    }
    assert set(inside) != set(state)
    np.testing.assert_array_equal(positions(tmp_path / "x", inside), state["pos_embed"])


def test_what_lies_beside(tmp_path: Path) -> None:
    state = state_of(CFG)
    wrapped = {f"module.{key}": value for key, value in state.items()}
    averaged = wrapped | {"n_averaged": np.ones((), np.int64)}
    np.testing.assert_array_equal(positions(tmp_path / "x", averaged), state["pos_embed"])
    with refused_by("weights.apply._check_keys"):
        positions(tmp_path / "x", wrapped | {"criterion.weight": np.ones(3, np.float32)})
    both = {f"{name}.{key}": value for key, value in state.items() for name in ("model", "ema")}
    with pytest.raises(UserError, match=r"2 networks that fit, under model\., ema\."):
        positions(tmp_path / "x", both)
    twice = state | {f"module.{key}": value for key, value in state.items()}
    with refused_by("weights.apply._check_keys") as caught:
        positions(tmp_path / "x", twice)
    assert len(str(caught.value)) < 800
