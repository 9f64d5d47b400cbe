"""Blocks on their way between machines: how long each takes while others share its links (pure).

Blocks from one machine to another go one after the other. Those of different pairs go side by side, and each link
divides its rate equally among them, as TCP connections about do; a block is as fast as the slower of its two links lets
it be. One block after the other on each link would make predictions leap: a little more speed here lets a block wait
behind another one there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
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

    def add(self, now_s: float, pair: Pair, size_bytes: float, what: Sent) -> list[Ending]:
        """Sends a block; returns the endings that this changes."""
        waiting = self._waiting.setdefault(pair, deque())
        waiting.append((size_bytes, what))
        if len(waiting) > 1:
            return []
        sender, receiver = pair
        self._from.setdefault(sender, set()).add(pair)
        self._to.setdefault(receiver, set()).add(pair)
        self._going[pair] = _Going(size_bytes, since_s=now_s)
        return self._divide(now_s, self._beside(pair))

    def end(self, ending: Ending) -> tuple[Sent | None, list[Ending]]:
        """Returns the block that has come, None if it has not, and the endings that this changes."""
        now_s, pair, version = ending
        if self._versions[pair] != version:
            return None, []
        waiting = self._waiting[pair]
        _, what = waiting.popleft()
        if waiting:
            self._going[pair] = _Going(waiting[0][0], self._going[pair].bytes_per_s, now_s)
            return what, self._divide(now_s, [pair])
        del self._going[pair]
        self._versions[pair] += 1
        sender, receiver = pair
        self._from[sender].discard(pair)
        self._to[receiver].discard(pair)
        return what, self._divide(now_s, self._beside(pair))

    def _beside(self, pair: Pair) -> list[Pair]:
        """Returns the pairs with blocks on either of a pair's links."""
        sender, receiver = pair
        leaving = set() if sender == SERVERS else self._from[sender]
        coming = set() if receiver == SERVERS else self._to[receiver]
        return sorted(leaving | coming)

    def _divide(self, now_s: float, pairs: Iterable[Pair]) -> list[Ending]:
        """Gives pairs their share of their links."""
        endings = []
        for pair in pairs:
            going = self._going[pair]
            if going.bytes_per_s and self._bytes_per_s < inf:
                going.left_bytes -= going.bytes_per_s * (now_s - going.since_s)
            going.bytes_per_s, going.since_s = self._bytes_per_s / self._sharing(pair), now_s
            version = self._versions[pair] = self._versions.get(pair, 0) + 1
            endings.append(Ending(now_s + max(going.left_bytes, 0.0) / going.bytes_per_s, pair, version))
        return endings

    def _sharing(self, pair: Pair) -> int:
        """Returns how many pairs share the more crowded one of a pair's links."""
        sender, receiver = pair
        leaving = 1 if sender == SERVERS else len(self._from[sender])
        return max(leaving, 1 if receiver == SERVERS else len(self._to[receiver]))
