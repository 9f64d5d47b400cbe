"""What a client knows about its own sequence numbers, and which acknowledged ones were lost.

If all copies of a bucket are lost, it continues from the stores, which may be older than what clients were told. A
client tells the server up to which number all of its pushes are answered. A server that has fewer continues after that
number and reports how many it skipped. So nothing is applied twice, and no loss goes unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from adamctl.net.transport import Body
from adamctl.roles.ps.client.push_set import Numbers


class PushUnderWay(Protocol):
    """The part of a push that tells which numbers are settled.

    Attributes:
        sequences: per shard of the layout, its number there.
        unanswered: shards that have not given a final answer.
    """

    sequences: Numbers
    unanswered: set[int]


class Rollbacks:
    """Counts the numbers that servers have skipped for one client.

    Attributes:
        numbers: how many acknowledged numbers of this client are lost, over all shards.
    """

    def __init__(self, job: str, notice: Callable[[str], None]) -> None:
        self.numbers = 0
        self._job, self._notice = job, notice
        self._told: dict[tuple[str, int], int] = {}

    def told(self, server: str, incarnation: int, numbers: int) -> None:
        """Notes how many numbers a server's process has skipped so far; repeated reports count once."""
        new = numbers - self._told.get((server, incarnation), 0)
        if new <= 0:
            return
        self._told[server, incarnation] = numbers
        self.numbers += new
        self._notice(
            f"job {self._job!r} was rolled back: {server} continues from the stores, without {new} shard updates "
            "that were acknowledged to this client"
        )


def settled_numbers(issued: Numbers, pushes: Iterable[PushUnderWay]) -> Numbers:
    """Returns, per shard, the number up to which everything is answered."""
    settled = issued.copy()
    for push in pushes:
        open_shards = list(push.unanswered)
        settled[open_shards] = np.minimum(settled[open_shards], push.sequences[open_shards] - 1)
    return settled


def settled_body(settled: Numbers, shards: Iterable[int]) -> Body:
    """Returns those of the shards that were pushed to, each with its settled number.

    A restarted server may remember less: what it had acknowledged but not yet saved is lost. It continues after these
    numbers; this client never sends them again.
    """
    found = np.asarray(tuple(shards), np.int64)
    found = found[settled[found] > 0]
    return [np.stack([found, settled[found]], axis=1).astype("<i8")] if found.size else ()
