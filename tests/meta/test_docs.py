# SPDX-License-Identifier: Apache-2.0
"""The example of docs/scaling.md prints what the page says."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"


def test_example_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(
        r"```python\n(from vit_jax.sweeps import scaling.*?)```\n\n```text\n(.*?)```",
        PAGE.read_text(),
        re.DOTALL,
    )
    assert found is not None
    exec(found[1], {})
    assert capsys.readouterr().out == found[2]
