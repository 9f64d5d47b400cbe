"""How long a run has waited for which roles, and when to say so. Pure: clock readings are passed in."""

from __future__ import annotations

from collections.abc import Iterable

FIRST_NOTE_S = 2.0
NOTE_INTERVAL_S = 10.0


class Waits:
    """Roles that have been started or restarted and do not serve yet."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        self._noted_s = float("-inf")

    def look(self, waiting: Iterable[str], now_s: float) -> str:
        """Takes the roles waited for now; returns a text about them for people, empty while there is nothing to tell.

        A role's wait starts when it is first seen here without serving; for one that served and ended, at its end.
        """
        self._since_s = {node: self._since_s.get(node, now_s) for node in waiting}
        long = {node: now_s - since_s for node, since_s in self._since_s.items() if now_s - since_s >= FIRST_NOTE_S}
        if not long or now_s - self._noted_s < NOTE_INTERVAL_S:
            return ""
        self._noted_s = now_s
        return ", ".join(f"{node} (for {waited_s:.0f} s)" for node, waited_s in long.items())

    @property
    def longest(self) -> float:
        """Returns when the longest wait started, by the same clock; infinity without any wait."""
        return min(self._since_s.values(), default=float("inf"))
