"""The finished rounds of a figure, each written at once: what was interrupted goes on, and what is there is drawn."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from adamctl.errors import ConfigurationError

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
        """Returns a round that is there, or else measures it and writes it down."""
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
        """Adds what `to_json` has made and is not here yet.

        Raises:
            ConfigurationError: it is none of that.
        """
        try:
            starts, rounds, is_done = list(found["starts"]), dict(found["rounds"]), bool(found["done"])
        except (KeyError, TypeError, ValueError):
            raise ConfigurationError("expected `starts` and `rounds`; found another object") from None
        new = {key: value for key, value in rounds.items() if key not in self._values}
        for start in starts if new else ():
            self.start(start)
        for key, value in new.items():
            self._add({"round": key, "value": value})
        if is_done and not self.is_done:
            self.finish()

    def _add(self, line: dict[str, Any]) -> None:
        text = json.dumps(line)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write(text + "\n")
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
            content = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{path} cannot be read ({error}); give another --folder") from None
        whole, _, cut_off = content.rpartition("\n")
        if cut_off:  # this process was killed while it wrote
            path.write_text(whole + "\n" if whole else "", encoding="utf-8")
        for number, text in enumerate(whole.splitlines(), 1):
            try:
                self._hold(json.loads(text))
            except (KeyError, TypeError, ValueError):
                raise ConfigurationError(
                    f"{path}, line {number}: expected a round; found {text[:60]!r}; give another --folder"
                ) from None
