"""The finished rounds of a figure, each written at once: what was interrupted goes on, and what is there is drawn."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from adamctl.errors import ConfigurationError, RunFailedError

NAME = "rounds.jsonl"
Value = Any
"""What JSON can hold."""


class MissingRoundError(ConfigurationError):
    """A figure needs a round that was not taken."""


class Rounds:
    """Rounds by key, such as `speech/round-2`, in the order in which they were finished.

    Attributes:
        is_done: all that the figure needs have been taken.
        starts: when, where and under what load it was begun or taken up again.
    """

    def __init__(self, path: Path | None = None) -> None:
        """`path`: the file that keeps them; None: none does.

        Raises:
            ConfigurationError: the file cannot be read.
        """
        self.is_done = False
        self.starts: list[dict[str, Any]] = []
        self._path, self._values = path, dict[str, Value]()
        if path is not None and path.is_file():
            self._read(path)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __getitem__(self, key: str) -> Value:
        """Returns a finished round. Raises MissingRoundError: it is not there."""
        if key not in self._values:
            found = ", ".join(self._values) or "none"
            raise MissingRoundError(
                f"expected the round {key}; found {found}: run the figure again with the same --folder, and it goes on"
            )
        return self._values[key]

    def under(self, prefix: str) -> list[Value]:
        """Returns all rounds whose key is `prefix/...`, in the order in which they were finished."""
        return [value for key, value in self._values.items() if key.startswith(f"{prefix}/")]

    def all_of(self, prefix: str, first: str = "round-1") -> list[Value]:
        """Likewise, of what the figure needs. Raises MissingRoundError: not even `prefix/FIRST` is there."""
        return self.under(prefix) or [self[f"{prefix}/{first}"]]

    def take(self, key: str, measure: Callable[[], Value]) -> Value:
        """Returns a round that is there, or else measures it and writes it down.

        Raises:
            RunFailedError: it cannot be written.
        """
        if key not in self._values:
            self._add({"round": key, "value": measure()})
        return self._values[key]

    def start(self, values: Mapping[str, Any]) -> None:
        """Notes that measuring begins."""
        self._add({"start": dict(values)})

    def finish(self) -> None:
        """Notes that all are there."""
        self._add({"done": True})

    def to_json(self) -> dict[str, Any]:
        """Returns all of it, for a report."""
        return {"starts": self.starts, "rounds": dict(self._values), "done": self.is_done}

    def take_over(self, found: Mapping[str, Any]) -> None:
        """Adds what `to_json` has made and is not here yet."""
        new = {key: value for key, value in found["rounds"].items() if key not in self._values}
        for start in found["starts"] if new else ():
            self.start(start)
        for key, value in new.items():
            self._add({"round": key, "value": value})
        if found["done"] and not self.is_done:
            self.finish()

    def _add(self, line: dict[str, Any]) -> None:
        text = json.dumps(line)
        if self._path is not None:
            _append(self._path, text + "\n")
        self._hold(json.loads(text))  # as it will be read: no tuples, all keys are text

    def _hold(self, line: dict[str, Any]) -> None:
        if "start" in line:
            self.starts.append(line["start"])
        elif "done" in line:
            self.is_done = True
        else:
            self._values[line["round"]] = line["value"]

    def _read(self, path: Path) -> None:
        try:
            whole, newline, cut_off = path.read_bytes().rpartition(b"\n")
            if cut_off:  # this process was killed while it wrote
                os.truncate(path, len(whole + newline))
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read ({error}); give another --folder") from None
        for number, text in enumerate(whole.splitlines(), 1):
            try:
                self._hold(json.loads(text))
            except (KeyError, TypeError, ValueError):
                found = text[:60].decode(errors="replace")
                raise ConfigurationError(
                    f"{path}, line {number}: expected a round; found {found!r}; give another --folder"
                ) from None


def _append(path: Path, text: str) -> None:
    """Writes a line as a whole, or nothing of it."""
    before_bytes = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        before_bytes = path.stat().st_size if path.exists() else 0
        with path.open("a", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        if before_bytes is not None:
            with suppress(OSError):
                os.truncate(path, before_bytes)
        raise RunFailedError(
            f"{path} cannot be written ({error.strerror}); what was finished before is kept, and the same call goes on"
        ) from None
