"""Finds the line of every key of a TOML file, so that a message about a value can give its line.

`tomllib` gives values without positions. This scanner walks a text that `tomllib` has already accepted, so it only has
to find keys, strings and brackets and need not understand values (TOML 1.0).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]
"""A key from the root: table names and, inside arrays, positions from 0. `("model", "layers", 2, "units")`."""

_BARE_END = frozenset(",]}#\n")


def key_lines(text: str) -> dict[KeyPath, int]:
    """Returns path -> line (from 1) of every key, table and array element of a valid TOML text."""
    scanner = _Scanner(text)
    scanner.document()
    return scanner.lines


def dotted(path: KeyPath) -> str:
    """Returns a path in the usual notation: `model.layers[2].units`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[KeyPath, int] = {}
        self._table: KeyPath = ()
        self._last_index: dict[KeyPath, int] = {}  # array of tables -> position of its newest element
        self._line_starts = [0, *(i + 1 for i, character in enumerate(text) if character == "\n")]

    def document(self) -> None:
        while self._skip_blank():
            if self.text[self.at] == "[":
                self._header()
            else:
                self._pair(self._table)

    def _line(self) -> int:
        return bisect_right(self._line_starts, self.at)

    def _record(self, path: KeyPath) -> None:
        self.lines.setdefault(path, self._line())

    def _skip_blank(self) -> bool:
        """Skips white space, line ends and comments; returns whether anything is left."""
        while self.at < len(self.text):
            if self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif self.text[self.at].isspace():
                self.at += 1
            else:
                return True
        return False

    def _header(self) -> None:
        of_array = self.text.startswith("[[", self.at)
        self.at += 2 if of_array else 1
        names = self._names()
        path: KeyPath = ()
        for position, name in enumerate(names):
            path += (name,)
            self._record(path)
            last = position == len(names) - 1
            if last and of_array:
                self._last_index[path] = self._last_index.get(path, -1) + 1
            if path in self._last_index:
                path += (self._last_index[path],)
                self._record(path)
        self._table = path
        self.at += 2 if of_array else 1

    def _names(self) -> list[str]:
        """Reads a dotted key up to, not including, `=` or `]`."""
        names: list[str] = []
        while True:
            self._skip_blank()
            if self.text[self.at] in "\"'":
                start = self.at
                self._string()
                names.append(self.text[start + 1 : self.at - 1])
            else:
                start = self.at
                while self.text[self.at] not in ".=]" and not self.text[self.at].isspace():
                    self.at += 1
                names.append(self.text[start : self.at])
            self._skip_blank()
            if self.text[self.at] != ".":
                return names
            self.at += 1

    def _pair(self, table: KeyPath) -> None:
        line_start = self.at
        names = self._names()
        path = table
        end, self.at = self.at, line_start
        for name in names:
            path += (name,)
            self._record(path)
        self.at = end + 1
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        self._skip_blank()
        self._record(path)
        character = self.text[self.at]
        if character in "\"'":
            self._string()
        elif character == "[":
            self._items(path, "]")
        elif character == "{":
            self._items(path, "}")
        else:
            while self.at < len(self.text) and self.text[self.at] not in _BARE_END:
                self.at += 1

    def _items(self, path: KeyPath, closing: str) -> None:
        self.at += 1
        index = 0
        while self._skip_blank() and self.text[self.at] != closing:
            if self.text[self.at] == ",":
                self.at += 1
            elif closing == "]":
                self._value((*path, index))
                index += 1
            else:
                self._pair(path)
        self.at += 1

    def _string(self) -> None:
        quote = self.text[self.at]
        fence = quote * 3 if self.text.startswith(quote * 3, self.at) else quote
        self.at += len(fence)
        while not self.text.startswith(fence, self.at):
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += len(fence)
        while len(fence) == 3 and self.text.startswith(quote, self.at):  # up to two quotes may precede the fence
            self.at += 1
