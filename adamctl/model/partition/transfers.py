"""Blocks on their way between machines: how long each takes while others share its links (pure).

Blocks from one machine to another go one after the other. Those of different pairs go side by side, and each link
divides its rate equally among them, as TCP connections about do; a block is as fast as the slower of its two links lets
it be. One block after the other on each link would make predictions leap: a little more speed here lets a block wait
behind another one there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, TypeAlias

SERVERS = -1
"""Stands for the parameter servers, whose links are not followed."""
Pair: TypeAlias = tuple[int, int]
"""Sender and receiver."""
Sent: TypeAlias = tuple[int, Hashable]
"""A flight, and which of its blocks."""


class Ending(NamedTuple):
    """When the first block of a pair will have come, unless the pair has had another `version` since."""

    at_s: float
    pair: Pair
    version: int


@dataclass
class _Going:
    """The first block of a pair: what was left of it at `since_s`, and how fast it goes from there on."""

    left_bytes: float
    bytes_per_s: float = 0.0
    since_s: float = 0.0


class Transfers:
    """All blocks on their way."""

    def __init__(self, bytes_per_s: float) -> None:
        """`bytes_per_s`: of each machine's link, in each direction."""
        self._bytes_per_s = bytes_per_s
        self._waiting: dict[Pair, deque[tuple[float, Sent]]] = {}
        self._going: dict[Pair, _Going] = {}
        self._versions: dict[Pair, int] = {}
        self._from: dict[int, set[Pair]] = {}
        self._to: dict[int, set[Pair]] = {}
        self._changed: set[Pair] = set()

    def add(self, now_s: float, pair: Pair, size_bytes: float, what: Sent) -> None:
        """Sends a block."""
        waiting = self._waiting.setdefault(pair, deque())
        waiting.append((size_bytes, what))
        if len(waiting) == 1:
            sender, receiver = pair
            self._from.setdefault(sender, set()).add(pair)
            self._to.setdefault(receiver, set()).add(pair)
            self._going[pair] = _Going(size_bytes, since_s=now_s)
            self._changed.add(pair)

    def end(self, ending: Ending) -> Sent | None:
        """Returns the block that has come; None if it has not."""
        now_s, pair, version = ending
        if self._versions[pair] != version:
            return None
        waiting = self._waiting[pair]
        _, what = waiting.popleft()
        self._versions[pair] += 1
        self._changed.add(pair)
        if waiting:
            self._going[pair] = _Going(waiting[0][0], self._going[pair].bytes_per_s, now_s)
        else:
            del self._going[pair]
            self._from[pair[0]].discard(pair)
            self._to[pair[1]].discard(pair)
        return what

    @property
    def are_divided(self) -> bool:
        """Whether no block was sent, and none came, since links were divided."""
        return not self._changed

    def divide(self, now_s: float) -> list[Ending]:
        """Divides links after all that happens at a time; returns the endings that this changes."""
        senders = {sender for sender, _ in self._changed if sender != SERVERS}
        receivers = {receiver for _, receiver in self._changed if receiver != SERVERS}
        found = {pair for sender in senders for pair in self._from[sender]}
        found.update(pair for receiver in receivers for pair in self._to[receiver])
        self._changed.clear()
        endings = []
        for pair in sorted(found):
            going, rate = self._going[pair], self._bytes_per_s / self._sharing(pair)
            if rate == going.bytes_per_s and going.since_s < now_s:
                continue  # neither of its links is shared by more or fewer than before
            if going.bytes_per_s and self._bytes_per_s < inf:
                going.left_bytes -= going.bytes_per_s * (now_s - going.since_s)
            going.bytes_per_s, going.since_s = rate, now_s
            version = self._versions[pair] = self._versions.get(pair, 0) + 1
            endings.append(Ending(now_s + max(going.left_bytes, 0.0) / rate, pair, version))
        return endings

    def _sharing(self, pair: Pair) -> int:
        """Returns how many pairs share the more crowded one of a pair's links."""
        sender, receiver = pair
        leaving = 1 if sender == SERVERS else len(self._from[sender])
        return max(leaving, 1 if receiver == SERVERS else len(self._to[receiver]))
