# SPDX-License-Identifier: Apache-2.0
"""Text from outside does nothing where it is shown."""

import csv
import html
import io
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from vit_jax.process import escapes

ODD = st.text(st.characters() | st.sampled_from("\x1b\x9b\r\n\t\u202e\u2066`*_[]<>|~$&:/@=+-#!\\"))


def test_a_terminal_is_told_nothing() -> None:
    for text, shown in {
        "\x1b[31mred": "\\x1b[31mred",
        "\x9b2J": "\\x9b2J",
        "a\rb\nc": "a\\rb\\nc",
        "\u202egpj.exe": "\\u202egpj.exe",
        "\u2066x\u2069": "\\u2066x\\u2069",
        "\ufeffx": "\\ufeffx",
        "\udcff": "\\udcff",
        "plain, é, 猫, \u0645\u06cc\u200c\u062e": "plain, é, 猫, \u0645\u06cc\u200c\u062e",
        "\u3000\u00a0": "\u3000\u00a0",
    }.items():
        assert escapes.terminal(text) == shown
    assert escapes.lines("a\n\x1bb") == "a\n\\x1bb"


@given(ODD)
def test_no_text_moves_a_cursor_or_turns_a_line(text: str) -> None:
    shown = escapes.terminal(text)
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in shown)
    assert not set(shown) & set(
        "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f"
    )


class _Parsed(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@given(ODD)
def test_html_is_text(text: str) -> None:
    page = _Parsed(f'<p title="{escapes.html(text)}">{escapes.html(text)}</p>')
    assert page.tags == ["p"]
    assert page.text == escapes.terminal(text)
    assert html.unescape(escapes.html(text)) == escapes.terminal(text)


def test_markdown_is_text() -> None:
    for text, shown in {
        "val/macro_f1": "val/macro_f1",
        "a|b": "a\\|b",
        "<img src=x>": "\\<img src=x\\>",
        "[x](http://y)": "\\[x\\](http\\://y)",
        "![x](y)": "\\!\\[x\\](y)",
        "# head": "\\# head",
        "1. list": "1\\. list",
        "- list": "\\- list",
        "_x_ and *y*": "\\_x\\_ and \\*y\\*",
        "`code`": "\\`code\\`",
        "$x$": "\\$x\\$",
        "&lt;": "\\&lt;",
        "www.x.y": "www\\.x.y",
        "@somebody": "\\@somebody",
        "two\nlines": "two\\\\nlines",
        "back\\slash": "back\\\\slash",
    }.items():
        assert escapes.markdown(text) == shown


def test_code_ends_where_it_should() -> None:
    assert escapes.code("tf_flowers") == "`tf_flowers`"
    assert escapes.code("a`b") == "``a`b``"
    assert escapes.code("`") == "`` ` ``"
    assert "|" not in escapes.code("a|b")
    assert "\n" not in escapes.code("a\n# b")


def test_a_cell_is_no_formula() -> None:
    for text in ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "  =1", "\uff1d1", "-x.jpg"):
        assert escapes.cell(text) == f"'{text}"
    for value in ("cat", "a=b", "", "1-2", "n01-x", 3, -1, -0.5, None):
        assert escapes.cell(value) is value


@given(ODD)
def test_a_cell_begins_no_formula_whatever_it_holds(text: str) -> None:
    file = io.StringIO()
    csv.writer(file).writerow([escapes.cell(text), 1])
    (row,) = csv.reader(io.StringIO(file.getvalue(), newline=""))
    assert row[0] in (text, f"'{text}")
    assert not row[0].lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r"))
