"""What our documents say in commands: in fenced blocks without a language, between backticks, in examples' comments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
)
EXAMPLES = sorted(
    path.relative_to(ROOT).as_posix() for pattern in ("*.toml", "*.py") for path in (ROOT / "examples").glob(pattern)
)
RUN = "<!-- run -->"
"""Stands before a block whose commands a test runs, those of one document in their order, where our examples are."""


def text_of(document: str) -> str:
    return (ROOT / document).read_text()


def blocks(document: str) -> list[str]:
    """Returns the lines of a document's command blocks: those fenced without a language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", text_of(document), re.MULTILINE | re.DOTALL)
    found = [block for language, block in fenced if not language]
    return [line for block in found for line in lines(block)]


def run_blocks(document: str) -> list[str]:
    """Returns the lines of those blocks that are marked as run."""
    found = re.findall(rf"^{RUN}\n+```\n(.*?)^```", text_of(document), re.MULTILINE | re.DOTALL)
    return [line for block in found for line in lines(block)]


def lines(block: str) -> list[str]:
    return [line for line in block.replace("\\\n", " ").splitlines() if line.strip()]


def spans(document: str) -> list[str]:
    """Returns what stands between backticks in a document's prose."""
    prose = re.sub(r"^```.*?^```", "", text_of(document), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", prose)


def said_in_examples(example: str) -> list[str]:
    """Returns the commands in the comments and the docstring of an example."""
    return re.findall(r"^(?:# |    )?(?:.*?, then )?(adamctl .*)$", text_of(example), re.MULTILINE)


def commands_in(line: str) -> Iterator[list[str]]:
    """Yields the arguments of each `adamctl` command of a line, without the program.

    `[...]` is what may be left out and is taken in; of `a|b` each is a command of its own; `...` is nothing.
    """
    for part in re.split(r"&&|;|,? then ", re.split(r"\s#", line)[0]):
        if re.match(r"\s*(\S*/)?adamctl(\s+[-a-z]|\s*$)", part):
            yield from alternatives(shlex.split(part.replace("...", ""))[1:])


def alternatives(words: list[str]) -> Iterator[list[str]]:
    if any("URL" not in word and word.startswith("[") and "|" in word for word in words):
        words = " ".join(words).replace("[", "").replace("]", "").split()
    plain = [word.strip("[]") for word in words]
    for chosen in product(*(word.split("|") for word in plain if word)):
        yield list(chosen)
