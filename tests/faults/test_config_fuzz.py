# SPDX-License-Identifier: Apache-2.0
"""Command lines drawn at random: each is a config that passed its check, or one line of error."""

import contextlib
import dataclasses
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.faults.drawn import examples
from vit_jax.cli.parsing import flags as cli_flags
from vit_jax.config.tree import Config
from vit_jax.errors import UserError
from vit_jax.settings import durations

CONFIGS = Path(__file__).parents[2] / "configs"
# A run of every family, and one with a teacher.
FILES = [
    *(f"{name}_digits.py" for name in ("vit_mu", "swin", "regnet", "bit", "convit", "hybrid")),
    "distill_digits.py:match",
]
ODD = [
    *("", " ", "-", "--", "=", "a=b", "\x00", "\x1b[2J", "a\nb", "\u2028", "é", "%s", "{0}", "\\"),
    *("0", "-1", "1", "2", "7", "1_0", "0x10", "1e3", "1e999", "-1e999", "nan", "1e-320", "9" * 12),
    *("9" * 30, "9" * 400, "9" * 5000, "1" + "0" * 400, "-0.0", "true", "None", "1j"),
    *(
        "()",
        "(,)",
        "(1",
        "1,",
        "1,2",
        "1,2,3",
        "(1,(2,))",
        "[1,2]",
        "{1:2}",
        "'a'",
        "('a',)",
        "b'x'",
    ),
    *("(" * 300, "-" * 300, "nan,nan", "1e999,1", "(('^head', 2.0),)", "(('(', 2.0),)"),
    *("('a',", "1e400 epochs", "1e3 steps", "5%", "-5%", "1e308%", "0 steps", "steps", "rand-m9-n"),
    *(
        "rand-m99999999999-mstd1e999",
        "randaug(2,1e999)",
        "npz:",
        "npz:x",
        "ckpt:x@9",
        "timm:" + "a" * 300,
    ),
    *("adamw", "sgd", "muon", "cosine", "map", "gap", "float16", "center", "random", "kl", "bce"),
]


def paths(node: Any, before: str = "") -> Iterator[str]:
    """List every field of a config as the command line names it, groups too."""
    for field in dataclasses.fields(node):
        value, name = getattr(node, field.name), before + field.name
        yield name
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from paths(inner, f"{name}.{key}.")
        elif dataclasses.is_dataclass(value):
            yield from paths(value, f"{name}.")


def parsed(file: str, *overrides: str) -> tuple[Config | None, str]:
    """Read a command line as `main.py` does: its config or None, and what was said."""
    argv, found, err = ["main.py", f"--config={CONFIGS / file}", *overrides], [], io.StringIO()

    def command() -> None:
        found.append(cli_flags.read_config(argv))

    with contextlib.redirect_stderr(err):
        status = cli_flags.run(command, argv)
    assert status == (0 if found else 2)
    return (found or [None])[0], err.getvalue()


PATHS = {file: sorted(paths(parsed(file)[0])) for file in FILES}
NAMES = sorted({path for known in PATHS.values() for path in known})

value = st.one_of(
    st.sampled_from(ODD),
    st.integers(-3, 300).map(str),
    st.floats().map(str),
    st.text(max_size=8),
    st.lists(st.integers(-2, 9) | st.floats(), max_size=4).map(lambda xs: ",".join(map(str, xs))),
)
wrong = st.one_of(
    st.text(max_size=8),
    st.tuples(st.sampled_from(NAMES), st.text("._lr-", max_size=3)).map("".join),
)
override = st.tuples(st.one_of(st.sampled_from(NAMES), wrong), value)


@examples(150)
@given(st.sampled_from(FILES), st.lists(override, min_size=1, max_size=3))
@example("vit_mu_digits.py", [("duration", "1e999 steps")])
@example("vit_mu_digits.py", [("data.transform.crop_ratio", "1e-320")])
@example("vit_mu_digits.py", [("optim.lr", "a\nb")])
@example("regnet_digits.py", [("model.depth", "9" * 12)])
@example("regnet_digits.py", [("model.wa", "1e308")])
@example("hybrid_digits.py", [("model.backbone_widths", "9" * 400)])
def test_any_override_is_read_or_refused_in_one_line(
    file: str, overrides: list[tuple[str, str]]
) -> None:
    found, err = parsed(file, *(f"--config.{path}={text}" for path, text in overrides))
    if found is None:
        assert err.startswith("error: "), err
        assert len(err.splitlines()) == 1, err
    else:
        assert err == ""


@pytest.mark.parametrize("file", FILES)
def test_every_field_takes_no_odd_value_badly(file: str) -> None:
    """Each field of every family once, with an odd value that its turn in the list chooses."""
    for i, path in enumerate(PATHS[file], FILES.index(file)):
        text = ODD[7 * i % len(ODD)]
        _, err = parsed(file, f"--config.{path}={text}")
        assert len(err.splitlines()) <= 1, (path, text, err)


@examples(300)
@given(st.text(max_size=20) | st.from_regex(r"\s*[0-9_.]{1,9}(e\+?[0-9]{1,4})?\s*(steps|%|ep)"))
def test_any_duration_is_read_or_refused(text: str) -> None:
    clock = durations.Clock(batch_size=7, num_examples=1000, total_steps=50)
    said = ""
    try:
        assert clock.steps(text) >= 0
    except UserError as error:
        said = str(error)
    assert len(said.splitlines()) <= 1
