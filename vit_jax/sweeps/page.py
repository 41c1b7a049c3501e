# SPDX-License-Identifier: Apache-2.0
"""The page of a sweep: one HTML file that asks no other host for anything."""

import base64
import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template

from vit_jax.durations import format_duration
from vit_jax.sweeps.laws import Laws
from vit_jax.sweeps.results import Result

_MAX_POINTS = 200  # of a curve; more than can be seen


def write(
    out: Path,
    found: Sequence[Result],
    laws: Laws | None,
    *,
    title: str,
    summary: str,
    picture: Path,
) -> None:
    """Write the page: picture, laws, curves of all runs, and their table."""
    template = Template((Path(__file__).parent / "page.html").read_text(encoding="utf-8"))
    metric = found[0].point.metric
    text = template.substitute(
        title=html.escape(title),
        summary=html.escape(summary),
        picture=base64.b64encode(picture.read_bytes()).decode(),
        alt=html.escape(f"{metric} of the runs"),
        laws="" if laws is None else _laws(laws),
        metric=html.escape(metric),
        runs=_runs(found),
        # "</script>" in a name would end the element.
        data=json.dumps([_curves(result) for result in found]).replace("<", "\\u003c"),
    )
    temporary = out.with_name(out.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(out)


def _curves(result: Result) -> dict[str, object]:
    point = result.point
    return {
        "name": point.name,
        "steps": point.steps,
        "examples": point.examples,
        "flops": point.flops,
        "curve": _thin(result.curve),
        "train": _thin(result.train_loss),
    }


def _thin(curve: list[tuple[int, float]]) -> list[tuple[int, float]]:
    every = -(-len(curve) // _MAX_POINTS)
    return curve[::-1][::every][::-1] if every else []


def law_rows(laws: Laws) -> list[tuple[str, str, str, str]]:
    """Return (law, quantity, value, 95 % interval) of everything that was fitted."""
    rows = []
    fitted = [
        ("value against compute", laws.compute, "abcd"),
        ("L(N, D)", laws.joint, ("E", "A", "B", "alpha", "beta", "a", "b")),
        ("runs of equal compute", laws.isoflop, "ab"),
        *((f"best {field.split('.')[1]}", law, "s") for field, law in laws.shapes.items()),
    ]
    for name, law, quantities in fitted:
        if law is None:
            continue
        rows.append((name, law.describe(), "", ""))
        for quantity in quantities:
            low, high = law.intervals.get(quantity, (None, None))
            if low is not None and (getattr(law, quantity) or high):
                value = f"{getattr(law, quantity):.3g}"
                rows.append(("", quantity, value, f"{low:.3g} to {high:.3g}"))
    if laws.held_out is not None:
        worst = f"{100 * laws.held_out.worst:+.1f} %"
        told = f"error of predicting the {len(laws.held_out.compute)} of most compute"
        rows.append(("held out", told, worst, ""))
    return rows


def _laws(laws: Laws) -> str:
    rows = [tuple(map(html.escape, row)) for row in law_rows(laws)]
    told = "".join(
        f'<p class="refused">{html.escape(name)}: {html.escape(reason)}</p>'
        for name, reason in laws.refused.items()
    )
    return (
        "<h2>Laws</h2>"
        + _table(["law", "quantity", "value", "95 % interval"], rows, numbers=(2, 3))
        + told
    )


def _runs(found: Sequence[Result]) -> str:
    rows = [
        (
            html.escape(result.point.name),
            html.escape(result.state),
            f"{result.point.params:,}",
            f"{result.point.examples:,}",
            f"{result.point.flops:.3g}",
            f"{result.curve[-1][1]:.4f}" if result.curve else "",
            format_duration(result.seconds) if result.seconds else "",
            f"<code>{result.point.run}</code>",
        )
        for result in found
    ]
    metric = html.escape(found[0].point.metric)
    header = ["run", "state", "parameters", "examples", "FLOPs", metric, "time", "directory"]
    return _table(header, rows, numbers=(2, 3, 4, 5, 6))


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int]) -> str:
    def line(tag: str, cells: Sequence[str]) -> str:
        parts = [
            f'<{tag} class="number">{cell}</{tag}>' if i in numbers else f"<{tag}>{cell}</{tag}>"
            for i, cell in enumerate(cells)
        ]
        return f"<tr>{''.join(parts)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table>{line('th', header)}{body}</table>"
