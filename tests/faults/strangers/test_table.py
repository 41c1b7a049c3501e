# SPDX-License-Identifier: Apache-2.0
"""Each row of docs/reliability.md, "From strangers", has a test in this folder."""

import re
from pathlib import Path

from tests.faults.strangers.given import ROOT


def test_the_table_has_a_test_a_row() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text()
    section = text.partition("## From strangers")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    listed = [name for row in rows for name in re.findall(r"`(test_\w+)`", row)]
    assert all(re.search(r"`test_\w+`", row) for row in rows)
    here = []
    for file in Path(__file__).parent.glob("test_*.py"):
        if file != Path(__file__):
            here += re.findall(r"(?m)^def (test_\w+)", file.read_text())
    assert sorted(listed) == sorted(here)
