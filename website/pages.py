# SPDX-License-Identifier: Apache-2.0
"""The hook of mkdocs.yml: adds the pages that are made from the code, and mends links to files."""

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)] if str(ROOT) not in sys.path else []  # `mkdocs` too, not -m alone

from mkdocs.structure.files import File, Files, InclusionLevel  # noqa: E402

from website import api, models, outside, settings  # noqa: E402


def on_files(files: Files, *, config: Any) -> Files:
    """Add the generated pages, and those of files outside docs/ that a page links to."""
    made = {**api.pages(), "reference/fields.md": settings.page(), "reference/models.md": None}
    for path, text in made.items():
        text = models.page() if text is None else text
        files.append(File.generated(config, path, content=text))
    texts = {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    for path, text in outside.pages(ROOT, texts).items():
        outer = InclusionLevel.NOT_IN_NAV  # need not be, though some are
        files.append(File.generated(config, path, content=text, inclusion=outer))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Turn links to files of the repository into links to their pages."""
    return outside.relink(markdown, page.file.src_uri)


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """Load pictures when they come into sight; the first links of the first page are its doors."""
    if page.file.src_uri == "index.md":
        html = html.replace("<ul>", '<ul class="doors">', 1)
    return html.replace("<img ", '<img loading="lazy" ')
