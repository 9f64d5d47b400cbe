"""Names of nodes and roles, and text of others as a terminal or a log may have it."""

from __future__ import annotations

import re
from typing import Final

NAME_CHARACTERS_MAX: Final = 128
NAME_EXPECTED: Final = f"1 to {NAME_CHARACTERS_MAX} letters, digits, '.', '_' and '-'"
"""What a name of a node or a role may be, in words."""

_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{NAME_CHARACTERS_MAX}}}")

_NOT_IN_NAME: Final = re.compile(r"[^A-Za-z0-9._-]")


def is_name(text: str) -> bool:
    """Says whether a node or a role may be called so."""
    return _NAME.fullmatch(text) is not None


def as_name(text: str) -> str:
    """Returns text with `_` in the place of whatever no name has, cut to what a name may be long."""
    return _NOT_IN_NAME.sub("_", text)[:NAME_CHARACTERS_MAX]


def derived_name(name: str, part: str) -> str:
    """Returns the name of a part of a node, such as a session of a worker, itself a name; cut where it is too long."""
    return f"{name[: NAME_CHARACTERS_MAX - len(part) - 1]}.{part}"


def printable(text: str, keep: str = "") -> str:
    r"""Returns text in which whatever is no printable character, such as `\x1b`, is written as an escape.

    So it neither moves a cursor, nor begins a line, nor turns the direction of writing. `keep` are characters to leave
    as they are, such as the end of a line in text of our own.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in keep else _escape(character) for character in text
    )


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
