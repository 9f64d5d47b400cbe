"""What share of its time a partition's threads wait while flights are open, and for whom (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Final, NamedTuple

OF_SERVERS: Final = -1
"""Stands for servers where a partition is named: a flight waits until a push is answered."""
WINDOW_S = 30.0
"""Threads' time after which what was before counts half: so shares are of the last minute or so of one thread."""


class Waiting(NamedTuple):
    """Shares of the threads' time with open flights, 0 to 1.

    Attributes:
        share: they slept, because of others.
        waits_for: the same for each partition that was waited for, or OF_SERVERS; these add up to `share`.
    """

    share: float
    waits_for: dict[int, float]

    def for_status(self) -> dict[str, object]:
        """Returns it as JSON-like values, partitions as text."""
        named = {"servers" if one == OF_SERVERS else str(one): round(share, 4) for one, share in self.waits_for.items()}
        return {"waiting_share": round(self.share, 4), "waits_for": named}


class WaitLedger:
    """Adds up seconds of threads; no thread may use it while another one does."""

    def __init__(self) -> None:
        self._other_s = 0.0
        self._waited_s: defaultdict[int, float] = defaultdict(float)

    def worked(self, seconds: float) -> None:
        """A thread computed."""
        self._other_s += seconds
        self._forget()

    def slept(self, seconds: float, whom: Collection[int]) -> None:
        """A thread slept while flights were open; nobody to wait for: the other threads had them all."""
        for one in whom:
            self._waited_s[one] += seconds / len(whom)
        if not whom:
            self._other_s += seconds
        self._forget()

    def waiting(self) -> Waiting:
        """Returns the shares."""
        whole_s = self._whole_s or 1.0
        return Waiting(
            sum(self._waited_s.values()) / whole_s,
            {one: seconds / whole_s for one, seconds in sorted(self._waited_s.items())},
        )

    @property
    def _whole_s(self) -> float:
        return self._other_s + sum(self._waited_s.values())

    def _forget(self) -> None:
        if self._whole_s > WINDOW_S:
            self._other_s /= 2
            for one in self._waited_s:
                self._waited_s[one] /= 2
