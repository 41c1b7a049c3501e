# SPDX-License-Identifier: Apache-2.0
"""docs/image_text.md lists every named pair with its exact count; this file, run, writes it."""

from pathlib import Path

import pytest

from tests.unit.models.test_two_towers import COUNTS
from tests.unit.models.test_two_towers import count as by_formula
from vit_jax import trees
from vit_jax.models import two_towers

PAGE = Path(__file__).parents[2] / "docs" / "image_text.md"
BEGIN, END = "<!-- pairs -->\n", "<!-- /pairs -->\n"


def count(name: str) -> int:
    """Return the number of parameters, by shapes and by a formula."""
    cfg = two_towers.variant(name)
    found = trees.num_params(two_towers.abstract(cfg)["params"])
    assert found == by_formula(cfg) == COUNTS.get(name, found), name
    return found


def table() -> str:
    """Return the page's table."""
    lines = [
        "",
        "| pair | side | patch, width, blocks | text: width, blocks, tokens, length | E | count |",
        "|---|--:|---|---|--:|--:|",
    ]
    for name in two_towers.names():
        pair = two_towers.variant(name)
        image, text = pair.image, pair.text
        sizes = f"{image.patch[0]}, {image.dim:,}, {image.depth}"  # pyright: ignore[reportAttributeAccessIssue]
        texts = f"{text.dim:,}, {text.depth}, {text.vocab_size:,}, {text.context}"
        cells = (
            f"`{name}`",
            image.image_size[0],
            sizes,
            texts,
            f"{pair.dim:,}",
            f"{count(name):,}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, "", ""])


@pytest.mark.slow
def test_the_table_is_what_the_code_has() -> None:
    _, _, rest = PAGE.read_text().partition(BEGIN)
    found, end, _ = rest.partition(END)
    assert end
    assert found == table(), "write it anew: python -m tests.meta.test_image_text_docs"


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}")
