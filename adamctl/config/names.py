"""Names of nodes and roles, and foreign text made safe for a terminal or a log."""

from __future__ import annotations

import re
from typing import Final

NAME_CHARACTERS_MAX: Final = 128
SHORT_CHARACTERS_MAX: Final = 4096
NAME_EXPECTED: Final = f"1 to {NAME_CHARACTERS_MAX} letters, digits, '.', '_' and '-'"
"""What the name of a node or a role may contain, in words."""

_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{NAME_CHARACTERS_MAX}}}")

_NOT_IN_NAME: Final = re.compile(r"[^A-Za-z0-9._-]")


def is_name(text: str) -> bool:
    """Returns whether a node or a role may have this name."""
    return _NAME.fullmatch(text) is not None


def as_name(text: str) -> str:
    """Returns text with `_` in place of characters not allowed in names, cut to a name's longest length."""
    return _NOT_IN_NAME.sub("_", text)[:NAME_CHARACTERS_MAX]


def derived_name(name: str, part: str) -> str:
    """Returns the name of a part of a node, such as a session of a worker, as a valid name; cut if it is too long."""
    return f"{name[: NAME_CHARACTERS_MAX - len(part) - 1]}.{part}"


def printable(text: str, keep: str = "") -> str:
    r"""Returns text with every unprintable character, such as `\x1b`, replaced by an escape.

    So the text cannot move the cursor, start a new line or reverse the writing direction. `keep` lists characters to
    leave unchanged, such as line ends in text of our own.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in keep else _escape(character) for character in text
    )


def in_short(text: str, characters_max: int = SHORT_CHARACTERS_MAX) -> str:
    """Returns foreign text as one printable line of at most about so many characters, which says if it is cut."""
    shown = printable(text[: characters_max + 1])
    if len(text) <= characters_max and len(shown) <= 4 * characters_max:
        return shown
    kept = shown[:characters_max]
    return f"{kept}... (cut; {len(text)} characters)"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
