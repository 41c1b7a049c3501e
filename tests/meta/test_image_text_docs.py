# SPDX-License-Identifier: Apache-2.0
"""docs/image_text.md lists every named pair with its exact count; this file, run, writes it."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.unit.models.test_two_towers import COUNTS
from tests.unit.models.test_two_towers import count as by_formula
from vit_jax import trees
from vit_jax.models import two_towers

PAGE = Path(__file__).parents[2] / "docs" / "image_text.md"
BEGIN, END = "<!-- pairs -->\n", "<!-- /pairs -->\n"


def count(name: str) -> int:
    """Return the number of parameters by a formula, and of a published pair as published."""
    found = by_formula(two_towers.variant(name))
    assert found == COUNTS.get(name, found), name
    return found


def kind(value: Any) -> Any:
    """Return what a config chooses, without its sizes."""
    if dataclasses.is_dataclass(value):
        return tuple(kind(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, tuple):
        return tuple(map(kind, value))
    return bool(value) if isinstance(value, int | float) else value


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
def test_the_formula_counts_a_pair_of_each_kind(subtests: pytest.Subtests) -> None:
    kinds = {kind(two_towers.variant(name)): name for name in reversed(two_towers.names())}
    assert len(kinds) > 5
    for name in kinds.values():
        with subtests.test(name):
            pair = two_towers.variant(name)
            assert trees.num_params(two_towers.abstract(pair)["params"]) == by_formula(pair)


def test_the_table_is_what_the_code_has() -> None:
    _, _, rest = PAGE.read_text().partition(BEGIN)
    found, end, _ = rest.partition(END)
    assert end
    assert found == table(), "write it anew: python -m tests.meta.test_image_text_docs"


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}")
