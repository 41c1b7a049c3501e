# SPDX-License-Identifier: Apache-2.0
"""The page of a sweep: one HTML file that asks no other host for anything."""

import base64
import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template

from vit_jax import files
from vit_jax.durations import format_duration
from vit_jax.sweeps.laws import Laws
from vit_jax.sweeps.results import Outcome
from vit_jax.visual.figures import thin

_MAX_POINTS = 200  # of a curve; more than can be seen


def write(
    out: Path,
    found: Sequence[Outcome],
    laws: Laws | None,
    *,
    title: str,
    summary: str,
    picture: Path,
) -> None:
    """Write the page: picture, laws, curves of all runs, and their table."""
    template = Template(Path(__file__).with_name("sweep_page.html").read_text(encoding="utf-8"))
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
    files.write(out, text)


def _curves(result: Outcome) -> dict[str, object]:
    fields = {name: getattr(result.point, name) for name in ("name", "steps", "examples", "flops")}
    return {
        **fields,
        "curve": thin(result.curve, _MAX_POINTS),
        "train": thin(result.train_loss, _MAX_POINTS),
    }


def _laws(laws: Laws) -> str:
    rows = [tuple(map(html.escape, row)) for row in laws.rows()]
    table = _table(["law", "quantity", "value", "95 % interval"], rows, numbers=(2, 3))
    refused = "".join(
        f'<p class="refused">{html.escape(name)}: {html.escape(reason)}</p>'
        for name, reason in laws.refused.items()
    )
    return f"<h2>Laws</h2>{table}{refused}"


def _runs(found: Sequence[Outcome]) -> str:
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
