# SPDX-License-Identifier: Apache-2.0
"""How text from outside is shown: in a terminal, in HTML, in Markdown, in a table of a program.

File names, names of classes and metrics, and errors of libraries are text from outside.
"""

import html as html_lib
import re
import unicodedata

# They shape emoji and the scripts of Persia and India, and move nothing.
_JOINERS = "\u200c\u200d"
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def terminal(text: object) -> str:
    r"""Write text in one line that moves no cursor and turns no direction: ESC as \x1b."""
    text = str(text)
    if text.isprintable():
        return text
    return "".join(c if _is_plain(c) else c.encode("unicode_escape").decode() for c in text)


def lines(text: object) -> str:
    """Write text as `terminal` does, but keep its lines."""
    return "\n".join(map(terminal, str(text).split("\n")))


def _is_plain(letter: str) -> bool:
    return letter.isprintable() or letter in _JOINERS or unicodedata.category(letter) == "Zs"


def html(text: object) -> str:
    """Write text as the content of an element or of a quoted attribute."""
    return html_lib.escape(terminal(text))


def markdown(text: object) -> str:
    """Write text in a line or a table's cell of Markdown: no markup, no link, no HTML."""
    line = re.sub(r"([\\`*\[\]<>|~$!])", r"\\\1", terminal(text))
    line = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", line)  # inside a word it is no markup
    line = re.sub(r"&(?=#?\w+;)", r"\\&", line)
    line = re.sub(r":(?=//)|@(?=\w)|(?<=www)\.", lambda found: f"\\{found[0]}", line)
    return re.sub(r"^(\s*)(#|[-+=]|\d+[.)])", _not_first, line)


def _not_first(found: re.Match[str]) -> str:
    start, mark = found.groups()
    return f"{start}{mark[:-1]}\\{mark[-1]}"


def code(text: object) -> str:
    """Write text as code in a line or a table's cell of Markdown."""
    line = terminal(text).replace("|", "\uff5c")  # which ends a cell even in code
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence, room = "`" * (longest + 1), " " if line[:1] == "`" or line[-1:] == "`" else ""
    return f"{fence}{room}{line}{room}{fence}"


def cell(value: object) -> object:
    """Write text as the cell of a report in CSV, so that no spreadsheet takes it for a formula.

    An apostrophe comes before it, as spreadsheets themselves write it. Numbers stay numbers.
    """
    if not isinstance(value, str):
        return value
    return f"'{value}" if value.lstrip(" ").startswith(_FORMULA) else value
