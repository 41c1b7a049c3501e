# SPDX-License-Identifier: Apache-2.0
"""Tables of HTML for Markdown pages; docs/assets/tables.js sorts and filters the sortable ones."""

import html
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Cell(NamedTuple):
    """A cell's HTML, the number by which it is sorted, if it is one, and an anchor."""

    html: str
    number: float | None = None
    anchor: str = ""


def code(text: str) -> str:
    """Return a text as code."""
    return f"<code>{html.escape(text)}</code>"


def prose(text: str) -> str:
    """Return a docstring's words as HTML: what stands in backticks is code."""
    parts = re.split(r"`([^`]*)`", text)
    parts[::2] = [html.escape(part, quote=False) for part in parts[::2]]
    parts[1::2] = [code(part) for part in parts[1::2]]
    return "".join(parts)


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]], kind: str) -> str:
    """Return a table in a box of the class `kind`; with one of its own it would lose its style."""
    first = "".join(f'<th scope="col">{name}</th>' for name in head)
    lines = [f'<div class="{kind}"><table>', f"<thead><tr>{first}</tr></thead><tbody>"]
    lines += ["<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows]
    return "\n".join([*lines, "</tbody></table></div>"])


def _cell(cell: Cell) -> str:
    anchor = f' id="{cell.anchor}"' if cell.anchor else ""
    number = "" if cell.number is None else f' class="number" data-sort="{cell.number}"'
    return f"<td{anchor}{number}>{cell.html}</td>"
