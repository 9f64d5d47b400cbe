"""Blocks share links: what each takes beside others."""

from __future__ import annotations

import heapq
from math import inf

import pytest

from adamctl.model.partition.transfers import SERVERS, Ending, Pair, Transfers

Sent = tuple[float, Pair, float]
"""When a block leaves, between whom, and its bytes."""


def arrivals(sent: list[Sent], bytes_per_s: float = 10.0) -> list[float]:
    """Returns when each block is there."""
    transfers, found = Transfers(bytes_per_s), [inf] * len(sent)
    events: list[tuple[float, int, int | Ending]] = [(at_s, number, number) for number, (at_s, _, _) in enumerate(sent)]
    heapq.heapify(events)
    number = len(sent)
    while events:
        now_s, _, what = heapq.heappop(events)
        if not isinstance(what, Ending):
            _, pair, size = sent[what]
            transfers.add(now_s, pair, size, (what, "block"))
        elif (block := transfers.end(what)) is not None:
            found[block[0]] = now_s
        if not transfers.are_divided and (not events or events[0][0] > now_s):
            for ending in transfers.divide(now_s):
                number += 1
                heapq.heappush(events, (ending.at_s, number, ending))
    return found


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ([(1.0, (0, 1), 50.0)], [6.0]),
        ([(0.0, (0, 1), 50.0), (0.0, (0, 1), 50.0)], [5.0, 10.0]),  # one pair: in order
        ([(0.0, (0, 1), 50.0), (0.0, (0, 2), 50.0)], [10.0, 10.0]),  # one sender
        ([(0.0, (0, 2), 50.0), (0.0, (1, 2), 50.0)], [10.0, 10.0]),  # one receiver
        ([(0.0, (0, 1), 50.0), (0.0, (1, 0), 50.0)], [5.0, 5.0]),  # each direction has its own rate
        ([(0.0, (0, 1), 50.0), (3.0, (0, 2), 10.0)], [6.0, 5.0]),  # shared for two seconds
        ([(0.0, (0, 1), 50.0), (0.0, (0, 2), 50.0), (0.0, (3, 2), 25.0)], [10.0, 10.0, 5.0]),
        ([(0.0, (0, SERVERS), 50.0), (0.0, (1, SERVERS), 50.0)], [5.0, 5.0]),  # servers have more than one link
        ([(0.0, (0, SERVERS), 50.0), (0.0, (0, 1), 50.0)], [10.0, 10.0]),
        ([(0.0, (0, 1), 0.0), (0.0, (0, 2), 50.0)], [0.0, 5.0]),
    ],
)
def test_links_are_shared_equally(sent: list[Sent], expected: list[float]) -> None:
    assert arrivals(sent) == pytest.approx(expected)


def test_links_without_a_limit_take_no_time() -> None:
    assert arrivals([(2.0, (0, 1), 1e9), (2.0, (0, 2), 1e9), (3.0, (0, 1), 1.0)], inf) == [2.0, 2.0, 3.0]
