# SPDX-License-Identifier: Apache-2.0
"""`python -m vit_jax predict --from=RUN IMAGE ...`: the likeliest classes of images."""

import contextlib
import csv
import functools
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vit_jax import errors, startup, trees
from vit_jax.cli import flags as cli_flags
from vit_jax.cli import trained_flags
from vit_jax.errors import UserError, shown
from vit_jax.inference.images import expand
from vit_jax.inference.prediction import Result, stream
from vit_jax.inference.trained import read_weights

_HELP = f"""usage: python -m vit_jax predict --from=WEIGHTS IMAGE ... [flags]

Prints the likeliest classes of each image. An IMAGE is a file, a folder (all images in it, at any
depth), a pattern such as "photos/**/*.jpg", or - for a list of names on stdin, one a line.

  --top=N                 classes of each image (default: 5)
  --format=table          for reading; the default
  --format=jsonl          a line of JSON an image, a broken one has "error"
  --format=csv            a row for each image and rank; none for a broken image
  --out=FILE              write there, not to stdout; .csv, .jsonl and .txt (table) say the format
  --force                 replace a FILE that is there
  --batch_size=N          images at once (default: 32)

{trained_flags.HELP}

  python -m vit_jax predict --from=runs/vit_mu_digits docs/images/digits
  python -m vit_jax predict --from=npz:ViT-B_16.npz --model=vit_b16_384 cat.jpg dog.jpg --top=1
  find photos -name '*.jpg' | python -m vit_jax predict --from=runs/pets - --out=pets.csv

Exit status: 0 all images were read, 1 some were not (stderr says which and why), 2 bad usage."""

_TABLE, _JSONL, _CSV = "table", "jsonl", "csv"
_SUFFIXES = {"": _TABLE, ".txt": _TABLE, ".jsonl": _JSONL, ".csv": _CSV}
_SIGPIPE = 141  # as the shell has it
# Seconds between lines of progress in a log.
_EVERY = 10.0


def main(argv: Sequence[str]) -> int:
    """Run the command line (program name first) and return the exit status."""
    if any(argument in ("-h", "--help", "-help") for argument in argv[1:]):
        print(_HELP)
        return 0

    def command() -> int:
        startup.configure()
        values = flags.FlagValues()
        trained_flags.define(values)
        flags.DEFINE_integer("top", 5, "See --help.", 1, flag_values=values)
        flags.DEFINE_string("format", "", "See --help.", flag_values=values)
        flags.DEFINE_string("out", "", "See --help.", flag_values=values)
        flags.DEFINE_bool("force", False, "See --help.", flag_values=values)
        flags.DEFINE_integer("batch_size", 32, "See --help.", 1, flag_values=values)
        found, names = trained_flags.read(argv, values)
        if not names:
            raise UserError("which images? name files, folders or patterns, or - to read a list")
        out, top = os.path.expanduser(str(values["out"].value)), int(values["top"].value or 0)
        form = _format(str(values["format"].value), out)
        images = expand(names, sys.stdin)
        if out and any(os.path.abspath(out) == os.path.abspath(name) for name in images):
            raise UserError(f"--out={out} is one of the images; nothing was written")
        _check_force(out, force=bool(values["force"].value))
        trained = read_weights(found)
        batches = stream(trained, images, top, batch_size=int(values["batch_size"].value or 0))
        with _sink(out) as sink, contextlib.closing(batches):
            return _write(batches, images, form, sink, out)

    return cli_flags.run(command, argv)


def _format(form: str, out: str) -> str:
    known = (_TABLE, _JSONL, _CSV)
    if form and form not in known:
        raise errors.unknown("format", form, known)
    suffix = Path(out).suffix.lower()
    if not form and suffix not in _SUFFIXES:
        raise UserError(
            f"--out={out}: no format is known by {suffix!r}; name it .csv, .jsonl or .txt (a "
            f"table), or add --format={'|'.join(known)}"
        )
    return form or _SUFFIXES[suffix]


def _check_force(out: str, *, force: bool) -> None:
    if force and not out:
        raise UserError("--force is of a file; add --out=FILE")
    if Path(out).is_file() and not force:  # what is no file, such as /dev/null, loses nothing
        raise UserError(f"--out={out} is there already; choose another name, or add --force")


def _sink(out: str) -> contextlib.AbstractContextManager[Any]:
    """Open what results are written to; file names that are no text do not stop it."""
    if not out:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        return contextlib.nullcontext(sys.stdout)
    try:
        return open(out, "w", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UserError(f"--out={out}: {error.strerror}") from None


def _write(
    batches: Iterable[list[Result]], images: Sequence[str], form: str, sink: Any, out: str
) -> int:
    """Write results as they come; returns the exit status."""
    head, written = _writers(form, images)
    broken = 0
    try:
        sink.write(head)
        with _Report(len(images), to_terminal=sink.isatty()) as report:
            for results in batches:
                for result in results:
                    if result.error:
                        report.skip(result.error)
                        broken += 1
                    sink.write(written(result))
                sink.flush()
                report.advance(len(results))
    except BrokenPipeError:  # a reader such as `head` has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return _SIGPIPE
    except OSError as error:
        raise UserError(f"{f'--out={out}' if out else 'stdout'}: {error.strerror}") from error
    return 1 if broken else 0


def _writers(form: str, images: Sequence[str]) -> tuple[str, Callable[[Result], str]]:
    """Return what comes first, and what a result is written as."""
    if form == _JSONL:
        return "", _as_json
    if form == _CSV:
        return "file,rank,class,name,probability\n", _as_csv
    return "", functools.partial(_as_table, min(max(len(shown(name)) for name in images), 60))


def _as_table(width: int, result: Result) -> str:
    names = [shown(str(result.source)), *[""] * len(result.predictions)]
    return "".join(
        f"{name:{width}}  {prediction.probability:>7.2%}  {prediction.name}\n"
        for name, prediction in zip(names, result.predictions, strict=False)
    )


def _as_json(result: Result) -> str:
    line: dict[str, Any] = {"file": result.source}
    if result.error:
        line["error"] = result.error
    else:
        line["predictions"] = [
            {"class": k, "name": name, "probability": _rounded(probability)}
            for k, name, probability in result.predictions
        ]
    return json.dumps(trees.finite(line)) + "\n"


def _as_csv(result: Result) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(
        (result.source, rank, k, name, _rounded(probability))
        for rank, (k, name, probability) in enumerate(result.predictions, 1)
    )
    return out.getvalue()


def _rounded(probability: float) -> float:
    return float(f"{probability:.6g}")  # of float32, what it holds


class _Report:
    """Progress on stderr: a bar on a terminal, a line now and then in a log, a last line."""

    def __init__(self, total: int, *, to_terminal: bool) -> None:
        self._total, self._done, self._skipped = total, 0, 0
        self._begin = self._said = time.monotonic()
        self._first: tuple[float, int] | None = None  # when a batch was done, and how many images
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._plain = not self._console.is_terminal
        self._bar: Progress | None = None
        if not self._plain and not to_terminal:  # there, the results are the progress
            self._bar = Progress(
                MofNCompleteColumn(),
                BarColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=total, rate="compiling")

    def __enter__(self) -> "_Report":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar:
            self._bar.stop()
        if kind is None:
            seconds = time.monotonic() - self._begin
            read = f"{self._total - self._skipped:,} of " if self._skipped else ""
            self.message(f"{read}{self._count(self._total)} in {seconds:.1f} s, {self._rate()}")

    def message(self, text: str) -> None:
        """Show a line above the bar."""
        self._console.print(text, markup=False)

    def skip(self, error: str) -> None:
        """Show what is wrong with an image, which the last line leaves out."""
        self._skipped += 1
        self.message(f"skipped {error}")

    def advance(self, count: int) -> None:
        """Note that `count` more images are done."""
        self._done += count
        now = time.monotonic()
        if self._bar:
            self._bar.update(self._task, completed=self._done, rate=self._rate())
        elif self._plain and now - self._said >= _EVERY and self._done < self._total:
            self._said = now
            self.message(f"{self._done} of {self._count(self._total)}, {self._rate()}")
        if self._first is None:
            self._first = now, self._done

    def _count(self, images: int) -> str:
        return f"{images:,} image{'s' if images > 1 else ''}"

    def _rate(self) -> str:
        """Say how fast it goes; without the first batch, which compiles, if it can."""
        begin, before, note = self._begin, 0, ", compilation included"
        if self._first is not None and self._done > self._first[1]:
            (begin, before), note = self._first, ""
        rate = (self._done - before) / max(time.monotonic() - begin, 1e-9)
        return f"{rate:,.0f} images/s{note}" if rate >= 10 else f"{rate:.2g} images/s{note}"


if __name__ == "__main__":
    sys.exit(main(sys.argv))
