"""The documents as a site: `pip install '.[docs]' && sphinx-build -W docs build/site`.

The index is docs/README.md: its sections become the site's, and its links to what lies outside this folder lead to the
repository. Nothing is written into this folder.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FOLDER = Path(__file__).resolve().parent
REPOSITORY = "https://github.com/adamctl/adamctl/blob/main"
sys.path.insert(0, str(FOLDER.parent))

import adamctl  # noqa: E402  (found in the repository)

project = "adamctl"
author = "the adamctl authors"
version = release = adamctl.__version__
extensions = ["myst_parser"]
myst_heading_anchors = 4
root_doc = "README"
html_theme = "furo"
html_title = f"adamctl {release}"
exclude_patterns: list[str] = []
suppress_warnings = ["misc.highlighting_failure"]  # excerpts of programs and of terminals

_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)


def outside(link: str, document: Path) -> str:
    """Returns a link as it is or, if it leads out of this folder, one to the repository."""
    if "://" in link:
        return link
    target = (document.parent / link).resolve()
    if target.is_relative_to(FOLDER) and target.suffix == ".md":
        return link
    return f"{REPOSITORY}/{target.relative_to(FOLDER.parent).as_posix()}"


def contents(text: str) -> str:
    """Returns the hidden tables of contents of an index: one for each section, of the pages that it links to."""
    parts = _SECTION.split(text)
    tables = []
    for title, section in zip(parts[1::2], parts[2::2], strict=True):
        pages = dict.fromkeys(
            link for _, link, _ in _LINK.findall(section) if outside(link, FOLDER / "README.md") == link
        )
        if pages:
            entries = "\n".join(page.removesuffix(".md") for page in pages if "://" not in page)
            tables.append(f"```{{toctree}}\n:hidden:\n:caption: {title}\n\n{entries}\n```")
    return "\n\n".join(tables)


def read(app: Sphinx, name: str, source: list[str]) -> None:
    """Changes a document as it is read: its links, and the index's tables of contents."""
    document = FOLDER / f"{name}.md"
    text = _LINK.sub(lambda found: found[1] + outside(found[2], document) + found[3], source[0])
    source[0] = f"{text}\n\n{contents(source[0])}\n" if name == root_doc else text


def finish(app: Sphinx, failure: Exception | None) -> None:
    """Writes a first page that leads to the index."""
    if failure is None and app.builder.format == "html":
        first = f'<!doctype html><meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        (Path(app.outdir) / "index.html").write_text(first)


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", read)
    app.connect("build-finished", finish)
