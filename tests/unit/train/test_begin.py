# SPDX-License-Identifier: Apache-2.0
"""What a run begins with: the objective's extras are those it was started with."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vit_jax.errors import UserError
from vit_jax.objectives import Extras
from vit_jax.train import begin


def opened(path: Path, digest: str) -> Any:
    """Return the parts of `begin.Opened` that reading a teacher of this digest needs."""
    objective = SimpleNamespace(open=lambda source, seed, positions, saved: Extras(digest=digest))
    parts = SimpleNamespace(objective=objective, plan=SimpleNamespace(total_steps=4))
    kind = SimpleNamespace(embeds_texts=False)
    cfg = SimpleNamespace(seed=0, data=SimpleNamespace(batch_size=2), objective=kind)
    return SimpleNamespace(cfg=cfg, parts=parts, source=None, path=path)


def test_a_run_goes_on_with_its_teacher_or_by_permission_with_another(tmp_path: Path) -> None:
    run, saved = opened(tmp_path, "b"), {"teacher": "a", "config": {}}
    with pytest.raises(UserError, match=r"are not those that .* was started with \(digest b, not"):
        begin.open_extras(run, saved, allow_config_change=False)
    assert begin.open_extras(run, saved, allow_config_change=True).digest == "b"
    assert begin.open_extras(run, saved | {"teacher": "b"}, allow_config_change=False).digest == "b"
    assert begin.open_extras(run, {}, allow_config_change=False).digest == "b"  # begins now
