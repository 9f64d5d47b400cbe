"""Ranges of examples on their way from data servers to replicas, and when a pass ends (pure).

A data server decodes a range with all its threads, one range after the other, and sends it whole; ranges go to servers
in turn. A replica asks ahead of need for as many as it can hold (docs/data_servers.md).
"""

from __future__ import annotations

from collections import deque
from math import inf

from adamctl.model.scaling.cluster import DataWork


class Supply:
    """What each replica has and has asked for, in batches.

    Attributes:
        decode_s, link_s: that all data servers together were at work.
    """

    def __init__(self, data: DataWork, replicas: int, batch: float, taken_together: int) -> None:
        """`taken_together`: batches that a context takes at once."""
        self._data, self._batch = data, batch
        self._most = max(data.ranges_ahead * data.range_batches, 2 * taken_together)
        self._ready: list[deque[int]] = [deque() for _ in range(replicas)]  # the pass of each batch
        self._asked = [0] * replicas
        self._decoded_s = [0.0] * data.servers
        self._sent_s = [0.0] * data.servers
        self._turn = 0
        self._pass, self._handed = 0, 0
        self._done: list[int] = [0]  # batches of each pass
        whole = data.pass_examples
        self._pass_batches = inf if whole is None else max(whole // batch, 1)
        self.decode_s = self.link_s = 0.0

    def take(self, replica: int, most: int) -> tuple[int, int]:
        """Takes batches of one pass for a context; returns the pass, and how many: 0 if none are there."""
        ready, taken = self._ready[replica], 0
        passed = ready[0] if ready else self._pass
        while taken < most and ready and ready[0] == passed:
            ready.popleft()
            taken += 1
        return passed, taken

    def ask(self, replica: int, now_s: float) -> list[tuple[float, int]]:
        """Asks for what a replica has room for; returns when each range will be there, and its batches."""
        data, found = self._data, []
        while len(self._ready[replica]) + self._asked[replica] < self._most:
            count = int(min(data.range_batches, self._pass_batches - self._handed))
            if count <= 0:
                break
            self._handed += count
            self._asked[replica] += count
            found.append((self._served_s(now_s, count * self._batch), count))
        return found

    def came(self, replica: int, count: int) -> None:
        """A range has come."""
        self._asked[replica] -= count
        self._ready[replica].extend([self._pass] * count)

    def finished(self, passed: int, count: int) -> bool:
        """Notes finished batches of a pass; returns whether the next pass begins with that."""
        self._done[passed] += count
        if self._handed < self._pass_batches:
            return False
        if self._done[self._pass] < self._data.pass_fraction * self._pass_batches:
            return False
        self._pass, self._handed = self._pass + 1, 0
        self._done.append(0)
        return True

    def lost(self, replica: int, computing: int) -> None:
        """A replica has died: what it had, and what it computed, is handed out again."""
        ready = self._ready[replica]
        self._handed = max(self._handed - computing - sum(passed == self._pass for passed in ready), 0)
        ready.clear()

    def is_over(self, replica: int) -> bool:
        """Whether nothing of the pass is left for a replica."""
        over = self._handed >= self._pass_batches
        return over and not self._ready[replica] and not self._asked[replica]

    def _served_s(self, now_s: float, examples: float) -> float:
        data, server = self._data, self._turn
        self._turn = (server + 1) % data.servers
        decode_s, link_s = examples * data.example_s, examples * data.example_bytes_s
        self._decoded_s[server] = max(self._decoded_s[server], now_s) + decode_s
        self._sent_s[server] = max(self._sent_s[server], self._decoded_s[server]) + link_s
        self.decode_s += decode_s
        self.link_s += link_s
        return self._sent_s[server]
