# SPDX-License-Identifier: Apache-2.0
"""Files outside docs/ as pages of the site, so that no link of a document leaves it.

The page of a file is repository/PATH.md: Markdown as it is, a notebook as its cells, all else as
numbered lines, line 12 under #L12. A folder, of docs/ too, is a list of its files.
"""

import html
import json
import posixpath
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound

_LINK = re.compile(r"\]\(([^()\s]+)\)")
_FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
_PLACE = "repository"


def relink(markdown: str, uri: str) -> str:
    """Return a page's text with its links to files of the repository as links between pages.

    `uri` is the page's path in the site's sources: "data.md", "repository/README.md.md".
    """
    return _each_link(markdown, lambda target: _moved(target, uri))


def pages(root: Path, texts: Mapping[str, str]) -> dict[str, str]:
    """Return the pages of all files that the texts link to, and that those link to, by path.

    `texts` are by path from the root: "docs/data.md".
    """
    found: dict[str, str] = {}
    waiting = dict(texts)
    while waiting:
        path, text = waiting.popitem()
        for target in _targets(text, path):
            page = f"{_PLACE}/{target}.md"
            if page in found or not _has_page(target):
                continue
            if (root / target).is_dir():
                found[page] = waiting[target] = _folder(root / target, target)
            elif (root / target).is_file():
                found[page] = _page(target, (root / target).read_text())
                if target.endswith((".md", ".ipynb")):
                    waiting[target] = found[page]
    return found


def _targets(text: str, path: str) -> list[str]:
    """List the files that a text links to, by path from the root."""
    found: list[str] = []

    def note(target: str) -> str:
        if _is_file(target):
            found.append(_from_root(target, path))
        return target

    _each_link(text, note)
    return found


def _each_link(markdown: str, change: Callable[[str], str]) -> str:
    parts = _FENCE.split(markdown)
    parts[::2] = [_LINK.sub(lambda m: f"]({change(m[1])})", part) for part in parts[::2]]
    return "".join(parts)


def _is_file(target: str) -> bool:
    return not re.match(r"[a-z]+:|#|/", target)


def _from_root(target: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target.partition("#")[0]))


def _moved(target: str, uri: str) -> str:
    if not _is_file(target):
        return target
    here = uri.removeprefix(f"{_PLACE}/").removesuffix(".md")
    path = here if uri.startswith(f"{_PLACE}/") else f"docs/{uri}"
    file = _from_root(target, path)
    there = f"{_PLACE}/{file}.md" if _has_page(file) else file.removeprefix("docs/")
    _, mark, anchor = target.partition("#")
    return posixpath.relpath(there, posixpath.dirname(uri) or ".") + mark + anchor


def _has_page(file: str) -> bool:
    """Return whether a file or folder lies outside docs/, or is a folder in it."""
    return not file.startswith(("docs/", "../")) or not posixpath.splitext(file)[1]


def _folder(place: Path, path: str) -> str:
    parts = [f"# {path}\n"]
    for name in sorted(file.name for file in place.iterdir() if file.is_file()):
        link = f"[{name}]({path.rpartition('/')[2]}/{name})\n"
        parts.append(f"!{link}" if name.endswith((".png", ".jpg")) else link)
    return "\n".join(parts)


def _page(path: str, text: str) -> str:
    if path.endswith(".md"):
        return text
    if path.endswith(".ipynb"):
        return _notebook(path, text)
    try:
        lexer = get_lexer_for_filename(path)
    except ClassNotFound:
        lexer = get_lexer_for_filename("a.txt")
    lines = highlight(text, lexer, HtmlFormatter(nowrap=True)).splitlines()
    rows = "\n".join(
        f'<span id="L{n}" class="line">{line}</span>' for n, line in enumerate(lines, 1)
    )
    # Not for the search, which would find each word in the code before the page that explains it.
    head = "---\nsearch: { exclude: true }\nhide: [toc]\n---\n"
    return f'{head}# {path}\n\n<div class="highlight source"><pre><code>{rows}</code></pre></div>\n'


def _notebook(path: str, text: str) -> str:
    """Return a notebook's cells as Markdown, with what they printed."""
    parts: list[str] = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            printed = "".join(output.get("text", data.get("text/plain", "")))
            if "image/png" in data:
                code = "".join(data["image/png"]).replace("\n", "")
                parts.append(f'<img alt="output" src="data:image/png;base64,{code}">')
            elif printed.strip():
                parts.append(f'<pre class="printed">{html.escape(printed)}</pre>')
    if not parts or not parts[0].startswith("# "):
        parts[:0] = [f"# {path}"]
    return "\n\n".join(parts) + "\n"
