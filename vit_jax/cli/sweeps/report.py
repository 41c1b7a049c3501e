# SPDX-License-Identifier: Apache-2.0
"""`sweep report`: laws fitted to the finished runs, or their scores; picture, page, numbers."""

import dataclasses
import json
from pathlib import Path

from vit_jax.cli.parsing import options
from vit_jax.cli.parsing.options import Options, flag
from vit_jax.cli.sweeps import status as sweep_status
from vit_jax.cost.tables import align
from vit_jax.errors import UserError
from vit_jax.process import waiting
from vit_jax.process.escapes import terminal
from vit_jax.settings import measures
from vit_jax.sweeps import in_bucket, laws, point, results, scores
from vit_jax.sweeps import report as sweep_report

PICTURE, PAGE, FITS = "report.png", "report.html", "fits.json"
_SIZES = 3  # different numbers of parameters that make a sweep one of sizes


@dataclasses.dataclass(kw_only=True)
class Report(Options):
    """Fits scaling laws to the finished runs; prints scores where points are named GROUP/CASE.

    Writes report.png, report.html and fits.json to DIR.
    """

    place: Path = flag(Path(), "the sweep", "[DIR]", ask=sweep_status.NO_PLACE)
    title: str = flag("", "of the page; by default the directory's name")


def report(given: Report) -> None:
    """Write the report of a sweep, and print what was found.

    Raises UserError: no run has finished.
    """
    place = in_bucket.opened(given.place)
    found = results.read(place, point.read_manifest(place))
    finished = [result for result in found if result.value is not None]
    if not finished:
        raise UserError(f"of the {len(found)} runs in {place} none has finished; start: sweep run")
    metric, title = found[0].point.metric, given.title or place.resolve().name
    fitted = None
    sized = len({result.point.params for result in finished}) >= _SIZES
    falls = laws.measure(metric)
    if cases := scores.cases(found):
        sweep_report.draw_search(found, metric, title, place / PICTURE)
        header, *rows = scores.table(cases, metric)
        print("\n".join(align(header, rows, right=range(2, len(header)))))
    elif sized and (not measures.is_better_larger(metric) or falls != metric):
        with waiting.said("fitting the laws"):
            fitted = laws.fit(place, found)
        sweep_report.draw_laws(fitted, falls, title, place / PICTURE)
        (place / FITS).write_text(json.dumps(fitted.to_json(), indent=1) + "\n")
        for name, quantity, value, interval in fitted.rows():
            between = f" ({interval})" if interval else ""
            print(terminal(f"{name:22} {quantity}" + (f" = {value}{between}" if value else "")))
        for name, reason in fitted.refused.items():
            print(terminal(f"{name:22} not fitted: {reason}"))
    else:
        sweep_report.draw_search(found, metric, title, place / PICTURE)
        order = -1 if measures.is_better_larger(metric) else 1
        for result in sorted(finished, key=lambda r: order * (r.value or 0.0))[:5]:
            print(terminal(f"{metric} {result.value:.4f}  {result.point.name}"))
    shown = {"title": title, "summary": sweep_status.summary(found), "picture": place / PICTURE}
    sweep_report.write_page(place / PAGE, found, fitted, **shown)
    written = [PICTURE, PAGE, *([FITS] if fitted is not None else [])]
    for name in written:
        in_bucket.send(place / name)
    print("wrote " + ", ".join(str(place / name) for name in written))


main = options.verb(Report, report)
