# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/distill.md are read, and each asks only for what one before it makes."""

import pytest

from tests.meta.pages import COMMANDS, ROOT
from vit_jax.cli.parsing import flags

PAGE = [command for command in COMMANDS if command.page == "docs/distill.md"]


def test_they_build_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    made, asked = set(), set()
    for command in PAGE:
        given = [word for word in command.words if word.startswith("--config")]
        argv = ["main.py", *given]
        cfg = flags.read_config(argv)
        distill = getattr(cfg.objective, "distill", None)
        needed = {distill.weights.removeprefix("ckpt:"), distill.cache} - {""} if distill else set()
        assert needed <= made, command
        asked |= needed
        made |= {w.partition("=")[2] for w in command.words if w[:6] in ("--work", "--out=")}
    assert asked == {"runs/regnet_digits", "runs/logits"}
