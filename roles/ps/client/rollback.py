"""What a client knows of its own numbers, and what it learns of those that were acknowledged and are lost.

Where all copies of a bucket are lost, it goes on from what was found in stores, which may be older than what clients
were told. A client says up to which number it knows what became of every push; a server that has fewer goes on after
that number, and says how many it has passed over. So nothing is applied twice, and no loss goes unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from adamctl.net.transport import Body
from adamctl.roles.ps.client.push_set import Numbers


class PushUnderWay(Protocol):
    """As much of a push as says which numbers are settled.

    Attributes:
        sequences: per shard of the layout, its number there.
        unanswered: shards of which we do not know yet what became of it.
    """

    sequences: Numbers
    unanswered: set[int]


class Rollbacks:
    """What the servers of one client have passed over.

    Attributes:
        numbers: of this client, over all shards, that were acknowledged and are lost.
    """

    def __init__(self, job: str, notice: Callable[[str], None]) -> None:
        self.numbers = 0
        self._job, self._notice = job, notice
        self._told: dict[tuple[str, int], int] = {}

    def told(self, server: str, incarnation: int, numbers: int) -> None:
        """A process of a server says how many numbers it has passed over so far; said again, it counts once."""
        new = numbers - self._told.get((server, incarnation), 0)
        if new <= 0:
            return
        self._told[server, incarnation] = numbers
        self.numbers += new
        self._notice(
            f"job {self._job!r} was rolled back: {server} goes on from what was found in stores, without {new} updates "
            "of shards that were acknowledged to this client"
        )


def settled_numbers(issued: Numbers, pushes: Iterable[PushUnderWay]) -> Numbers:
    """Returns, per shard, the number up to which everything is answered."""
    settled = issued.copy()
    for push in pushes:
        open_shards = list(push.unanswered)
        settled[open_shards] = np.minimum(settled[open_shards], push.sequences[open_shards] - 1)
    return settled


def settled_body(settled: Numbers, shards: Iterable[int]) -> Body:
    """Returns, of some shards, those that were pushed to, each with its settled number.

    A server that was restarted may remember less of us: what it had acknowledged and not yet saved is lost. It goes on
    from these numbers, none of which we will ever send again.
    """
    found = np.asarray(tuple(shards), np.int64)
    found = found[settled[found] > 0]
    return [np.stack([found, settled[found]], axis=1).astype("<i8")] if found.size else ()
